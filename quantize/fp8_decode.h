/* Decodes block FP8: y = value(code) * scale, one FP32 product, rounded once to the target.
 *
 * Equal to DeepSeek-V3's inference/kernel.py (weight_dequant: FP32 product, stored in the target's dtype). */
#pragma once

#include "common/status.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

/* A rectangle of a scaled weight, as read from the file. It may begin and end inside a block. */
typedef struct tsr_fp8_rect {
    const tsr_weight *weight;
    uint64_t matrix, row, col; /* position of the first element */
    uint64_t rows, cols;
    const uint8_t *codes; /* [rows, cols], rows `ld_codes` apart */
    uint64_t ld_codes;
    const void *scales; /* whole rows of the stored grid, from the one that contains `row`: see tsr_fp8_rect_grid */
} tsr_fp8_rect;

/* Computes the rows [*first, *first + *rows) of one matrix's grid that the rectangle needs. */
void tsr_fp8_rect_grid(const tsr_fp8_rect *rect, uint64_t *first, uint64_t *rows);

/* Returns the bytes of scratch for decoding any rectangle of this weight. */
size_t tsr_fp8_decode_scratch(const tsr_weight *weight);

/* Decodes to `dtype` (BF16, F16 or F32), with rows `ld` elements apart. Thread-safe. TSR_E_VALUE, with its position: a
 * code is NaN; a scale is NaN (E8M0 0xFF too), infinite or negative; a value exceeds the target's range. */
tsr_status tsr_fp8_decode(const tsr_cpu_kernels *kernels, const tsr_fp8_rect *rect, tsr_dtype dtype, void *out,
                          uint64_t ld, void *scratch, tsr_err *err);

/* Checks `n` scales, widened to FP32, like tsr_fp8_decode. They are in row `row` of the grid of `matrix`, from column
 * `col` on. */
tsr_status tsr_check_scales(const tsr_weight *weight, uint64_t matrix, uint64_t row, uint64_t col, const float *scales,
                            uint64_t n, tsr_err *err);

/* Widens `n` numbers of F32, BF16, F16 or F8_E8M0 to FP32, exactly. NaN stays NaN. Thread-safe; cannot fail. */
void tsr_widen_to_f32(const tsr_cpu_kernels *kernels, tsr_dtype dtype, const void *x, size_t n, float *out);
