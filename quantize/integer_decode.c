/* Decodes rows of codes with scales and zero points to values. */
#include "quantize/integer_decode.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Scratch: scales and zero points of one row; values before narrowing to F16; codes. */
typedef struct room {
    float *scales, *zero_points, *values;
    int8_t *codes;
} room;

static room divide(const tsr_weight *w, void *scratch)
{
    room r = {.scales = scratch};
    r.zero_points = r.scales + w->grid_cols;
    r.values = r.zero_points + w->grid_cols;
    r.codes = (int8_t *)(r.values + w->cols);
    return r;
}

size_t tsr_int_decode_scratch(const tsr_weight *w)
{
    return (2 * w->grid_cols + w->cols) * sizeof(float) + w->cols;
}

/* Returns the stored codes of a row. */
static const uint8_t *row_of(const tsr_int_span *span, uint64_t row)
{
    const tsr_tensor *const data = span->weight->data;
    return (const uint8_t *)span->codes + row * data->shape[1] * tsr_dtype_bytes((tsr_dtype)data->dtype);
}

static void unpack_nibbles(const uint8_t *from, uint64_t cols, int8_t *codes)
{
    for (uint64_t c = 0; c < cols; c += 2) {
        const int byte = from[c / 2];
        codes[c] = (int8_t)((byte & 7) - (byte & 8));
        codes[c + 1] = (int8_t)((byte >> 4 & 7) - (byte >> 4 & 8));
    }
}

static void unpack_row(const tsr_cpu_kernels *k, const tsr_int_span *span, uint64_t row, int8_t *codes)
{
    const tsr_weight *const w = span->weight;
    const uint8_t *const from = row_of(span, row);
    if (w->coding == TSR_CODED_INT8)
        memcpy(codes, from, w->cols);
    else if (w->coding == TSR_CODED_NIBBLES)
        unpack_nibbles(from, w->cols, codes);
    else if (w->bits == 4)
        k->unpack_int4(from, w->cols, codes);
    else
        k->unpack_int8(from, w->cols, codes);
}

void tsr_int_unpack(const tsr_cpu_kernels *kernels, const tsr_int_span *span, int8_t *codes)
{
    for (uint64_t r = 0; r < span->rows; r++)
        unpack_row(kernels, span, r, codes + r * span->weight->cols);
}

void tsr_int_pack(const tsr_cpu_kernels *kernels, unsigned bits, const int8_t *codes, uint64_t n, uint8_t *words)
{
    if (bits == 8)
        kernels->pack_int8(codes, n, words);
    else
        kernels->pack_int4(codes, n, words);
}

static void take_zero_points(const tsr_int_span *span, uint64_t row, float *zeros)
{
    const tsr_weight *const w = span->weight;
    const uint64_t groups = w->grid_cols, above = w->grid_rows == w->rows ? row : 0; /* or one scale for all rows */
    if (w->coding == TSR_CODED_INT8) {
        const int8_t *const from = (const int8_t *)span->zero_points + above * groups;
        for (uint64_t g = 0; g < groups; g++)
            zeros[g] = (float)from[g];
        return;
    }
    const unsigned per_word = 32u / w->bits, shift = (unsigned)(above % per_word) * w->bits, mask = (1u << w->bits) - 1;
    const uint32_t *const from = (const uint32_t *)span->zero_points + above / per_word * groups;
    for (uint64_t g = 0; g < groups; g++)
        zeros[g] = (float)((int)(from[g] >> shift & mask) - (1 << (w->bits - 1)));
}

static tsr_status take_scales(const tsr_cpu_kernels *k, const tsr_int_span *span, uint64_t row, const room *r,
                              float *largest, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    const uint64_t above = w->grid_rows == w->rows ? row : 0, grid_row = w->grid_rows == w->rows ? span->row + row : 0;
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    tsr_widen_to_f32(k, (tsr_dtype)w->scale_dtype, (const char *)span->scales + above * w->grid_cols * width,
                     w->grid_cols, r->scales);
    const uint32_t bits = k->largest_bits(r->scales, w->grid_cols);
    *largest =
        /* larger bits have a sign, or are NaN or Inf, which are rejected */
        bits < TSR_FP32_INF_BITS ? tsr_f32_from_bits(bits) : FLT_MAX;
    if (bits >= TSR_FP32_INF_BITS)
        TSR_TRY(tsr_check_scales(w, 0, grid_row, 0, r->scales, w->grid_cols, err));
    if (span->zero_points != NULL)
        take_zero_points(span, row, r->zero_points);
    return TSR_OK;
}

static uint64_t group_of(const tsr_int_span *span, uint64_t col)
{
    if (span->group_index == NULL)
        return col / span->weight->block.cols;
    return span->weight->group_index->dtype == TSR_I64 ? ((const uint64_t *)span->group_index)[col]
                                                       : ((const uint32_t *)span->group_index)[col];
}

static float zero_of(const tsr_int_span *span, const room *r, uint64_t g)
{
    return span->zero_points == NULL ? 0 : r->zero_points[g];
}

static float value_of(const tsr_int_span *span, const room *r, uint64_t col)
{
    const uint64_t g = group_of(span, col);
    return ((float)r->codes[col] - zero_of(span, r, g)) * r->scales[g];
}

static float largest_of(tsr_dtype dtype)
{
    return dtype == TSR_F16 ? 65504 : dtype == TSR_BF16 ? 0x1.FEp127f : 0x1.FFFFFEp127f;
}

/* Reports the first value of an unpacked row that exceeds the target's range. */
static tsr_status check_values(const tsr_int_span *span, uint64_t row, const room *r, tsr_dtype dtype, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    for (uint64_t c = 0; c < w->cols; c++) {
        if (!(fabsf(value_of(span, r, c)) <= largest_of(dtype)))
            return tsr_fail_tensor(
                err, TSR_ERROR_NONE, TSR_E_VALUE, w->data->name,
                "the value at [%llu, %llu] is beyond the range of %s: choose another --dtype, or check its scale",
                U64(span->row + row), U64(c), tsr_dtype_name(dtype));
    }
    return TSR_OK;
}

/* Decodes columns with any group order, one by one. */
static void decode_reordered(const tsr_cpu_kernels *k, const tsr_int_span *span, const room *r, tsr_dtype dtype,
                             void *out)
{
    const uint64_t cols = span->weight->cols;
    float *const y = dtype == TSR_F32 ? out : r->values;
    for (uint64_t c = 0; c < cols; c++)
        y[c] = value_of(span, r, c);
    if (dtype == TSR_BF16)
        k->narrow_bf16(y, cols, out);
    else if (dtype == TSR_F16)
        k->narrow_f16(y, cols, out);
}

/* An unpacked row. */
static void decode_codes(const tsr_cpu_kernels *k, const tsr_int_span *span, const room *r, tsr_dtype dtype, void *out)
{
    const tsr_weight *const w = span->weight;
    for (uint64_t g = 0; g < w->grid_cols; g++) {
        const uint64_t first = g * w->block.cols, n = tsr_min_u64(w->block.cols, w->cols - first);
        const float zero = zero_of(span, r, g);
        if (dtype == TSR_BF16) {
            k->decode_int_bf16(r->codes + first, n, zero, r->scales[g], (uint16_t *)out + first);
            continue;
        }
        float *const y = dtype == TSR_F32 ? out : r->values;
        k->decode_int_f32(r->codes + first, n, zero, r->scales[g], y + first);
    }
    if (dtype == TSR_F16)
        k->narrow_f16(r->values, w->cols, out);
}

void tsr_int4_values(const tsr_cpu_kernels *kernels, const uint8_t *packed, uint64_t cols, uint64_t group,
                     const float *scales, const float *zeros, tsr_dtype dtype, void *out)
{
    if (dtype == TSR_BF16)
        kernels->decode_int4_bf16(packed, cols, group, scales, zeros, out);
    else if (dtype == TSR_F16)
        kernels->decode_int4_f16(packed, cols, group, scales, zeros, out);
    else
        kernels->decode_int4_f32(packed, cols, group, scales, zeros, out);
}

tsr_status tsr_int_decode(const tsr_cpu_kernels *kernels, const tsr_int_span *span, tsr_dtype dtype, void *out,
                          void *scratch, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    const room r = divide(w, scratch);
    const bool nibbles = w->coding == TSR_CODED_PACKED && w->bits == 4 && span->group_index == NULL &&
                         (w->block.cols % 2 == 0 || w->grid_cols == 1);
    for (uint64_t row = 0; row < span->rows; row++) {
        char *const y = (char *)out + row * w->cols * tsr_dtype_bytes(dtype);
        float largest;
        TSR_TRY(take_scales(kernels, span, row, &r, &largest, err));
        const bool safe = largest <= largest_of(dtype) / 256; /* codes differ from their zero point by at most 255 */
        if (!nibbles || !safe)
            unpack_row(kernels, span, row, r.codes);
        if (!safe)
            TSR_TRY(check_values(span, row, &r, dtype, err));
        if (nibbles)
            tsr_int4_values(kernels, row_of(span, row), w->cols, w->block.cols, r.scales,
                            span->zero_points == NULL ? NULL : r.zero_points, dtype, y);
        else if (span->group_index != NULL)
            decode_reordered(kernels, span, &r, dtype, y);
        else
            decode_codes(kernels, span, &r, dtype, y);
    }
    return TSR_OK;
}
