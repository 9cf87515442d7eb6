/* Sums products of inputs for each layer, and writes their means. */
#include "verify/forward/collect/input_products.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/grow.h"
#include "formats/names/shared_input.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The sums of one matrix. */
typedef struct tsr_open_products {
    tsr_shared_input input;
    const char *leaf; /* the last component of the module whose rows are summed; other members have the same input */
    size_t matrices, matrix, cols;
    size_t at; /* 1 + index of the stack in `done`; 0: none yet */
    uint64_t tokens;
    tsr_activation *sums; /* [padded][padded] in memory of the operations, the lower triangle */
} tsr_open_products;

enum { BAND = 64 }; /* rows that are written at a time */

/* Returns the rows and columns of the sums. */
static size_t padded(size_t cols)
{
    return (size_t)tsr_round_up(cols, TSR_GRAM_TILE);
}

static tsr_status out_of_memory(tsr_err *err)
{
    return tsr_out_of_memory(err, "for products of inputs");
}

tsr_status tsr_input_products_open(tsr_input_products *p, const char *path, tsr_err *err)
{
    *p = (tsr_input_products){.path = path, .fd = tsr_open(path, O_RDWR | O_CREAT)};
    return p->fd < 0 ? tsr_fail_errno(err, "%s: cannot open", path) : TSR_OK;
}

/* ---- writing ---- */

/* Adds a finished matrix, or a stack of them, and makes room in the file. */
static tsr_status add_finished(tsr_input_products *p, const tsr_open_products *o, tsr_err *err)
{
    const uint64_t bytes = (uint64_t)o->matrices * o->cols * o->cols * sizeof(float);
    const char *const name = tsr_arena_dup(&p->arena, o->input.name, strlen(o->input.name));
    if (name == NULL || !tsr_grow(&p->done, p->count, &p->capacity, sizeof *p->done))
        return out_of_memory(err);
    if (tsr_resize(p->fd, p->bytes + bytes) != 0)
        return tsr_fail_errno(err, "%s: cannot write", p->path);
    p->done[p->count++] =
        (tsr_finished_products){.name = name, .matrices = o->matrices, .cols = o->cols, .offset = p->bytes};
    p->bytes += bytes;
    return TSR_OK;
}

/* Buffers of a band of rows of a matrix. */
typedef struct band {
    double *rows, *columns; /* on the host: the band's rows of the lower triangle [BAND][padded], and the columns below
                              * it [padded][BAND] */
    tsr_activation *on_ops; /* the columns, in memory of the operations */
    float *means;           /* [BAND][cols] */
} band;

/* Writes rows [first, first + n) of the full matrix of means. */
static tsr_status write_band(const tsr_input_products *p, const tsr_open_products *o, const band *b, size_t first,
                             size_t n, uint64_t offset, tsr_err *err)
{
    tsr_ops *const ops = p->ops;
    const size_t cols = o->cols, ld = padded(cols);
    const tsr_activation *const sums = tsr_at(ops, o->sums, first * ld);
    TSR_TRY(ops->get(ops, b->rows, sums, n * ld, err));
    TSR_TRY(ops->place(ops, b->on_ops, BAND, 0, sums, ld, first, cols - first, n, err));
    TSR_TRY(ops->get(ops, b->columns, b->on_ops, (cols - first) * BAND, err));
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < cols; j++) {
            const double sum = j <= first + i ? b->rows[i * ld + j] : b->columns[(j - first) * BAND + i];
            b->means[i * cols + j] = (float)(sum / (double)o->tokens);
        }
    }
    return tsr_write_at(p->fd, p->path, b->means, n * cols * sizeof *b->means, offset + first * cols * sizeof *b->means,
                        err);
}

/* Writes the means as a full matrix. */
static tsr_status write_means(const tsr_input_products *p, const tsr_open_products *o, uint64_t offset, tsr_err *err)
{
    const size_t size = BAND * padded(o->cols);
    band b = {.rows = malloc(size * sizeof *b.rows),
              .columns = malloc(size * sizeof *b.columns),
              .means = malloc(size * sizeof *b.means)};
    tsr_status status = b.rows == NULL || b.columns == NULL || b.means == NULL ? out_of_memory(err) : TSR_OK;
    if (status == TSR_OK)
        status = p->ops->make(p->ops, size, true, &b.on_ops, err);
    for (size_t first = 0; first < o->cols && status == TSR_OK; first += BAND)
        status = write_band(p, o, &b, first, (size_t)tsr_min_u64(BAND, o->cols - first), offset, err);
    p->ops->drop(p->ops, b.on_ops, size);
    free(b.rows);
    free(b.columns);
    free(b.means);
    return status;
}

/* Writes a matrix, unless it is that of an expert that saw too few tokens. */
static tsr_status finish(tsr_input_products *p, tsr_open_products *o, tsr_err *err)
{
    const bool few = o->input.expert && !o->input.common && o->tokens < o->cols;
    if (o->tokens == 0)
        return TSR_OK;
    p->skipped += few;
    if (o->at == 0 && (!few || o->matrices > 1)) {
        TSR_TRY(add_finished(p, o, err));
        o->at = p->count;
    }
    if (few)
        return TSR_OK;
    const uint64_t bytes = (uint64_t)o->cols * o->cols * sizeof(float);
    return write_means(p, o, p->done[o->at - 1].offset + o->matrix * bytes, err);
}

static void drop_one(tsr_input_products *p, size_t i)
{
    tsr_open_products *const o = &p->open[i];
    p->ops->drop(p->ops, o->sums, padded(o->cols) * padded(o->cols));
    *o = p->open[--p->n_open];
}

/* Writes an open matrix and removes it from the list. */
static tsr_status close_one(tsr_input_products *p, size_t i, tsr_err *err)
{
    const tsr_status status = finish(p, &p->open[i], err);
    drop_one(p, i);
    return status;
}

tsr_status tsr_input_products_end_layer(tsr_input_products *p, tsr_err *err)
{
    while (p->n_open > 0)
        TSR_TRY(close_one(p, p->n_open - 1, err));
    return TSR_OK;
}

/* ---- the current matrix ---- */

static tsr_open_products *find_open(const tsr_input_products *p, const char *name)
{
    for (size_t i = 0; i < p->n_open; i++) {
        if (strcmp(p->open[i].input.name, name) == 0)
            return &p->open[i];
    }
    return NULL;
}

/* Writes the matrix of the previous expert, if there is one. */
static tsr_status finish_previous(tsr_input_products *p, tsr_err *err)
{
    for (size_t i = 0; i < p->n_open; i++) {
        if (p->open[i].input.expert && !p->open[i].input.common)
            return close_one(p, i, err);
    }
    return TSR_OK;
}

static tsr_status add_open(tsr_input_products *p, const tsr_product_rows *r, const tsr_shared_input *input,
                           const char *leaf, tsr_err *err)
{
    const size_t ld = padded(r->cols);
    if (input->expert && !input->common)
        TSR_TRY(finish_previous(p, err));
    if (!tsr_grow(&p->open, p->n_open, &p->open_capacity, sizeof *p->open))
        return out_of_memory(err);
    tsr_open_products *const o = &p->open[p->n_open];
    *o = (tsr_open_products){.input = *input,
                             .leaf = tsr_arena_dup(&p->arena, leaf, strlen(leaf)),
                             .matrices = input->common ? 1 : r->matrices,
                             .matrix = input->common ? 0 : r->matrix,
                             .cols = r->cols};
    if (o->leaf == NULL)
        return out_of_memory(err);
    TSR_TRY(p->ops->make(p->ops, ld * ld, true, &o->sums, err));
    p->n_open++;
    return TSR_OK;
}

tsr_status tsr_input_products_add(tsr_input_products *p, const tsr_product_rows *r, tsr_err *err)
{
    const char *const dot = strrchr(r->module, '.'), *const leaf = dot == NULL ? r->module : dot + 1;
    tsr_shared_input input;
    if (!tsr_shared_input_of(r->module, strlen(r->module), &input))
        return tsr_fail(err, TSR_E_FORMAT, "'%s': the name is too long", r->module);
    if (find_open(p, input.name) == NULL)
        TSR_TRY(add_open(p, r, &input, leaf, err));
    tsr_open_products *const o = find_open(p, input.name);
    if (strcmp(o->leaf, leaf) != 0)
        return TSR_OK;
    if (!input.common && o->matrix != r->matrix) {
        TSR_TRY(finish(p, o, err));
        TSR_TRY(p->ops->scale(p->ops, o->sums, padded(r->cols) * padded(r->cols), 0, err));
        o->matrix = r->matrix;
        o->tokens = 0;
    }
    o->tokens += r->n;
    return r->n == 0 ? TSR_OK : p->ops->gram(p->ops, o->sums, r->x, r->n, r->cols, err);
}

void tsr_input_products_drop(tsr_input_products *p)
{
    while (p->n_open > 0)
        drop_one(p, p->n_open - 1);
}

void tsr_input_products_close(tsr_input_products *p)
{
    free(p->open);
    free(p->done);
    if (p->fd >= 0)
        (void)close(p->fd);
    tsr_arena_free(&p->arena);
    *p = (tsr_input_products){.fd = -1};
}
