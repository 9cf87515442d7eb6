/* Widens rows of A and B and brings them into the order of the kernel. */
#include "convert/ops/merge/update_rows.h"

#include "common/float_bits.h"
#include "convert/ops/rows/rows.h"
#include "quantize/fp8_decode.h"

#include <string.h>

enum { TILE = TSR_LOW_RANK_TILE };

static uint64_t bytes_of(const tsr_tensor *t)
{
    return tsr_dtype_bytes((tsr_dtype)t->dtype);
}

/* A's rows of one expert are contiguous. B's columns of one expert are not, so all of them are read. */
void tsr_update_windows(const tsr_update *u, uint64_t row, uint64_t rows, tsr_window in[2])
{
    const uint64_t matrix = row / u->rows, first = row % u->rows, value = bytes_of(u->a);
    const uint64_t width = u->a->shape[1] * value, begin = matrix * u->rank * width;
    if (u->turned) {
        in[0] =
            (tsr_window){.offset = begin + first * value, .rows = u->rank, .row_bytes = rows * value, .pitch = width};
        in[1] = tsr_whole_window(u->b);
        return;
    }
    in[0] = tsr_run_window(begin, u->rank * width);
    in[1] = tsr_rows_window(u->b, first, rows);
}

/* Parts of the scratch, in bytes: the left factor, the right one in tiles, one widened row of A or B. */
typedef struct parts {
    uint64_t left, right, row;
} parts;

static parts parts_of(const tsr_update *u, uint64_t rows)
{
    const uint64_t longest = tsr_max_u64(tsr_max_u64(u->cols, rows), u->rank * u->matrices);
    return (parts){.left = tsr_round_up(rows * u->rank * sizeof(float), 64),
                   .right = tsr_round_up(u->cols, TILE) * u->rank * sizeof(float),
                   .row = tsr_round_up(longest * sizeof(float), 64)};
}

uint64_t tsr_update_scratch(const tsr_update *u, uint64_t rows)
{
    const parts p = parts_of(u, rows);
    return p.left + p.right + p.row;
}

static tsr_status check(const tsr_tensor *t, const float *x, uint64_t n, tsr_err *err)
{
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t bits = tsr_f32_bits(x[i]) & TSR_FP32_ABS_MASK;
        most = bits > most ? bits : most;
    }
    return most < TSR_FP32_INF_BITS
               ? TSR_OK
               : tsr_fail_at(
                     err,
                     tsr_fail(err, TSR_E_VALUE, "'%s' of the adapter has a value that is NaN or infinite", t->name),
                     t->name);
}

/* Puts `n` values of rank k into tiles: column c at (c / TILE * rank + k) * TILE + c % TILE. */
static void put_in_tiles(const tsr_update *u, uint64_t k, const float *x, uint64_t n, float *right)
{
    for (uint64_t c = 0; c < n; c += TILE)
        memcpy(right + (c / TILE * u->rank + k) * TILE, x + c, tsr_min_u64(TILE, n - c) * sizeof *x);
}

/* Widens A: its columns are those of the right factor or, if turned, the rows of the left one. */
static tsr_status take_a(const tsr_update *u, uint64_t rows, const char *a, const tsr_cpu_kernels *kernels, float *left,
                         float *right, float *row, tsr_err *err)
{
    const uint64_t n = u->turned ? rows : u->cols;
    for (uint64_t k = 0; k < u->rank; k++) {
        tsr_widen_to_f32(kernels, (tsr_dtype)u->a->dtype, a + k * n * bytes_of(u->a), n, row);
        TSR_TRY(check(u->a, row, n, err));
        if (!u->turned)
            put_in_tiles(u, k, row, n, right);
        for (uint64_t r = 0; u->turned && r < n; r++)
            left[r * u->rank + k] = row[r];
    }
    return TSR_OK;
}

/* Widens B: its rows are those of the left factor or, if turned, the columns of the right one. */
static tsr_status take_b(const tsr_update *u, uint64_t matrix, uint64_t rows, const char *b,
                         const tsr_cpu_kernels *kernels, float *left, float *right, float *row, tsr_err *err)
{
    const uint64_t n = u->turned ? u->cols : rows, width = u->rank * u->matrices;
    for (uint64_t r = 0; r < n; r++) {
        tsr_widen_to_f32(kernels, (tsr_dtype)u->b->dtype, b + r * width * bytes_of(u->b), width, row);
        TSR_TRY(check(u->b, row, width, err));
        for (uint64_t k = 0; k < u->rank; k++) {
            const float x = row[k * u->matrices + matrix];
            if (u->turned)
                right[(r / TILE * u->rank + k) * TILE + r % TILE] = x;
            else
                left[r * u->rank + k] = x;
        }
    }
    return TSR_OK;
}

tsr_status tsr_update_make_factors(const tsr_update *u, uint64_t row, uint64_t rows, void *const in[2],
                                   const tsr_cpu_kernels *kernels, void *scratch, tsr_update_factors *factors,
                                   tsr_err *err)
{
    const parts p = parts_of(u, rows);
    float *const left = scratch, *const right = (float *)((char *)scratch + p.left),
                 *const widened = (float *)((char *)right + p.right);
    memset(right, 0, p.right); /* the last tile may be padded */
    TSR_TRY(take_a(u, rows, in[0], kernels, left, right, widened, err));
    TSR_TRY(take_b(u, row / u->rows, rows, in[1], kernels, left, right, widened, err));
    *factors = (tsr_update_factors){left, right};
    return TSR_OK;
}

void tsr_update_compute(const tsr_update *u, const tsr_update_factors *f, uint64_t skip, uint64_t rows,
                        const tsr_cpu_kernels *kernels, float *out)
{
    kernels->low_rank(f->left + skip * u->rank, f->right, rows, u->cols, u->rank, u->scale, out);
}

void tsr_update_add(const float *values, const float *update, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = values[i] + update[i];
}
