/* Computes the statistics of a tensor in one pass, band by band. */
#include "verify/survey/histogram.h"

#include "common/checked.h"
#include "verify/values/weight_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_ELEMENTS = 1 << 20, PIECE_COLS = 1 << 16, DEFAULT_BLOCK = 128 };

/* Sums of one band, kept separate so that small values are not lost in a large total. */
typedef struct sums {
    double x, x2;
} sums;

static double magnitude_floor(tsr_dtype dtype)
{
    switch (dtype) {
    case TSR_BF16:
    case TSR_F32:
        return 0x1p-126;
    case TSR_F16:
        return 0x1p-14;
    case TSR_F64:
        return 0x1p-1022;
    default:
        return 0;
    }
}

static void take_row(tsr_histogram *h, const double *x, size_t n, double floor, sums *sum)
{
    for (size_t i = 0; i < n; i++) {
        const double a = fabs(x[i]);
        uint64_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        if (!(a <= 0x1.fffffffffffffp1023)) {
            h->nan += isnan(x[i]);
            h->inf += !isnan(x[i]);
            continue;
        }
        sum->x += x[i];
        sum->x2 += x[i] * x[i];
        h->min = x[i] < h->min ? x[i] : h->min;
        h->max = x[i] > h->max ? x[i] : h->max;
        if (a == 0) {
            h->zeros++;
            continue;
        }
        h->negative += x[i] < 0;
        h->subnormal += a < floor;
        h->binades[bits >> 63][bits >> 52 & 0x7FF]++;
    }
}

/* Updates the map with the largest finite |x| of each run of one row that lies in one block. */
static void map_row(tsr_histogram *h, const double *x, size_t n, uint64_t block_row, uint64_t col)
{
    double *const cells = h->map + block_row * h->map_rows / h->blocks_down * h->map_cols;
    for (size_t i = 0; i < n;) {
        const uint64_t block = (col + i) / h->block.cols;
        const size_t end = (size_t)tsr_min_u64((block + 1) * h->block.cols - col, n);
        double *const cell = &cells[block * h->map_cols / h->blocks_wide];
        for (; i < end; i++) {
            const double a = fabs(x[i]);
            if (a > *cell && a <= 0x1.fffffffffffffp1023)
                *cell = a;
        }
    }
}

static void take_piece(tsr_histogram *h, const tsr_weight_reader *r, double *row, sums *total)
{
    const tsr_view *const v = r->view;
    const tsr_piece *const p = &r->piece;
    const bool codes = v->weight.data->dtype == TSR_F8_E4M3;
    const uint64_t blocks = tsr_ceil_div(v->rows, h->block.rows);
    const double floor = magnitude_floor((tsr_dtype)v->weight.data->dtype);
    sums sum = {0};
    for (uint64_t i = 0; codes && i < p->rows * p->cols; i++)
        h->codes[r->bytes[i]]++;
    for (uint64_t i = 0; i < p->rows; i++) {
        tsr_weight_reader_row(r, i, 0, p->cols, row);
        take_row(h, row, p->cols, floor, &sum);
        map_row(h, row, p->cols, p->matrix * blocks + (p->row + i) / h->block.rows, p->col);
        for (uint64_t k = 0; k < p->cols && h->n_first < TSR_FIRST_VALUES; k++)
            h->first[h->n_first++] = row[k];
    }
    total->x += sum.x;
    total->x2 += sum.x2;
}

static tsr_status pass(tsr_histogram *h, const tsr_view *v, sums *total, tsr_err *err)
{
    tsr_weight_reader reader = {0};
    const uint64_t width = tsr_min_u64(v->cols, PIECE_COLS);
    const uint64_t height = tsr_min_u64(v->rows, PIECE_ELEMENTS / width);
    double *const row = malloc(width * sizeof *row);
    tsr_status status = row == NULL ? tsr_out_of_memory(err, "for a row of values") : TSR_OK;
    for (uint64_t m = 0; m < v->matrices; m++) {
        for (uint64_t r = 0; r < v->rows; r += height) {
            for (uint64_t c = 0; status == TSR_OK && c < v->cols; c += width) {
                const tsr_piece piece = {m, r, c, tsr_min_u64(height, v->rows - r), tsr_min_u64(width, v->cols - c)};
                status = tsr_weight_reader_load(&reader, v, &piece, err);
                if (status == TSR_OK)
                    take_piece(h, &reader, row, total);
            }
        }
    }
    tsr_weight_reader_free(&reader);
    free(row);
    return status;
}

uint64_t tsr_histogram_codes(const tsr_histogram *h, unsigned code)
{
    return h->codes[code] + h->codes[code | 0x80];
}

static void finish(tsr_histogram *h, const sums *total)
{
    const uint64_t finite = h->elements - h->nan - h->inf;
    if (finite == 0)
        h->min = h->max = 0;
    h->amax = fmax(-h->min, h->max);
    h->mean = finite == 0 ? 0 : total->x / (double)finite;
    h->rms = finite == 0 ? 0 : sqrt(total->x2 / (double)finite);
    for (unsigned code = 1; code < 8; code++)
        h->subnormal += tsr_histogram_codes(h, code);
}

static tsr_block own_block(const tsr_view *v)
{
    const tsr_weight *const w = &v->weight;
    const bool blocks = w->scale != NULL && w->block.rows > 1 && w->block.cols < v->cols;
    return blocks ? w->block : (tsr_block){DEFAULT_BLOCK, DEFAULT_BLOCK};
}

tsr_status tsr_histogram_run(tsr_histogram *h, const tsr_checkpoint *checkpoint, const tsr_weight *weight,
                             tsr_block block, tsr_err *err)
{
    const tsr_tensor *const t = weight->values;
    tsr_view v;
    sums total = {0};
    if (t->dtype == TSR_F8_E5M2 || t->dtype == TSR_F8_E4M3FNUZ || t->dtype == TSR_F8_E5M2FNUZ)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s, which Tessera does not read",
                        checkpoint->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
    TSR_TRY(tsr_view_init(&v, checkpoint, weight, err));
    const bool single = block.rows == 1 && block.cols == 1;
    memset(h, 0, sizeof *h);
    h->elements = tsr_tensor_elements(t);
    h->min = INFINITY;
    h->max = -INFINITY;
    h->block = block.rows == 0 ? own_block(&v) : block;
    h->blocks_down = v.matrices * tsr_ceil_div(v.rows, h->block.rows);
    h->blocks_wide = tsr_ceil_div(v.cols, h->block.cols);
    h->map_rows = (unsigned)tsr_min_u64(h->blocks_down, single ? TSR_GRID_CELLS : TSR_MAP_ROWS);
    h->map_cols = (unsigned)tsr_min_u64(h->blocks_wide, single ? TSR_GRID_CELLS : TSR_MAP_COLS);
    if (h->elements > 0)
        TSR_TRY(pass(h, &v, &total, err));
    finish(h, &total);
    return TSR_OK;
}
