/* Reads both weights in bands of rows, on several threads, and adds up their squared differences. */
#include "verify/sensitivity/weight_error.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#include <math.h>
#include <stdlib.h>

enum { ELEMENTS = 1 << 18 /* in a band, about */ };

typedef struct sums {
    double d2, x2;
} sums;

typedef struct measuring {
    tsr_view x, y;
    tsr_column_importance importance;
    bool has_importance;
    uint64_t bands, rows; /* bands of a matrix, and rows of each but the last */
    sums *of_band;        /* [matrices][bands] */
} measuring;

/* The buffers of one band. */
typedef struct band {
    tsr_weight_reader x, y;
    double *values;    /* a row of x, then one of y */
    float *importance; /* [cols] */
} band;

static tsr_status load_band(const measuring *m, band *b, const tsr_piece *piece, tsr_err *err)
{
    const size_t cols = (size_t)piece->cols;
    b->values = malloc(2 * cols * sizeof *b->values + 1);
    b->importance = malloc(cols * sizeof *b->importance + 1);
    if (b->values == NULL || b->importance == NULL)
        return tsr_out_of_memory(err, "for a band of rows");
    TSR_TRY(tsr_weight_reader_load(&b->x, &m->x, piece, err));
    TSR_TRY(tsr_weight_reader_load(&b->y, &m->y, piece, err));
    if (m->has_importance && tsr_importance_of(&m->importance, piece->matrix, 0, piece->cols, b->importance))
        return TSR_OK;
    for (size_t j = 0; j < cols; j++)
        b->importance[j] = 1;
    return TSR_OK;
}

static sums add_row(const band *b, size_t cols, sums total)
{
    const double *const x = b->values, *const y = b->values + cols;
    for (size_t j = 0; j < cols; j++) {
        const double c = b->importance[j], d = x[j] - y[j];
        total.d2 += c * d * d;
        total.x2 += c * x[j] * x[j];
    }
    return total;
}

static tsr_status measure_band(void *context, size_t i, size_t worker, tsr_err *err)
{
    const measuring *const m = context;
    const uint64_t row = i % m->bands * m->rows;
    const tsr_piece piece = {
        .matrix = i / m->bands, .row = row, .rows = tsr_min_u64(m->rows, m->x.rows - row), .cols = m->x.cols};
    const size_t cols = (size_t)piece.cols;
    band b = {0};
    sums total = {0, 0};
    (void)worker;
    tsr_status status = load_band(m, &b, &piece, err);
    for (uint64_t r = 0; status == TSR_OK && r < piece.rows; r++) {
        tsr_weight_reader_row(&b.x, r, 0, cols, b.values);
        tsr_weight_reader_row(&b.y, r, 0, cols, b.values + cols);
        total = add_row(&b, cols, total);
    }
    m->of_band[i] = total;
    tsr_weight_reader_free(&b.x);
    tsr_weight_reader_free(&b.y);
    free(b.values);
    free(b.importance);
    return status;
}

tsr_status tsr_weight_error(const tsr_side *from, const tsr_weight *x, const tsr_side *to, const tsr_weight *y,
                            const tsr_importance *importance, const tsr_run_options *run, double *error, tsr_err *err)
{
    measuring m = {.has_importance = importance != NULL};
    sums total = {0, 0};
    TSR_TRY(tsr_view_init(&m.x, from->checkpoint, x, err));
    TSR_TRY(tsr_view_init(&m.y, to->checkpoint, y, err));
    if (m.x.matrices != m.y.matrices || m.x.rows != m.y.rows || m.x.cols != m.y.cols)
        return tsr_fail(err, TSR_E_MISMATCH, "'%s' has another shape in %s than in %s", x->values->name,
                        to->checkpoint->path, from->checkpoint->path);
    if (importance != NULL)
        TSR_TRY(tsr_importance_find(importance, x->values, &m.importance, err));
    m.has_importance = importance != NULL && m.importance.entry != NULL;
    m.rows = tsr_max_u64(ELEMENTS / tsr_max_u64(m.x.cols, 1), 1);
    m.bands = tsr_ceil_div(m.x.rows, m.rows);
    const size_t n = (size_t)(m.x.matrices * m.bands);
    m.of_band = calloc(n + 1, sizeof *m.of_band);
    if (m.of_band == NULL)
        return tsr_out_of_memory(err, "for the error of a weight");
    const tsr_status status = tsr_parallel_for(n, run->threads, run->cancel, measure_band, &m, err);
    for (size_t i = 0; i < n; i++) {
        total.d2 += m.of_band[i].d2;
        total.x2 += m.of_band[i].x2;
    }
    free(m.of_band);
    TSR_TRY(status);
    *error = total.x2 > 0 ? total.d2 / total.x2 : 0;
    return isfinite(total.d2) && isfinite(total.x2)
               ? TSR_OK
               : tsr_fail(err, TSR_E_VALUE, "'%s' has NaN or infinite values in %s or %s", x->values->name,
                          from->checkpoint->path, to->checkpoint->path);
}
