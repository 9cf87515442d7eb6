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

/* The range of scales of groups that are not all zeros. It can be extended over several tensors that share a global
 * scale (w1 and w3), and over their rows in any order. */
typedef struct tsr_mxfp4_range {
    uint8_t least, largest; /* if `any` */
    bool any;
} tsr_mxfp4_range;

/* Extends *range by these rows. TSR_E_VALUE: a scale is NaN. */
tsr_status tsr_mxfp4_find_range(const tsr_mxfp4_rows *rows, tsr_mxfp4_range *range, tsr_err *err);

/* Computes NVFP4's global factor (weight_scale_2) for a range: 2^(largest - 127 - 8), which maps the largest scale to
 * 2^8; 1 if there are only zeros. TSR_E_VALUE, with `tensor`: the range spans more than the 17 binades of e4m3's powers
 * of two, or the factor would be subnormal. */
tsr_status tsr_mxfp4_global(const tsr_tensor *tensor, const tsr_mxfp4_range *range, float *global, tsr_err *err);

/* Computes the e4m3 scales of groups of 16, [rows, cols / 16], for that factor; the codes stay unchanged. The rows must
 * be included in the range. A group of zeros gets 2^-9. TSR_E_VALUE: a group is outside of the range's window. If the
 * rows are lossy it gets 2^-9, and tsr_mxfp4_shrink must compute its codes again. */
tsr_status tsr_mxfp4_to_nvfp4(const tsr_mxfp4_rows *rows, const tsr_mxfp4_range *range, uint8_t *scales, tsr_err *err);

/* Computes again, in `codes` (a copy of rows->codes), the codes of all groups below the range's window: the nearest
 * under the scale 2^-9. Returns true if there was such a group. */
bool tsr_mxfp4_shrink(const tsr_mxfp4_rows *rows, const tsr_mxfp4_range *range, uint8_t *codes);

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
