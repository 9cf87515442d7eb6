/* Decodes rows of microscaled codes to values. */
#include "quantize/mx_decode.h"

#include "common/float_bits.h"

#include <math.h>
#include <string.h>

/* Scratch: t of each group of a row; values before narrowing to F16. */
typedef struct room {
    float *t, *values;
} room;

static room divide(const tsr_mx_span *span, void *scratch)
{
    room r = {.values = scratch};
    r.t = r.values + span->cols;
    return r;
}

size_t tsr_mx_decode_scratch(uint64_t cols)
{
    return (cols + (cols + 1) / 2) * sizeof(float); /* a group has at least two columns */
}

static tsr_status report_scale(const tsr_mx_span *span, uint64_t row, uint64_t g, tsr_err *err)
{
    const uint64_t groups = span->cols / span->group, at = (span->row + row) * groups + g;
    const uint8_t byte = span->scales[row * groups + g];
    const bool nan = span->scale == TSR_MX_E8M0 || (byte & 0x7F) == 0x7F;
    return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, span->scales_of->name,
                           "the scale at [%llu, %llu], file offset %llu, is %s (0x%02X): not a valid scale; the "
                           "checkpoint is damaged",
                           U64(span->row + row), U64(g), U64(span->scales_of->offset + at), nan ? "NaN" : "negative",
                           byte);
}

/* Checks the scales of a row. `largest` is the largest scale byte; the bytes are ordered like their values. */
static tsr_status check_scales(const tsr_mx_span *span, uint64_t row, uint8_t largest, tsr_err *err)
{
    const uint8_t limit = span->scale == TSR_MX_E8M0 ? 254 : 0x7E;
    const uint8_t *const scales = span->scales + row * (span->cols / span->group);
    uint64_t g = 0;
    if (largest <= limit)
        return TSR_OK;
    while (scales[g] <= limit)
        g++;
    return report_scale(span, row, g, err);
}

static tsr_status report_code(const tsr_mx_span *span, uint64_t row, tsr_err *err)
{
    const uint8_t *const codes = span->codes + row * span->cols;
    uint64_t col = 0;
    while ((codes[col] & 0x7F) != 0x7F)
        col++;
    return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, span->codes_of->name,
                           "code NaN at [%llu, %llu], file offset %llu: the checkpoint is damaged",
                           U64(span->row + row), U64(col),
                           U64(span->codes_of->offset + (span->row + row) * span->cols + col));
}

static float value_of(const tsr_mx_span *span, uint64_t row, uint64_t col)
{
    const uint8_t *const codes = span->codes + row * tsr_mx_code_bytes(span->element, span->cols);
    return span->element == TSR_MX_E4M3 ? tsr_e4m3_to_f32(codes[col]) : tsr_e2m1_to_f32(codes[col / 2] >> col % 2 * 4);
}

static void take_scales(const tsr_cpu_kernels *k, const tsr_mx_span *span, const uint8_t *scales, size_t n, float *t)
{
    if (span->scale == TSR_MX_E8M0)
        k->values_e8m0(scales, n, t);
    else
        k->values_e4m3(scales, n, span->global, span->scale == TSR_MX_E4M3_DIVIDED, t);
}

/* Returns the magnitude from which values are out of range: half way between the largest number and the next power of
 * two, which rounds to infinity. */
static float limit_of(tsr_dtype dtype)
{
    return dtype == TSR_F16 ? 65520 : dtype == TSR_BF16 ? 0x1.FFp127f : INFINITY;
}

/* Reports the first value of a row that rounds to infinity in `dtype`. */
static tsr_status check_values(const tsr_mx_span *span, uint64_t row, const float *t, tsr_dtype dtype, tsr_err *err)
{
    for (uint64_t col = 0; col < span->cols; col++) {
        const float v = value_of(span, row, col);
        if (isnan(v) || fabsf(v * t[col / span->group]) < limit_of(dtype))
            continue;
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, span->codes_of->name,
                               "the value at [%llu, %llu] is beyond the range of %s: choose another --dtype, or check "
                               "its scale in '%s'",
                               U64(span->row + row), U64(col), tsr_dtype_name(dtype), span->scales_of->name);
    }
    return TSR_OK;
}

/* Decodes e4m3 codes. Returns true if a code is NaN. */
static bool decode_e4m3(const tsr_cpu_kernels *k, const tsr_mx_span *span, const uint8_t *codes, const uint8_t *scales,
                        const float *t, tsr_dtype dtype, void *out)
{
    const uint64_t cols = span->cols;
    if (dtype == TSR_BF16 && span->scale == TSR_MX_E8M0 && span->group == 32)
        return k->decode_mxfp8_bf16(codes, cols, scales, out);
    if (dtype == TSR_BF16)
        return k->decode_e4m3_bf16(codes, 1, cols, cols, span->group, t, out, cols);
    if (dtype == TSR_F16)
        return k->decode_e4m3_f16(codes, 1, cols, cols, span->group, t, out, cols);
    return k->decode_e4m3_f32(codes, 1, cols, cols, span->group, t, out, cols);
}

static void decode_e2m1(const tsr_cpu_kernels *k, const tsr_mx_span *span, const uint8_t *codes, const room *r,
                        tsr_dtype dtype, void *out)
{
    if (dtype == TSR_BF16) {
        k->decode_e2m1_bf16(codes, span->cols, span->group, r->t, out);
        return;
    }
    k->decode_e2m1_f32(codes, span->cols, span->group, r->t, dtype == TSR_F32 ? out : r->values);
    if (dtype == TSR_F16)
        k->narrow_f16(r->values, span->cols, out);
}

tsr_status tsr_mx_decode(const tsr_cpu_kernels *kernels, const tsr_mx_span *span, tsr_dtype dtype, void *out,
                         void *scratch, tsr_err *err)
{
    if (span->group == 0 || span->group % 2 != 0 || span->cols % span->group != 0)
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_SHAPE, span->codes_of->name,
                               "%llu columns are not a multiple of the group size %llu", U64(span->cols),
                               U64(span->group));
    if (span->scale != TSR_MX_E8M0 && !(isfinite(span->global) && span->global > 0))
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, span->scales_of->name,
                               "its global scale is %g: not a valid scale", (double)span->global);
    const uint64_t groups = span->cols / span->group, code_bytes = tsr_mx_code_bytes(span->element, span->cols);
    const room r = divide(span, scratch);
    for (uint64_t row = 0; row < span->rows; row++) {
        const uint8_t *const codes = span->codes + row * code_bytes, *const scales = span->scales + row * groups;
        char *const y = (char *)out + row * span->cols * tsr_dtype_bytes(dtype);
        const uint8_t largest = kernels->largest_byte(scales, groups);
        float most;
        TSR_TRY(check_scales(span, row, largest, err));
        take_scales(kernels, span, scales, groups, r.t);
        take_scales(kernels, span, &largest, 1, &most);
        if (!(tsr_mx_largest(span->element) * most < limit_of(dtype)))
            TSR_TRY(check_values(span, row, r.t, dtype, err));
        if (span->element == TSR_MX_E2M1)
            decode_e2m1(kernels, span, codes, &r, dtype, y);
        else if (decode_e4m3(kernels, span, codes, scales, r.t, dtype, y))
            return report_code(span, row, err);
    }
    return TSR_OK;
}
