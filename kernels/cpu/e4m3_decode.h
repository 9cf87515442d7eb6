/* Declares kernels of the CPU that decode e4m3 codes in blocks.
 *
 * As in block_fp8.h, elements are row-major, `rows` x `cols`, with rows `ld` elements apart. A band is one row of
 * blocks, each `block_cols` wide except the last. The functions allocate nothing, cannot fail and are thread-safe.
 * Source and destination must not overlap. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* y = value(code) * scales[i] for block i: the IEEE FP32 product, then one rounding to nearest even. scales[i] has to
 * be finite and not negative. A NaN code gives the quiet NaN of the target (0x7FC0, 0x7E00 or 0x7FC00000) with the
 * code's sign, no other code gives NaN. Values beyond the target's range become infinite, as in IEEE rounding.
 * Subnormals are kept, in codes and in results. Returns true if any code is NaN. */
typedef bool tsr_decode_e4m3_bf16_fn(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                                     const float *scales, uint16_t *y, size_t ld);
typedef bool tsr_decode_e4m3_f16_fn(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                                    const float *scales, uint16_t *y, size_t ld);
typedef bool tsr_decode_e4m3_f32_fn(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                                    const float *scales, float *y, size_t ld);
