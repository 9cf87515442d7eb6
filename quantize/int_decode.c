/* Decodes rows of codes with scales and zero points to values. */
#include "quantize/int_decode.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <math.h>
#include <string.h>

/* Scratch: scales and zero points of one row; values before they are narrowed to F16; codes. */
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

static void unpack_row(const tsr_cpu_kernels *k, const tsr_int_span *span, uint64_t row, int8_t *codes)
{
    const tsr_weight *const w = span->weight;
    const uint64_t pitch = w->data->shape[1] * tsr_dtype_bytes((tsr_dtype)w->data->dtype);
    const uint8_t *const from = (const uint8_t *)span->codes + row * pitch;
    if (w->coding == TSR_CODED_INT8)
        memcpy(codes, from, w->cols);
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

static float zero_point(const tsr_int_span *span, uint64_t row, uint64_t group)
{
    const tsr_weight *const w = span->weight;
    if (span->zero_points == NULL)
        return 0;
    if (w->coding == TSR_CODED_INT8) /* one for all rows, as the scale is */
        return (float)((const int8_t *)span->zero_points)[(w->grid_rows == w->rows ? row : 0) * w->grid_cols + group];
    const uint64_t per_word = 32 / w->bits;
    const uint32_t word = ((const uint32_t *)span->zero_points)[row / per_word * w->grid_cols + group];
    return (float)(word >> row % per_word * w->bits & ((1u << w->bits) - 1)) - (float)(1u << (w->bits - 1));
}

static tsr_status take_scales(const tsr_cpu_kernels *k, const tsr_int_span *span, uint64_t row, const room *r,
                              tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    const uint64_t above = w->grid_rows == w->rows ? row : 0, grid_row = w->grid_rows == w->rows ? span->row + row : 0;
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    tsr_widen_to_f32(k, (tsr_dtype)w->scale_dtype, (const char *)span->scales + above * w->grid_cols * width,
                     w->grid_cols, r->scales);
    TSR_TRY(tsr_check_scales(w, 0, grid_row, 0, r->scales, w->grid_cols, err));
    for (uint64_t g = 0; g < w->grid_cols; g++)
        r->zero_points[g] = zero_point(span, row, g);
    return TSR_OK;
}

static uint64_t group_of(const tsr_int_span *span, uint64_t col)
{
    if (span->group_index == NULL)
        return col / span->weight->block.cols;
    return span->weight->group_index->dtype == TSR_I64 ? ((const uint64_t *)span->group_index)[col]
                                                       : ((const uint32_t *)span->group_index)[col];
}

static float value_of(const tsr_int_span *span, const room *r, uint64_t col)
{
    const uint64_t g = group_of(span, col);
    return ((float)r->codes[col] - r->zero_points[g]) * r->scales[g];
}

/* Checks that no value can be beyond the target's range: codes are at most 255 away from their zero point. */
static tsr_status check_range(const tsr_int_span *span, uint64_t row, const room *r, tsr_dtype dtype, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    const float most = dtype == TSR_F16 ? 65504 : dtype == TSR_BF16 ? 0x1.FEp127f : 0x1.FFFFFEp127f;
    float largest = 0;
    for (uint64_t g = 0; g < w->grid_cols; g++)
        largest = fmaxf(largest, r->scales[g]);
    for (uint64_t c = 0; largest > most / 256 && c < w->cols; c++) {
        if (!(fabsf(value_of(span, r, c)) <= most))
            return tsr_fail(err, TSR_E_VALUE,
                            "'%s': the value at [%llu, %llu] is beyond the range of %s: choose another --dtype, or "
                            "look at its scale",
                            w->data->name, U64(span->row + row), U64(c), tsr_dtype_name(dtype));
    }
    return TSR_OK;
}

/* Columns in any order of groups, one by one. */
static void decode_reordered(const tsr_int_span *span, const room *r, tsr_dtype dtype, char *out)
{
    for (uint64_t c = 0; c < span->weight->cols; c++) {
        const float x = value_of(span, r, c);
        if (dtype == TSR_F32)
            ((float *)out)[c] = x;
        else
            ((uint16_t *)out)[c] = dtype == TSR_BF16 ? tsr_bf16_from_f32(x) : tsr_f16_from_f32(x);
    }
}

static void decode_row(const tsr_cpu_kernels *k, const tsr_weight *w, const room *r, tsr_dtype dtype, char *out)
{
    for (uint64_t g = 0; g < w->grid_cols; g++) {
        const uint64_t first = g * w->block.cols, n = tsr_min_u64(w->block.cols, w->cols - first);
        if (dtype == TSR_BF16) {
            k->decode_int_bf16(r->codes + first, n, r->zero_points[g], r->scales[g], (uint16_t *)out + first);
            continue;
        }
        float *const y = dtype == TSR_F32 ? (float *)out : r->values;
        k->decode_int_f32(r->codes + first, n, r->zero_points[g], r->scales[g], y + first);
    }
    for (uint64_t c = 0; dtype == TSR_F16 && c < w->cols; c++)
        ((uint16_t *)out)[c] = tsr_f16_from_f32(r->values[c]);
}

tsr_status tsr_int_decode(const tsr_cpu_kernels *kernels, const tsr_int_span *span, tsr_dtype dtype, void *out,
                          void *scratch, tsr_err *err)
{
    const tsr_weight *const w = span->weight;
    const room r = divide(w, scratch);
    for (uint64_t row = 0; row < span->rows; row++) {
        unpack_row(kernels, span, row, r.codes);
        TSR_TRY(take_scales(kernels, span, row, &r, err));
        TSR_TRY(check_range(span, row, &r, dtype, err));
        char *const to = (char *)out + row * w->cols * tsr_dtype_bytes(dtype);
        if (span->group_index != NULL)
            decode_reordered(span, &r, dtype, to);
        else
            decode_row(kernels, w, &r, dtype, to);
    }
    return TSR_OK;
}
