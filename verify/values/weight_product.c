/* Multiplies bands of rows on threads, four rows by four tokens at a time, so that loaded values are used four
 * times. */
#include "verify/values/weight_product.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/values/lanes.h"

#include <math.h>
#include <stdlib.h>

enum { BAND = 32, TILE = 4 };

/* Buffers of one thread. */
typedef struct worker {
    tsr_weight_reader reader;
    double *rows; /* [BAND][cols] */
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

static ALWAYS_INLINE void tile(const double *const *w, const double *const *x, size_t k, double (*out)[TILE])
{
    f64_lanes sum[TILE][TILE] = {{{0}}};
    for (size_t i = 0; i < k; i += LANES) {
        f64_lanes a[TILE] = {{0}}, b[TILE] = {{0}};
        for (size_t j = 0; j < TILE; j++) {
            LOAD(a[j], w[j] + i, k - i);
            LOAD(b[j], x[j] + i, k - i);
        }
        for (size_t r = 0; r < TILE; r++) {
            for (size_t t = 0; t < TILE; t++)
                sum[r][t] += a[r] * b[t];
        }
    }
    for (size_t r = 0; r < TILE; r++) {
        for (size_t t = 0; t < TILE; t++) {
            double total = 0;
            for (size_t lane = 0; lane < LANES; lane++)
                total += sum[r][t][lane];
            out[r][t] = total;
        }
    }
}

FOR_EVERY_ISA(tile, (const double *const *w, const double *const *x, size_t k, double (*out)[TILE]), (w, x, k, out))

/* Multiplies rows [row, row + n) of W, which are contiguous in `w`. At the edge, some elements are computed twice. */
static void multiply(const tsr_linear_product *args, const double *w, size_t row, size_t n, size_t ld_y)
{
    for (size_t r = 0; r < n; r += TILE) {
        for (size_t t = 0; t < args->n; t += TILE) {
            const double *from[TILE], *x[TILE];
            double out[TILE][TILE];
            for (size_t j = 0; j < TILE; j++) {
                from[j] = w + tsr_min_u64(r + j, n - 1) * args->cols;
                x[j] = args->x + tsr_min_u64(t + j, args->n - 1) * args->ld_x + args->first;
            }
            tile_best(from, x, args->cols, out);
            for (size_t i = r; i < n && i < r + TILE; i++) {
                for (size_t j = t; j < args->n && j < t + TILE; j++)
                    args->y[j * ld_y + row + i] += out[i - r][j - t];
            }
        }
    }
}

static tsr_status run_band(void *context, size_t band, size_t number, tsr_err *err)
{
    const product *const p = context;
    const tsr_linear_product *const args = p->args;
    worker *const w = &p->workers[number];
    const size_t row = band * BAND, n = tsr_min_u64(BAND, p->rows - row), ld_y = args->ld_y > 0 ? args->ld_y : p->rows;
    const tsr_piece piece = {
        .matrix = args->matrix, .row = args->first_row + row, .col = args->first, .rows = n, .cols = args->cols};
    if (args->dense != NULL) {
        multiply(args, args->dense + (args->first_row + row) * args->cols, row, n, ld_y);
        return TSR_OK;
    }
    if (w->rows == NULL)
        w->rows = malloc((BAND * args->cols + 1) * sizeof *w->rows);
    if (w->rows == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for rows of '%s'", args->weight->values->name);
    TSR_TRY(tsr_weight_reader_load(&w->reader, &p->view, &piece, err));
    for (size_t i = 0; i < n; i++)
        tsr_weight_reader_row(&w->reader, i, 0, args->cols, w->rows + i * args->cols);
    multiply(args, w->rows, row, n, ld_y);
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
        y[i] = x[i] * r * gain[i];
}
