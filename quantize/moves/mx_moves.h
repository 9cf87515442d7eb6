/* Exact conversions between microscaling formats, and to block FP8: codes are moved, never quantized again.
 *
 * Both decode to the same numbers. If the target cannot represent one, the conversion fails, with the position and the
 * number of binades out of range. docs/numerics.md has the conditions of each. */
#pragma once

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "quantize/fp8_decode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_MXFP4_GROUP = 32 };

/* Whole rows of stored MXFP4. */
typedef struct tsr_mxfp4_rows {
    const tsr_tensor *tensor; /* the codes' tensor, for messages */
    uint64_t row, rows, cols; /* row is only for messages; cols is a multiple of 32 */
    const uint8_t *codes;     /* [rows, cols / 2], the even column in the low nibble */
    const uint8_t *scales;    /* [rows, cols / 32], E8M0 */
    bool lossy;               /* round values without a code to the nearest code instead of failing */
} tsr_mxfp4_rows;

/* Converts one band of tiles, [rows, block] each (less at the right edge), to e4m3 [rows, cols] and one E8M0 byte per
 * tile. T is the largest scale of a tile - 6, and an element becomes e4m3(value * 2^(scale - T)). `block` is a multiple
 * of 32. Groups of zeros count for T, as in DeepSeek's cast_e2m1fn_to_e4m3fn, unless the others only fit without them.
 * TSR_E_VALUE: a scale is NaN, or a product is not an e4m3 value. */
tsr_status tsr_mxfp4_to_fp8(const tsr_mxfp4_rows *band, uint64_t block, uint8_t *codes, uint8_t *tiles, tsr_err *err);

/* Returns NVFP4's global factor (weight_scale_2), 2^(largest - 127 - 8), which maps the largest scale to 2^8. `largest`
 * is that of the groups that are not all zeros, over all tensors that share the factor (w1 and w3), and at least 9. */
float tsr_mxfp4_global(uint8_t largest);

/* Computes the e4m3 scales of groups of 16, [rows, cols / 16], for that factor; the codes stay unchanged. A group of
 * zeros gets 2^-9. TSR_E_VALUE: a scale is NaN, above `largest`, or more than 17 binades below it, e4m3's powers of
 * two. If the rows are lossy it gets 2^-9, and tsr_mxfp4_shrink must compute its codes again. */
tsr_status tsr_mxfp4_to_nvfp4(const tsr_mxfp4_rows *rows, uint8_t largest, uint8_t *scales, tsr_err *err);

/* Computes again, in `codes` (a copy of rows->codes), the codes of all groups more than 17 binades below: the nearest
 * under the scale 2^-9. */
void tsr_mxfp4_shrink(const tsr_mxfp4_rows *rows, uint8_t largest, uint8_t *codes);

/* Returns true if E8M0 can store the scale, a power of two in 2^-127 ... 2^127. */
bool tsr_is_e8m0(float scale);

/* Computes the E8M0 scales [rect->rows, cols / 32] of whole rows of block FP8, whose codes stay. Reads only the
 * weight, the position and the scales of `rect`. TSR_E_VALUE: tsr_is_e8m0 rejects a scale. TSR_E_SHAPE: cols, or
 * block.cols if a row has several blocks, is not a multiple of 32. */
tsr_status tsr_fp8_to_mxfp8(const tsr_cpu_kernels *kernels, const tsr_fp8_rect *rect, uint8_t *scales, tsr_err *err);

/* Converts the global scale of NVFP4 to the other dialect: f32(1 / global), in both directions. *exact is set if
 * converting back gives the same bits, so that both decode to the same numbers: always for powers of two, for
 * other values usually. TSR_E_VALUE, with `tensor`: the scale or its reciprocal is not finite and positive. */
tsr_status tsr_nvfp4_other_global(const tsr_tensor *tensor, float global, float *other, bool *exact, tsr_err *err);
