/* Models how a GPU converts int8 and int4 weights to fp16 or bf16 in a few instructions, exactly and in C.
 *
 * A GPU converts integers to floating point slowly, one at a time, at a fraction of the rate of its other arithmetic.
 * The mixed GEMMs of FasterTransformer and TensorRT-LLM (interleaved_numeric_conversion.h) avoid this conversion:
 *
 *   The bits of 1024.0 in fp16 are 0x6400, and fp16 has steps of 1 from 1024 to 2048. So 0x6400 | u is 1024 + u for
 *   any u below 1024. Insert an unsigned code into the constant and subtract 1024: the result is u.
 *
 * The rest follows, including the properties of the layouts (kernels/cpu/ft_layout.h):
 *   - Codes have a bias of 128 or 8, because u must not be negative. Subtracting 1024 + bias removes both.
 *   - A register holds two fp16 numbers, and instructions compute both (sub.f16x2, fma.f16x2). One LOP3, which computes
 *     any function of three words, does (word & 0x000F000F) | 0x64006400: nibbles 0 and 4 of the word become elements e
 *     and e + 1. Therefore a word has even elements in its lower half, and odd ones at the same places in its upper
 *     half.
 *   - Nibbles 1 and 5 need no shift: (word & 0x00F000F0) | 0x64006400 is 1024 + 16u, and one fused multiply-add
 *     computes (1024 + 16u) / 16 - 72 = u - 8. For nibbles 2, 3, 6 and 7 the word is shifted once, by 8.
 *   - Bytes are selected by PRMT, which makes four bytes from any of eight: two codes and two bytes 0x64.
 *   - bf16 has 8 significant bits and steps of 1 from 128 to 256. That suffices for 128 + u with a nibble u (0x4300),
 *     but not for a byte. Bytes are converted through fp32, where 2^23 + u is 0x4B000000 | u. The results are integers
 *     of at most 8 significant bits, so their upper halves are the bf16.
 * No step rounds. The earlier of the two results in a word is in the lower half, as mma requires.
 *
 * The instructions follow the PTX ISA ("prmt", "lop3", "sub", "fma"), including subnormals. All functions are pure and
 * thread-safe. */
#pragma once

#include <stdint.h>

/* prmt.b32: byte i of the result is the byte of b:a that nibble i of the selector names, 0-3 in a and 4-7 in b. With
 * bit 3 of the nibble set, eight copies of that byte's sign. */
uint32_t tsr_prmt(uint32_t a, uint32_t b, uint32_t selector);

/* lop3.b32: applies to each bit the function with the table `lut`: the result is bit 4 * a + 2 * b + c of it. The
 * table of an expression is its value for the three constants below: (a & b) | c is (0xF0 & 0xCC) | 0xAA = 0xEA. */
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
