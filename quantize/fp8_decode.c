/* Decodes blocks of codes with their scales to values. */
#include "quantize/fp8_decode.h"

#include "common/checked.h"
#include "common/float_bits.h"

#include <float.h>
#include <string.h>

void tsr_widen_to_f32(const tsr_cpu_kernels *kernels, tsr_dtype dtype, const void *x, size_t n, float *out)
{
    switch (dtype) {
    case TSR_F8_E8M0:
        for (size_t i = 0; i < n; i++)
            out[i] = tsr_f32_from_e8m0(((const uint8_t *)x)[i]);
        break;
    case TSR_BF16:
        kernels->widen_bf16(x, n, out);
        break;
    case TSR_F16:
        kernels->widen_f16(x, n, out);
        break;
    default:
        memcpy(out, x, n * sizeof *out);
    }
}

void tsr_fp8_rect_grid(const tsr_fp8_rect *rect, uint64_t *first, uint64_t *rows)
{
    const uint64_t height = rect->weight->block.rows;
    *first = rect->row / height;
    *rows = tsr_ceil_div(rect->row + rect->rows, height) - *first;
}

size_t tsr_fp8_decode_scratch(const tsr_weight *weight)
{
    return tsr_ceil_div(weight->cols, weight->block.cols) * sizeof(float);
}

tsr_status tsr_check_scales(const tsr_weight *w, uint64_t matrix, uint64_t row, uint64_t col, const float *scales,
                            uint64_t n, tsr_err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        if (scales[i] >= 0 && scales[i] <= FLT_MAX)
            continue;
        const uint64_t at = (matrix * w->grid_rows + row) * w->grid_cols + col + i;
        return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, w->scale->name,
                               "the scale at [%llu, %llu] of matrix %llu is %g, file offset %llu: not a valid scale; "
                               "the checkpoint is damaged",
                               U64(row), U64(col + i), U64(matrix), (double)scales[i],
                               U64(w->scale->offset + at * tsr_dtype_bytes((tsr_dtype)w->scale_dtype)));
    }
    return TSR_OK;
}

/* Widens and checks the scales of blocks [first, first + n) in one row of the grid. */
static tsr_status take_scales(const tsr_cpu_kernels *kernels, const tsr_fp8_rect *rect, uint64_t grid_row,
                              uint64_t first, uint64_t n, float *out, tsr_err *err)
{
    const tsr_weight *const w = rect->weight;
    const uint64_t above = grid_row - rect->row / w->block.rows;
    tsr_widen_to_f32(kernels, (tsr_dtype)w->scale_dtype,
                     (const char *)rect->scales +
                         (above * w->grid_cols + first) * tsr_dtype_bytes((tsr_dtype)w->scale_dtype),
                     n, out);
    return tsr_check_scales(w, rect->matrix, grid_row, first, out, n, err);
}

static tsr_status report_nan(const tsr_fp8_rect *rect, uint64_t row, uint64_t rows, tsr_err *err)
{
    const tsr_weight *const w = rect->weight;
    for (uint64_t r = row; r < row + rows; r++) {
        for (uint64_t c = 0; c < rect->cols; c++) {
            if ((rect->codes[r * rect->ld_codes + c] & 0x7F) != 0x7F)
                continue;
            const uint64_t at = (rect->matrix * w->rows + rect->row + r) * w->cols + rect->col + c;
            return tsr_fail_tensor(
                err, TSR_ERROR_DAMAGED, TSR_E_VALUE, w->data->name,
                "code NaN at [%llu, %llu] of matrix %llu, file offset %llu: the checkpoint is damaged",
                U64(rect->row + r), U64(rect->col + c), U64(rect->matrix), U64(w->data->offset + at));
        }
    }
    return TSR_OK;
}

/* Returns true if a product with one of the scales may exceed the target's range. Only then are the results checked. */
static bool may_overflow(tsr_dtype dtype, const float *scales, uint64_t n)
{
    const float largest = dtype == TSR_F16 ? 65504 : 0x1.FEp127f; /* for BF16; slightly less than FP32's */
    bool may = false;
    for (uint64_t i = 0; i < n; i++)
        may = may || scales[i] > largest / TSR_E4M3_MAX;
    return may;
}

static bool is_infinite(tsr_dtype dtype, const char *y)
{
    uint32_t bits = 0;
    memcpy(&bits, y, tsr_dtype_bytes(dtype));
    return dtype == TSR_F16    ? (bits & 0x7FFF) == 0x7C00
           : dtype == TSR_BF16 ? (bits & 0x7FFF) == 0x7F80
                               : (bits & 0x7FFFFFFF) == TSR_FP32_INF_BITS;
}

/* Reports the first infinite value among rows [row, row + rows), decoded to `y`. Returns TSR_OK if there is none. */
static tsr_status report_overflow(const tsr_fp8_rect *rect, uint64_t row, uint64_t rows, tsr_dtype dtype, const char *y,
                                  uint64_t ld, tsr_err *err)
{
    const tsr_weight *const w = rect->weight;
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t c = 0; c < rect->cols; c++) {
            if (is_infinite(dtype, y + (r * ld + c) * tsr_dtype_bytes(dtype)))
                return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, w->data->name,
                                       "the value at [%llu, %llu] of matrix %llu is beyond the range of %s: choose "
                                       "another --dtype, or check its scale",
                                       U64(rect->row + row + r), U64(rect->col + c), U64(rect->matrix),
                                       tsr_dtype_name(dtype));
        }
    }
    return TSR_OK;
}

/* Decodes a band. Returns true if a code is NaN. */
static bool decode_band(const tsr_cpu_kernels *k, tsr_dtype dtype, const uint8_t *codes, uint64_t rows, uint64_t cols,
                        uint64_t ld_codes, uint64_t block_cols, const float *scales, char *out, uint64_t ld)
{
    if (dtype == TSR_BF16)
        return k->decode_e4m3_bf16(codes, rows, cols, ld_codes, block_cols, scales, (uint16_t *)out, ld);
    if (dtype == TSR_F16)
        return k->decode_e4m3_f16(codes, rows, cols, ld_codes, block_cols, scales, (uint16_t *)out, ld);
    return k->decode_e4m3_f32(codes, rows, cols, ld_codes, block_cols, scales, (float *)out, ld);
}

tsr_status tsr_fp8_decode(const tsr_cpu_kernels *kernels, const tsr_fp8_rect *rect, tsr_dtype dtype, void *out,
                          uint64_t ld, void *scratch, tsr_err *err)
{
    const tsr_weight *const w = rect->weight;
    const size_t width = tsr_dtype_bytes(dtype);
    const uint64_t first = rect->col / w->block.cols;
    const uint64_t n = rect->cols == 0 ? 0 : (rect->col + rect->cols - 1) / w->block.cols - first + 1;
    /* A rectangle that begins inside a block has a short first block, which is passed to the kernel separately. */
    const uint64_t head =
        rect->col % w->block.cols == 0 ? 0 : tsr_min_u64(rect->cols, w->block.cols - rect->col % w->block.cols);
    float *const scales = scratch;
    for (uint64_t row = 0; row < rect->rows;) {
        const uint64_t grid_row = (rect->row + row) / w->block.rows;
        const uint64_t rows = tsr_min_u64(rect->rows - row, (grid_row + 1) * w->block.rows - rect->row - row);
        const uint8_t *const codes = rect->codes + row * rect->ld_codes;
        char *const to = (char *)out + row * ld * width;
        TSR_TRY(take_scales(kernels, rect, grid_row, first, n, scales, err));
        bool nan = head > 0 && decode_band(kernels, dtype, codes, rows, head, rect->ld_codes, head, scales, to, ld);
        nan |= decode_band(kernels, dtype, codes + head, rows, rect->cols - head, rect->ld_codes, w->block.cols,
                           scales + (head > 0), to + head * width, ld);
        if (nan)
            return report_nan(rect, row, rows, err);
        if (may_overflow(dtype, scales, n))
            TSR_TRY(report_overflow(rect, row, rows, dtype, to, ld, err));
        row += rows;
    }
    return TSR_OK;
}
