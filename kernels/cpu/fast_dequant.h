/* How a GPU turns int8 and int4 weights into fp16 or bf16 in a handful of instructions, as an exact model in C.
 *
 * A GPU converts integers to floating point slowly: a fraction of the rate of its other arithmetic, one at a time. The
 * mixed GEMMs of FasterTransformer and TensorRT-LLM (interleaved_numeric_conversion.h) do without. The idea:
 *
 *   The bits of 1024.0 in fp16 are 0x6400, and between 1024 and 2048 fp16 counts in ones. So 0x6400 | u IS 1024 + u for
 *   any u below 1024. Place an unsigned code under the constant, subtract 1024 in floating point, and u is converted.
 *
 * Everything else follows from it, and so do the layouts' oddities (formats/model/ft_layout.h):
 *   - Codes carry a bias of 128 or 8, since u must not be negative. Subtracting 1024 + bias takes both away at once.
 *   - A register holds two fp16 numbers, and the arithmetic works on both (sub.f16x2, fma.f16x2). One LOP3, which knows
 *     any function of three words, does (word & 0x000F000F) | 0x64006400: nibbles 0 and 4 of the word become elements e
 *     and e + 1. Hence the order inside a word: even elements in the lower half, odd ones in the upper half, at the
 *     same place.
 *   - Nibbles 1 and 5 need no shift: (word & 0x00F000F0) | 0x64006400 is 1024 + 16u, and one fused multiply-add makes
 *     (1024 + 16u) / 16 - 72 = u - 8 of it. Only for nibbles 2, 3, 6 and 7 the word is shifted, once, by 8.
 *   - Bytes are picked by PRMT, which makes four bytes of any of eight: two codes and two 0x64.
 *   - bf16 has 8 significant bits: at 128 it counts in ones up to 256, which is enough for 128 + u of a nibble
 *     (0x4300), but not for a byte. Bytes go through fp32, where 2^23 + u is 0x4B000000 | u; the results are integers
 *     of at most 8 significant bits, so their upper halves are the bf16.
 * Not one step rounds. Of the two results in a word the earlier element is in the lower half, as mma wants it.
 *
 * The instructions follow the PTX ISA ("prmt", "lop3", "sub", "fma"), subnormals included. All functions are pure and
 * thread-safe. */
#ifndef TSR_KERNELS_CPU_FAST_DEQUANT_H
#define TSR_KERNELS_CPU_FAST_DEQUANT_H

#include <stdint.h>

/* prmt.b32: byte i of the result is the byte of b:a that nibble i of the selector names, 0-3 in a and 4-7 in b. With
 * bit 3 of the nibble set, eight copies of that byte's sign. */
uint32_t tsr_prmt(uint32_t a, uint32_t b, uint32_t selector);

/* lop3.b32: on each bit, the function whose table is `lut`: bit 4 * a + 2 * b + c of it is the result. To find the
 * table of an expression, compute it on the three below: (a & b) | c is (0xF0 & 0xCC) | 0xAA = 0xEA. */
enum { TSR_LOP3_A = 0xF0, TSR_LOP3_B = 0xCC, TSR_LOP3_C = 0xAA };
uint32_t tsr_lop3(uint32_t a, uint32_t b, uint32_t c, uint8_t lut);

/* sub.rn.f16x2, fma.rn.f16x2, fma.rn.bf16x2: on both halves, rounded once, to nearest even. Any NaN is the
 * canonical one, 0x7FFF. */
uint32_t tsr_sub_f16x2(uint32_t a, uint32_t b);
uint32_t tsr_fma_f16x2(uint32_t a, uint32_t b, uint32_t c);
uint32_t tsr_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c);

/* A word of 4 int8 or 8 int4 codes, biased and in the order of every layout but P (int8: 0 2 1 3, int4: 0 2 4 6 1 3 5
 * 7, lowest bits first) -> elements 0 and 1 in out[0], 2 and 3 in out[1], ... each code - bias. */
void tsr_fast_int8_f16(uint32_t word, uint32_t out[2]);
void tsr_fast_int8_bf16(uint32_t word, uint32_t out[2]);
void tsr_fast_int4_f16(uint32_t word, uint32_t out[4]);
void tsr_fast_int4_bf16(uint32_t word, uint32_t out[4]);

#endif
