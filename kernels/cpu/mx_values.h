/* Declares kernels that decode the codes of mx_codes.h.
 *
 * The functions allocate nothing, cannot fail and are thread-safe; every variant gives the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* y = value(code) * t[i] for the codes of group i: the IEEE FP32 product, then one rounding to nearest even. t[i] is
 * finite and not negative. Code 8 gives -0. Values beyond the target's range become infinite. `group` is even. */
typedef void tsr_decode_e2m1_bf16_fn(const uint8_t *packed, size_t n, size_t group, const float *t, uint16_t *y);
typedef void tsr_decode_e2m1_f32_fn(const uint8_t *packed, size_t n, size_t group, const float *t, float *y);

/* y = value(code) * 2^(scales[i] - 127) in groups of 32, rounded in the same way; no scale is 255. A NaN code gives
 * 0x7FC0 with its sign, and no other code gives NaN. Returns true if any code is NaN. (For F16 and FP32 there are
 * decode_e4m3_f16 and decode_e4m3_f32.) */
typedef bool tsr_decode_mxfp8_bf16_fn(const uint8_t *codes, size_t n, const uint8_t *scales, uint16_t *y);
