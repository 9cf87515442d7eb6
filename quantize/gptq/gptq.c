/* Rounds 32 rows at a time, from the last position of the factor to the first. */
#include "quantize/gptq/gptq.h"

#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <string.h>

enum { TILE = TSR_OUTER_TILE, BATCH = 32 /* rows that share a pass over the factor */, GROUPS = BATCH / TILE };

/* Some rows, in groups of TILE, transposed: element (row, position) is at [row / TILE][position][row % TILE]. */
typedef struct batch {
    double *weights, *errors, *nearest; /* w; w - y for the codes of GPTQ and for the nearest codes */
    float *row;                         /* the weights of one row */
    uint32_t *group;                    /* the group of the column at each position */
    size_t groups;                      /* groups of a row */
    int8_t *codes;
    double error[BATCH], nearest_error[BATCH]; /* squared errors of the outputs */
    size_t first, rows;
} batch;

size_t tsr_gptq_scratch(size_t cols)
{
    const size_t positions = (cols + TILE - 1) / TILE * TILE;
    return BATCH * positions * (3 * sizeof(double) + 1) + cols * (sizeof(float) + sizeof(uint32_t));
}

static batch begin(const tsr_hessian_factor *f, const tsr_gptq_rows *r, size_t first)
{
    const size_t n = f->positions * BATCH;
    batch b = {.weights = r->scratch, .first = first, .rows = r->rows - first < BATCH ? r->rows - first : BATCH};
    b.errors = b.weights + n;
    b.nearest = b.errors + n;
    b.row = (float *)(b.nearest + n);
    b.group = (uint32_t *)(b.row + f->cols);
    b.codes = (int8_t *)(b.group + f->cols);
    b.groups = (f->cols + r->group - 1) / r->group;
    for (size_t p = 0; p < f->cols; p++)
        b.group[p] = (uint32_t)(f->order[p] / r->group);
    return b;
}

/* ---- codes ---- */

/* The scale and zero point of one weight. */
typedef struct grid {
    float scale;
    int zero;
} grid;

/* Returns those of a row of the batch. */
static grid grid_at(const tsr_gptq_rows *r, const batch *b, size_t row, size_t position)
{
    const size_t at = (b->first + row) * b->groups + b->group[position];
    return (grid){r->scale[at], r->zero == NULL ? 0 : r->zero[at]};
}

/* Returns the value that readers compute from a code. */
static float value_of(const tsr_gptq_rows *r, grid g, int8_t code)
{
    return (r->e2m1 ? tsr_e2m1_to_f32((uint8_t)code) : (float)(code - g.zero)) * g.scale;
}

static int8_t nearest_code(const tsr_gptq_rows *r, grid g, double x)
{
    if (g.scale == 0)
        return r->e2m1 ? 0 : (int8_t)g.zero;
    const double y = x / (double)g.scale;
    if (r->e2m1)
        return (int8_t)tsr_e2m1_from_f32((float)y);
    const double code = y + g.zero, kRound = 0x1.8p52; /* adding it rounds to an integer, ties to even */
    return (int8_t)((code < r->low ? r->low : code > r->high ? r->high : code) + kRound - kRound);
}

/* ---- rounding ---- */

/* Fills the weights and the errors of the nearest codes. */
static void load(const tsr_hessian_factor *f, const tsr_cpu_kernels *k, const tsr_gptq_rows *r, const batch *b)
{
    const size_t n = f->positions;
    memset(b->weights, 0, n * BATCH * sizeof *b->weights);
    memset(b->nearest, 0, n * BATCH * sizeof *b->nearest);
    memset(b->errors, 0, n * BATCH * sizeof *b->errors);
    for (size_t i = 0; i < b->rows; i++) {
        const size_t row = b->first + i;
        const char *const from = (const char *)r->x + row * f->cols * tsr_dtype_bytes(r->dtype);
        tsr_widen_to_f32(k, r->dtype, from, f->cols, b->row);
        for (size_t p = 0; p < f->cols; p++) {
            const size_t col = f->order[p], at = (i / TILE * n + p) * TILE + i % TILE;
            const float y = value_of(r, grid_at(r, b, i, p), r->codes[row * f->cols + col]);
            b->weights[at] = (double)b->row[col];
            b->nearest[at] = b->weights[at] - (double)y;
        }
    }
}

/* Rounds the positions of one tile for TILE rows. near[j] and far[j] are the sums of M_jk e_k over later tiles. */
static void round_tile(const tsr_hessian_factor *f, const tsr_gptq_rows *r, batch *b, size_t tile, size_t group,
                       double far[TILE][TILE], double near[TILE][TILE])
{
    const double *const ratios = tsr_hessian_ratios(f, tile);
    const size_t base = (group * f->positions + tile * TILE) * TILE;
    const size_t rows = b->rows - group * TILE < TILE ? b->rows - group * TILE : TILE;
    for (size_t j = TILE; j-- > 0;) {
        const size_t p = tile * TILE + j;
        if (p >= f->cols)
            continue;
        for (size_t k = j + 1; k < TILE; k++) {
            for (size_t i = 0; i < TILE; i++) {
                far[j][i] += ratios[k * TILE + j] * b->errors[base + k * TILE + i];
                near[j][i] += ratios[k * TILE + j] * b->nearest[base + k * TILE + i];
            }
        }
        for (size_t i = 0; i < rows; i++) {
            const size_t at = base + j * TILE + i, row = group * TILE + i;
            const grid g = grid_at(r, b, row, p);
            b->codes[at] = nearest_code(r, g, b->weights[at] + far[j][i]);
            b->errors[at] = b->weights[at] - (double)value_of(r, g, b->codes[at]);
            const double error = b->errors[at] + far[j][i], other = b->nearest[at] + near[j][i];
            b->error[row] += f->pivots[p] * error * error;
            b->nearest_error[row] += f->pivots[p] * other * other;
        }
    }
}

static void round_batch(const tsr_hessian_factor *f, const tsr_cpu_kernels *k, const tsr_gptq_rows *r, batch *b)
{
    for (size_t tile = f->positions / TILE; tile-- > 0;) {
        const size_t after = (tile + 1) * TILE, count = f->positions - after;
        const double *const ratios = tsr_hessian_ratios(f, tile) + TILE * TILE;
        for (size_t group = 0; group * TILE < b->rows; group++) {
            const size_t from = (group * f->positions + after) * TILE;
            double far[TILE][TILE] = {{0}}, near[TILE][TILE] = {{0}};
            k->outer_products(ratios, b->errors + from, count, far[0], TILE);
            k->outer_products(ratios, b->nearest + from, count, near[0], TILE);
            round_tile(f, r, b, tile, group, far, near);
        }
    }
}

/* Stores the codes of a row. */
static void store(const tsr_hessian_factor *f, const tsr_gptq_rows *r, const batch *b, size_t i)
{
    for (size_t p = 0; p < f->cols; p++)
        r->codes[(b->first + i) * f->cols + f->order[p]] = b->codes[(i / TILE * f->positions + p) * TILE + i % TILE];
}

void tsr_gptq_round(const tsr_hessian_factor *factor, const tsr_cpu_kernels *kernels, const tsr_gptq_rows *rows,
                    tsr_gptq_errors *errors)
{
    for (size_t first = 0; first < rows->rows; first += BATCH) {
        batch b = begin(factor, rows, first);
        load(factor, kernels, rows, &b);
        round_batch(factor, kernels, rows, &b);
        for (size_t i = 0; i < b.rows; i++) {
            const bool better = b.error[i] < b.nearest_error[i];
            if (better)
                store(factor, rows, &b, i);
            errors->nearest += b.nearest_error[i];
            errors->chosen += better ? b.error[i] : b.nearest_error[i];
        }
    }
}
