/* Relations between microscaling formats, and to block FP8, that lose nothing: codes are moved, never made anew.
 *
 * A reader finds the same numbers before and after. Where the target cannot hold one of them, the relation is refused,
 * with the place and the number of binades that stand in the way. docs/numerics.md says when each holds. */
#ifndef TSR_QUANTIZE_MOVES_MX_MOVES_H
#define TSR_QUANTIZE_MOVES_MX_MOVES_H

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "quantize/fp8_decode.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_MXFP4_GROUP = 32 };

/* Whole rows of MXFP4 as it is stored. */
typedef struct tsr_mxfp4_rows {
    const tsr_tensor *tensor; /* the codes' tensor, for messages */
    uint64_t row, rows, cols; /* row is for messages only; cols is a multiple of 32 */
    const uint8_t *codes;     /* [rows, cols / 2], the even column in the low nibble */
    const uint8_t *scales;    /* [rows, cols / 32], E8M0 */
    bool lossy;               /* what the target has no code for is rounded to the nearest, where else it is refused */
} tsr_mxfp4_rows;

/* One band of tiles, [rows, block] each (at the right edge less), to e4m3 [rows, cols] and one E8M0 byte a tile:
 * T = the largest scale of a tile - 6, and the element e4m3(value * 2^(scale - T)). `block` is a multiple of 32.
 * Groups of zeros count for T, as in DeepSeek's cast_e2m1fn_to_e4m3fn, unless the others only fit without them.
 * TSR_E_VALUE: a scale is NaN, or a product is no e4m3 value. */
tsr_status tsr_mxfp4_to_fp8(const tsr_mxfp4_rows *band, uint64_t block, uint8_t *codes, uint8_t *tiles,
                            tsr_err *err) TSR_WARN_UNUSED;

/* The scales of groups that hold anything but zeros. Of several tensors that share a global scale (w1 and w3), and of
 * their rows in any order, ranges add up. */
typedef struct tsr_mxfp4_range {
    uint8_t least, largest; /* if `any` */
    bool any;
} tsr_mxfp4_range;

/* Widens *range by these rows. TSR_E_VALUE: a scale is NaN. */
tsr_status tsr_mxfp4_find_range(const tsr_mxfp4_rows *rows, tsr_mxfp4_range *range, tsr_err *err) TSR_WARN_UNUSED;

/* NVFP4's global factor (weight_scale_2) for a range: 2^(largest - 127 - 8), which puts the largest scale to 2^8. 1
 * where there are only zeros. TSR_E_VALUE, naming `tensor`: the range spans more than the 17 binades of e4m3's powers
 * of two, or the factor would be subnormal. */
tsr_status tsr_mxfp4_global(const tsr_tensor *tensor, const tsr_mxfp4_range *range, float *global,
                            tsr_err *err) TSR_WARN_UNUSED;

/* The e4m3 scales of groups of 16, [rows, cols / 16], beside that factor; the codes stay as they are. The rows belong to
 * the range. A group of zeros gets 2^-9. TSR_E_VALUE: a group is outside of the range's window; if the rows are lossy it
 * gets 2^-9, and its codes are to be made anew by tsr_mxfp4_shrink. */
tsr_status tsr_mxfp4_to_nvfp4(const tsr_mxfp4_rows *rows, const tsr_mxfp4_range *range, uint8_t *scales,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Computes again, in `codes` (a copy of rows->codes), the codes of all groups below the range's window: the nearest
 * under the scale 2^-9. Returns true if there was such a group. */
bool tsr_mxfp4_shrink(const tsr_mxfp4_rows *rows, const tsr_mxfp4_range *range, uint8_t *codes);

/* Returns true if E8M0 can store the scale, a power of two in 2^-127 ... 2^127. */
bool tsr_is_e8m0(float scale);

/* Computes the E8M0 scales [rect->rows, cols / 32] of whole rows of block FP8, whose codes stay. Reads only the
 * weight, the position and the scales of `rect`. TSR_E_VALUE: tsr_is_e8m0 rejects a scale. TSR_E_SHAPE: cols, or
 * block.cols if a row has several blocks, is not a multiple of 32. */
tsr_status tsr_fp8_to_mxfp8(const tsr_cpu_kernels *kernels, const tsr_fp8_rect *rect, uint8_t *scales,
                            tsr_err *err) TSR_WARN_UNUSED;

/* The global scale of NVFP4 in the other dialect: f32(1 / global), either way. *exact says whether the way back gives
 * the same bits, so that readers of both find the same numbers: always for powers of two, else mostly not far from it.
 * TSR_E_VALUE, naming `tensor`: not finite and positive, or its reciprocal is not. */
tsr_status tsr_nvfp4_other_global(const tsr_tensor *tensor, float global, float *other, bool *exact,
                                  tsr_err *err) TSR_WARN_UNUSED;

#endif
