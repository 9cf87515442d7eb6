/* Multiplies bands of rows on threads, in blocks that stay in the caches. */
#include "verify/values/weight_product.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/values/lanes.h"

#include <math.h>
#include <stdlib.h>

enum {
    BAND = 32,
    TOKENS = 32,
    STRIP = 128 /* columns */,
    TILE = 2 /* rows and tokens */,
    LINE = 64 /* bytes of a line of the caches */
};

/* Buffers of one thread. */
typedef struct worker {
    tsr_weight_reader reader;
    double *rows;                /* [BAND][cols] */
    double (*sums)[BAND][LANES]; /* [TOKENS], the partial sums of a block */
} worker;

typedef struct product {
    const tsr_linear_product *args;
    tsr_view view;
    size_t rows;
    worker *workers;
} product;

tsr_status tsr_linear_expect(const tsr_checkpoint *checkpoint, const tsr_weight *w, size_t rows, size_t cols,
                             tsr_err *err)
{
    const tsr_tensor *const t = w->values;
    char shape[192];
    if (w->coding == TSR_UNREAD || (w->coding == TSR_PLAIN && !tsr_dtype_is_weight_float((tsr_dtype)t->dtype)))
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is %s without a supported scale (see 'tessera inspect')",
                        checkpoint->path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
    if (w->coding != TSR_PLAIN ? w->matrices == 1 && w->rows == rows && w->cols == cols
        : cols == 0            ? t->rank == 1 && t->shape[0] == rows
                               : t->rank == 2 && t->shape[0] == rows && t->shape[1] == cols)
        return TSR_OK;
    return cols == 0 ? tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is %s, but " TSR_CONFIG_NAME " requires [%zu]",
                                checkpoint->path, t->name, tsr_shape_text(t, shape, sizeof shape), rows)
                     : tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is %s, but " TSR_CONFIG_NAME " requires [%zu, %zu]",
                                checkpoint->path, t->name, tsr_shape_text(t, shape, sizeof shape), rows, cols);
}

/* Adds the products of LANES columns from `at` on. */
#define ADD_LANES(w0, w1, x0, x1, at)        \
    do {                                     \
        f64_lanes a0, a1, b0, b1;            \
        memcpy(&a0, (w0) + (at), sizeof a0); \
        memcpy(&a1, (w1) + (at), sizeof a1); \
        memcpy(&b0, (x0) + (at), sizeof b0); \
        memcpy(&b1, (x1) + (at), sizeof b1); \
        sum00 += a0 * b0;                    \
        sum01 += a1 * b0;                    \
        sum10 += a0 * b1;                    \
        sum11 += a1 * b1;                    \
    } while (0)

/* Adds the products of k columns of TILE rows and TILE tokens to their partial sums, [tokens][BAND][LANES]. The sums
 * have names of their own, so that they are in registers. */
static ALWAYS_INLINE void tile(const double *const *w, const double *const *x, size_t k, double (*sums)[BAND][LANES])
{
    const double *const w0 = w[0], *const w1 = w[1], *const x0 = x[0], *const x1 = x[1];
    f64_lanes sum00, sum01, sum10, sum11;
    size_t i = 0;
    memcpy(&sum00, sums[0][0], sizeof sum00);
    memcpy(&sum01, sums[0][1], sizeof sum01);
    memcpy(&sum10, sums[1][0], sizeof sum10);
    memcpy(&sum11, sums[1][1], sizeof sum11);
    for (; i + LANES <= k; i += LANES)
        ADD_LANES(w0, w1, x0, x1, i);
    if (i < k) {
        double last[2 * TILE][LANES] = {{0}};
        memcpy(last[0], w0 + i, (k - i) * sizeof *w0);
        memcpy(last[1], w1 + i, (k - i) * sizeof *w1);
        memcpy(last[2], x0 + i, (k - i) * sizeof *x0);
        memcpy(last[3], x1 + i, (k - i) * sizeof *x1);
        ADD_LANES(last[0], last[1], last[2], last[3], 0);
    }
    memcpy(sums[0][0], &sum00, sizeof sum00);
    memcpy(sums[0][1], &sum01, sizeof sum01);
    memcpy(sums[1][0], &sum10, sizeof sum10);
    memcpy(sums[1][1], &sum11, sizeof sum11);
}

FOR_EVERY_ISA(tile, (const double *const *w, const double *const *x, size_t k, double (*sums)[BAND][LANES]),
              (w, x, k, sums))

/* A block of the product: n rows of W, which are contiguous in `w`, and some tokens. */
typedef struct block {
    const double *w;
    size_t row, n, token, tokens;
    double (*sums)[BAND][LANES]; /* [TOKENS] */
} block;

/* Adds the products of columns [col, col + k). Beyond the last row or token, that one is taken again. */
static void add_columns(const tsr_linear_product *args, const block *b, size_t col, size_t k)
{
    for (size_t t = 0; t < b->tokens; t += TILE) {
        const double *w[TILE], *x[TILE];
        for (size_t j = 0; j < TILE; j++)
            x[j] = args->x + (b->token + tsr_min_u64(t + j, b->tokens - 1)) * args->ld_x + args->first + col;
        for (size_t r = 0; r < b->n; r += TILE) {
            for (size_t j = 0; j < TILE; j++)
                w[j] = b->w + tsr_min_u64(r + j, b->n - 1) * args->cols + col;
            tile_best(w, x, k, (double(*)[BAND][LANES])b->sums[t][r]);
        }
    }
}

/* Multiplies a block. Strips of its rows and tokens stay in the caches. */
static void multiply(const tsr_linear_product *args, const block *b, size_t ld_y)
{
    memset(b->sums, 0, TOKENS * sizeof *b->sums);
    for (size_t col = 0; col < args->cols; col += STRIP)
        add_columns(args, b, col, tsr_min_u64(STRIP, args->cols - col));
    for (size_t t = 0; t < b->tokens; t++) {
        for (size_t r = 0; r < b->n; r++) {
            double total = 0;
            for (size_t lane = 0; lane < LANES; lane++)
                total += b->sums[t][r][lane];
            double *const y = &args->y[(b->token + t) * ld_y + b->row + r];
            *y = args->set ? total : *y + total;
        }
    }
}

/* Multiplies rows [row, row + n) with all tokens. */
static void multiply_rows(const tsr_linear_product *args, const worker *k, const double *w, size_t row, size_t n,
                          size_t ld_y)
{
    for (size_t token = 0; token < args->n; token += TOKENS)
        multiply(args, &(block){w, row, n, token, tsr_min_u64(TOKENS, args->n - token), k->sums}, ld_y);
}

static tsr_status run_band(void *context, size_t band, size_t number, tsr_err *err)
{
    const product *const p = context;
    const tsr_linear_product *const args = p->args;
    worker *const w = &p->workers[number];
    const size_t row = band * BAND, n = tsr_min_u64(BAND, p->rows - row), ld_y = args->ld_y > 0 ? args->ld_y : p->rows;
    const tsr_piece piece = {
        .matrix = args->matrix, .row = args->first_row + row, .col = args->first, .rows = n, .cols = args->cols};
    if (w->sums == NULL)
        w->sums = aligned_alloc(LINE, TOKENS * sizeof *w->sums);
    if (w->sums == NULL)
        return tsr_out_of_memory(err, "for sums");
    if (args->dense != NULL) {
        multiply_rows(args, w, args->dense + (args->first_row + row) * args->cols, row, n, ld_y);
        return TSR_OK;
    }
    if (w->rows == NULL)
        w->rows = aligned_alloc(LINE, tsr_round_up(BAND * args->cols * sizeof *w->rows + 1, LINE));
    if (w->rows == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for rows of '%s'", args->weight->values->name);
    TSR_TRY(tsr_weight_reader_load(&w->reader, &p->view, &piece, err));
    for (size_t i = 0; i < n; i++)
        tsr_weight_reader_row(&w->reader, i, 0, args->cols, w->rows + i * args->cols);
    multiply_rows(args, w, w->rows, row, n, ld_y);
    return TSR_OK;
}

tsr_status tsr_linear_view(tsr_view *view, const tsr_checkpoint *checkpoint, const tsr_weight *weight, tsr_err *err)
{
    return weight->transposed ? tsr_view_of_codes(view, checkpoint, weight, err)
                              : tsr_view_init(view, checkpoint, weight, err);
}

tsr_status tsr_linear_run(const tsr_linear_product *args, unsigned threads, tsr_err *err)
{
    product p = {.args = args};
    if (args->n == 0)
        return TSR_OK;
    if (args->dense == NULL)
        TSR_TRY(tsr_linear_view(&p.view, args->checkpoint, args->weight, err));
    p.rows = args->rows > 0 ? args->rows : (size_t)p.view.rows;
    const size_t bands = (size_t)tsr_ceil_div(p.rows, BAND), workers = tsr_parallel_workers(bands, threads);
    p.workers = calloc(workers, sizeof *p.workers);
    if (p.workers == NULL)
        return tsr_out_of_memory(err, "for threads");
    const tsr_status status = tsr_parallel_for(bands, threads, NULL, run_band, &p, err);
    for (size_t i = 0; i < workers; i++) {
        tsr_weight_reader_free(&p.workers[i].reader);
        free(p.workers[i].rows);
        free(p.workers[i].sums);
    }
    free(p.workers);
    return status;
}

double tsr_dot(const double *x, const double *y, size_t n)
{
    double lanes[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < LANES; k++)
            lanes[k] += x[i + k] * y[i + k];
    }
    for (; i < n; i++)
        sum += x[i] * y[i];
    for (size_t k = 0; k < LANES; k++)
        sum += lanes[k];
    return sum;
}

void tsr_soften(double *x, size_t n)
{
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (size_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - most);
    for (size_t i = 0; i < n; i++)
        x[i] /= sum;
}

void tsr_rms_norm(const double *x, size_t n, const double *gain, double eps, double *y)
{
    const double r = 1 / sqrt(tsr_dot(x, x, n) / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * r * (gain != NULL ? gain[i] : 1);
}
