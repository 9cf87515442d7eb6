/* Decodes tiles of 64 outputs by 64 inputs: read along the outputs, as they are stored, and written along the inputs. */
#include "quantize/awq_gptq_decode.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { TILE = TSR_GPTQ_TILE };

/* Scratch: scales and zero points of a tile's outputs, [groups, TILE] each, and the tile. */
typedef struct room {
    float *scales, *zero_points, *tile;
} room;

static room divide(const tsr_weight *w, void *scratch)
{
    room r = {.tile = scratch};
    r.scales = r.tile + TILE * TILE;
    r.zero_points = r.scales + w->grid_cols * TILE;
    return r;
}

size_t tsr_gptq_decode_scratch(const tsr_weight *w)
{
    return (TILE * TILE + 2 * w->grid_cols * TILE) * sizeof(float);
}

uint64_t tsr_gptq_zero_words(const tsr_weight *w, uint64_t rows)
{
    return tsr_ceil_div(rows * w->bits, 32);
}

/* How far to shift a word for the code of output 8j + p, and a word of GPTQ's zero points likewise. */
static unsigned shift_of(const tsr_weight *w, unsigned p)
{
    static const uint8_t kAwq[8] = {0, 16, 4, 20, 8, 24, 12, 28};
    return w->coding == TSR_CODED_AWQ ? kAwq[p] : p * w->bits;
}

/* ---- scales and zero points of outputs [first, first + n) of the span ---- */

static tsr_status report_scale(const tsr_weight *w, uint64_t group, uint64_t row, float scale, tsr_err *err)
{
    const uint64_t at = (group * w->rows + row) * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    return tsr_fail(err, TSR_E_VALUE,
                    "'%s': the scale at [%llu, %llu] is %g, file offset %llu: no weight comes of it; the checkpoint is "
                    "damaged",
                    w->scale->name, U64(group), U64(row), (double)scale, U64(w->scale->offset + at));
}

static tsr_status take_groups(const tsr_cpu_kernels *k, const tsr_gptq_span *span, uint64_t first, uint64_t n,
                              const room *r, float *largest, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    const uint64_t words = tsr_gptq_zero_words(w, span->rows);
    const unsigned per_word = 32u / w->bits, mask = (1u << w->bits) - 1, more = w->zeros_less_one;
    *largest = 0;
    for (uint64_t g = 0; g < w->grid_cols; g++) {
        const char *const from =
            (const char *)span->scales + (g * span->rows + first) * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
        const uint32_t *const zeros = (const uint32_t *)span->zero_points + g * words + first / per_word;
        float *const s = r->scales + g * TILE, *const z = r->zero_points + g * TILE;
        tsr_widen_to_f32(k, (tsr_dtype)w->scale_dtype, from, n, s);
        for (uint64_t i = 0; i < n; i++) {
            if (!(fabsf(s[i]) <= FLT_MAX))
                return report_scale(w, g, span->row + first + i, s[i], err);
            *largest = fmaxf(*largest, fabsf(s[i]));
            z[i] = (float)((zeros[i / per_word] >> shift_of(w, (unsigned)(i % per_word)) & mask) + more);
        }
    }
    return TSR_OK;
}

/* ---- codes ---- */

static uint64_t group_of(const tsr_gptq_span *span, uint64_t col)
{
    if (span->group_index == NULL)
        return col / span->weight->block.cols;
    return span->weight->group_index->dtype == TSR_I64 ? ((const uint64_t *)span->group_index)[col]
                                                       : ((const uint32_t *)span->group_index)[col];
}

/* The codes of outputs [first, first + n) at one input. */
static void take_codes(const tsr_gptq_span *span, uint64_t first, uint64_t n, uint64_t col, uint32_t *codes)
{
    const tsr_weight *const w = span->weight;
    const uint32_t *const words = span->codes;
    const unsigned per_word = 32u / w->bits, mask = (1u << w->bits) - 1;
    if (w->coding == TSR_CODED_GPTQ) {
        const uint32_t *const from = words + col / per_word * span->rows + first;
        const unsigned shift = (unsigned)(col % per_word) * w->bits;
        for (uint64_t i = 0; i < n; i++)
            codes[i] = from[i] >> shift & mask;
        return;
    }
    const uint32_t *const from = words + col * (span->rows / 8) + first / 8;
    for (uint64_t j = 0; j < n / 8; j++) {
        for (unsigned p = 0; p < 8; p++)
            codes[8 * j + p] = from[j] >> shift_of(w, p) & mask;
    }
}

/* Values of `rows` outputs and `cols` inputs, [rows, TILE]. */
static void decode_tile(const tsr_gptq_span *span, uint64_t first, uint64_t rows, uint64_t col, uint64_t cols,
                        const room *r)
{
    for (uint64_t c = 0; c < cols; c++) {
        const uint64_t g = group_of(span, col + c);
        const float *const s = r->scales + g * TILE, *const z = r->zero_points + g * TILE;
        uint32_t codes[TILE];
        take_codes(span, first, rows, col + c, codes);
        for (uint64_t i = 0; i < rows; i++)
            r->tile[i * TILE + c] = ((float)codes[i] - z[i]) * s[i];
    }
}

/* ---- values ---- */

static void narrow(tsr_dtype dtype, const float *x, uint64_t n, void *out)
{
    if (dtype == TSR_F32)
        memcpy(out, x, n * sizeof *x);
    for (uint64_t i = 0; dtype == TSR_BF16 && i < n; i++)
        ((uint16_t *)out)[i] = tsr_bf16_from_f32(x[i]);
    for (uint64_t i = 0; dtype == TSR_F16 && i < n; i++)
        ((uint16_t *)out)[i] = tsr_f16_from_f32(x[i]);
}

static tsr_status check_range(const tsr_gptq_span *span, uint64_t row, uint64_t col, uint64_t n, const float *x,
                              tsr_dtype dtype, float limit, tsr_err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        if (fabsf(x[i]) > limit)
            return tsr_fail(err, TSR_E_VALUE,
                            "'%s': the value at [%llu, %llu] is beyond the range of %s: choose another --dtype, or "
                            "look at its scale",
                            span->weight->data->name, U64(span->row + row), U64(col + i), tsr_dtype_name(dtype));
    }
    return TSR_OK;
}

tsr_status tsr_gptq_decode(const tsr_cpu_kernels *kernels, const tsr_gptq_span *span, tsr_dtype dtype, void *out,
                           void *scratch, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    const room r = divide(w, scratch);
    const size_t width = tsr_dtype_bytes(dtype);
    const float limit = dtype == TSR_F16 ? 65504 : dtype == TSR_BF16 ? 0x1.FEp127f : FLT_MAX;
    for (uint64_t row = 0; row < span->rows; row += TILE) {
        const uint64_t rows = tsr_min_u64(TILE, span->rows - row);
        float largest;
        TSR_TRY(take_groups(kernels, span, row, rows, &r, &largest, err));
        for (uint64_t col = 0; col < w->cols; col += TILE) {
            const uint64_t cols = tsr_min_u64(TILE, w->cols - col);
            decode_tile(span, row, rows, col, cols, &r);
            for (uint64_t i = 0; i < rows; i++) {
                if (largest > limit / 256) /* codes are at most 256 away from their zero point */
                    TSR_TRY(check_range(span, row + i, col, cols, r.tile + i * TILE, dtype, limit, err));
                narrow(dtype, r.tile + i * TILE, cols, (char *)out + ((row + i) * w->cols + col) * width);
            }
        }
    }
    return TSR_OK;
}
