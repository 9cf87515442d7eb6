/* Integer codes into words and out of them, and to values, on the CPU.
 *
 * Every variant gives the same bits. Nothing is allocated, nothing fails, all is thread-safe; source and destination
 * must not overlap. */
#ifndef TSR_KERNELS_CPU_INT_DECODE_H
#define TSR_KERNELS_CPU_INT_DECODE_H

#include <stddef.h>
#include <stdint.h>

/* y = (code - zero_point) * scale: the difference is exact, then the IEEE FP32 product, then for BF16 one rounding to
 * nearest even. `zero_point` is an integer of the code's range, `scale` finite and not negative. */
typedef void tsr_decode_int_f32_fn(const int8_t *codes, size_t n, float zero_point, float scale, float *y);
typedef void tsr_decode_int_bf16_fn(const int8_t *codes, size_t n, float zero_point, float scale, uint16_t *y);

/* n codes out of words, the first in the lowest bits: code + 8 in 4 bits, or code + 128 in 8, to two's complement.
 * Reads whole bytes only. */
typedef void tsr_unpack_int4_fn(const uint8_t *words, size_t n, int8_t *codes);
typedef void tsr_unpack_int8_fn(const uint8_t *words, size_t n, int8_t *codes);

/* The inverse; n is even for int4, and what follows `words` may be prefetched, to be written next. */
typedef void tsr_pack_int4_fn(const int8_t *codes, size_t n, uint8_t *words);
typedef void tsr_pack_int8_fn(const int8_t *codes, size_t n, uint8_t *words);

#endif
