/* Sums over tiles, and metrics from the sums. */
#include "verify/compare/metrics.h"

#include "verify/values/lanes.h"

#include <float.h>
#include <math.h>

enum { X2, Y2, XY, D2, N_SUMS };

typedef struct row_result {
    double max_abs;
    int64_t bad; /* not 0: some |x - y| is not finite, and nothing was added */
} row_result;

static ALWAYS_INLINE void add_row(tsr_tile *tile, const double *x, const double *y, size_t n, row_result *result)
{
    f64_lanes x2, y2, xy, d2, max_abs = {0};
    i64_lanes differ, bad = {0};
    memcpy(&x2, tile->sums[X2], sizeof x2);
    memcpy(&y2, tile->sums[Y2], sizeof y2);
    memcpy(&xy, tile->sums[XY], sizeof xy);
    memcpy(&d2, tile->sums[D2], sizeof d2);
    memcpy(&differ, tile->differ, sizeof differ);
    for (size_t i = 0; i < n; i += LANES) {
        f64_lanes a = {0}, b = {0};
        LOAD(a, x + i, n - i);
        LOAD(b, y + i, n - i);
        const f64_lanes d = a - b;
        const f64_lanes size = (f64_lanes)((i64_lanes)d & INT64_MAX);
        x2 += a * a;
        y2 += b * b;
        xy += a * b;
        d2 += d * d;
        differ -= a != b;
        bad |= ~(size <= DBL_MAX);
        const i64_lanes larger = size > max_abs;
        max_abs = (f64_lanes)(((i64_lanes)size & larger) | ((i64_lanes)max_abs & ~larger));
    }
    *result = (row_result){0};
    for (size_t lane = 0; lane < LANES; lane++) {
        result->max_abs = max_abs[lane] > result->max_abs ? max_abs[lane] : result->max_abs;
        result->bad |= bad[lane];
    }
    if (result->bad != 0)
        return;
    memcpy(tile->sums[X2], &x2, sizeof x2);
    memcpy(tile->sums[Y2], &y2, sizeof y2);
    memcpy(tile->sums[XY], &xy, sizeof xy);
    memcpy(tile->sums[D2], &d2, sizeof d2);
    memcpy(tile->differ, &differ, sizeof differ);
}

FOR_EVERY_ISA(add_row, (tsr_tile * tile, const double *x, const double *y, size_t n, row_result *result),
              (tile, x, y, n, result))

void tsr_tile_begin(tsr_tile *tile, const tsr_tile_metrics *place, uint64_t rows, uint64_t ld)
{
    *tile = (tsr_tile){.place = *place, .ld = ld, .index = (place->matrix * rows + place->row) * ld + place->col};
    tile->found.elements = (uint64_t)place->rows * place->cols;
}

static void note_max(tsr_metrics *m, double max_abs, uint64_t at)
{
    if (max_abs > m->max_abs) {
        m->max_abs = max_abs;
        m->max_abs_at = at;
    }
}

static void note_nonfinite(tsr_metrics *m, unsigned side, double value, uint64_t at)
{
    if (isfinite(value))
        return;
    if (m->nonfinite[side]++ == 0)
        m->nonfinite_at[side] = at;
}

/* Counts the pairs without a finite difference; x_left and y_left receive the others. */
static void take_out_nonfinite(tsr_tile *tile, uint64_t start, const double *x, const double *y, double *x_left,
                               double *y_left)
{
    for (uint32_t i = 0; i < tile->place.cols; i++) {
        const bool keep = isfinite(x[i] - y[i]);
        x_left[i] = keep ? x[i] : 0;
        y_left[i] = keep ? y[i] : 0;
        note_nonfinite(&tile->found, 0, x[i], start + i);
        note_nonfinite(&tile->found, 1, y[i], start + i);
        if (keep || x[i] == y[i] || (isnan(x[i]) && isnan(y[i])))
            continue;
        tile->found.differ++;
        note_max(&tile->found, INFINITY, start + i);
    }
}

void tsr_tile_row(tsr_tile *tile, uint32_t row, const double *x, const double *y)
{
    const size_t n = tile->place.cols;
    const uint64_t start = tile->index + row * tile->ld;
    double x_left[TSR_TILE], y_left[TSR_TILE];
    row_result result;
    add_row_best(tile, x, y, n, &result);
    if (result.bad != 0) {
        take_out_nonfinite(tile, start, x, y, x_left, y_left);
        x = x_left;
        y = y_left;
        add_row_best(tile, x, y, n, &result);
    }
    if (result.max_abs <= tile->found.max_abs)
        return;
    size_t at = 0;
    while (fabs(x[at] - y[at]) != result.max_abs)
        at++;
    note_max(&tile->found, result.max_abs, start + at);
}

static double relative(double d2, double x2, double max_abs)
{
    if (isinf(max_abs))
        return INFINITY;
    if (d2 == 0)
        return 0;
    return x2 > 0 ? sqrt(d2 / x2) : INFINITY;
}

/* Inserts a tile among the worst. Of equal tiles, the earlier one comes first. */
static void note_worst(tsr_metrics *m, const tsr_tile_metrics *tile)
{
    size_t at = m->n_worst;
    while (at > 0 && m->worst[at - 1].relative < tile->relative)
        at--;
    if (at == TSR_WORST_TILES)
        return;
    m->n_worst += m->n_worst < TSR_WORST_TILES;
    memmove(&m->worst[at + 1], &m->worst[at], (m->n_worst - at - 1) * sizeof *tile);
    m->worst[at] = *tile;
}

void tsr_tile_end(const tsr_tile *tile, tsr_metrics *total)
{
    tsr_metrics m = tile->found;
    double sums[N_SUMS] = {0};
    for (size_t lane = 0; lane < LANES; lane++) {
        for (size_t i = 0; i < N_SUMS; i++)
            sums[i] += tile->sums[i][lane];
        m.differ += (uint64_t)tile->differ[lane];
    }
    m.sum_x2 = sums[X2];
    m.sum_y2 = sums[Y2];
    m.sum_xy = sums[XY];
    m.sum_d2 = sums[D2];
    if (m.differ > 0) {
        tsr_tile_metrics place = tile->place;
        place.differ = m.differ;
        place.relative = relative(m.sum_d2, m.sum_x2, m.max_abs);
        place.max_abs = m.max_abs;
        note_worst(&m, &place);
    }
    tsr_metrics_add(total, &m);
}

void tsr_metrics_add(tsr_metrics *total, const tsr_metrics *more)
{
    total->elements += more->elements;
    total->differ += more->differ;
    for (unsigned side = 0; side < 2; side++) {
        if (total->nonfinite[side] == 0)
            total->nonfinite_at[side] = more->nonfinite_at[side];
        total->nonfinite[side] += more->nonfinite[side];
    }
    if (total->misrounded == 0)
        total->misrounded_at = more->misrounded_at;
    total->misrounded += more->misrounded;
    if (total->misscaled == 0)
        total->misscaled_at = more->misscaled_at;
    total->misscaled += more->misscaled;
    total->sum_x2 += more->sum_x2;
    total->sum_y2 += more->sum_y2;
    total->sum_xy += more->sum_xy;
    total->sum_d2 += more->sum_d2;
    note_max(total, more->max_abs, more->max_abs_at);
    for (size_t i = 0; i < more->n_worst; i++)
        note_worst(total, &more->worst[i]);
}

double tsr_metrics_relative(const tsr_metrics *m)
{
    return relative(m->sum_d2, m->sum_x2, m->max_abs);
}

double tsr_metrics_sqnr(const tsr_metrics *m)
{
    return -20 * log10(tsr_metrics_relative(m));
}

double tsr_metrics_cosine(const tsr_metrics *m)
{
    const double norms = sqrt(m->sum_x2) * sqrt(m->sum_y2);
    if (norms > 0)
        return m->sum_xy / norms;
    return m->sum_x2 > 0 || m->sum_y2 > 0 ? 0 : 1;
}

double tsr_metrics_calc_diff(const tsr_metrics *m)
{
    if (isinf(m->max_abs))
        return INFINITY;
    return m->sum_d2 > 0 ? m->sum_d2 / (m->sum_x2 + m->sum_y2) : 0;
}
