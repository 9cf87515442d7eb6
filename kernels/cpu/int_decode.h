/* Declares kernels that pack, unpack and decode integer codes.
 *
 * Every variant gives the same bits. The functions allocate nothing, cannot fail and are thread-safe. Source and
 * destination must not overlap. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* y = (code - zero_point) * scale: the difference is exact, followed by the IEEE FP32 product, then for BF16 one
 * rounding to nearest even. `zero_point` is an integer of at most 16 bits; `scale` is finite and not negative. */
typedef void tsr_decode_int_f32_fn(const int8_t *codes, size_t n, float zero_point, float scale, float *y);
typedef void tsr_decode_int_bf16_fn(const int8_t *codes, size_t n, float zero_point, float scale, uint16_t *y);

/* Unpacks n codes, the first in the lowest bits, to two's complement. A word stores code + 8 in 4 bits, or code + 128
 * in 8. Reads only whole bytes. */
typedef void tsr_unpack_int4_fn(const uint8_t *words, size_t n, int8_t *codes);
typedef void tsr_unpack_int8_fn(const uint8_t *words, size_t n, int8_t *codes);

/* Packs n codes; n must be even for int4. The memory after `words` may be prefetched, because it is usually written
 * next. */
typedef void tsr_pack_int4_fn(const int8_t *codes, size_t n, uint8_t *words);
typedef void tsr_pack_int8_fn(const int8_t *codes, size_t n, uint8_t *words);
