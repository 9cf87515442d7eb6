/* Decodes stored elements of any dtype to double: the oracle's own decoders, which share no code with writing or
 * casting. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>

/* Decodes n elements of a plain dtype to double. `dtype` has whole bytes and is not C64. Exact, except 64-bit integers
 * beyond 2^53, which are rounded. F8_E4M3 codes are decoded without a scale. */
void tsr_decode(unsigned char dtype, const unsigned char *bytes, size_t n, double *out);

/* Decodes all elements of a tensor. TSR_E_NOMEM, TSR_E_IO and other read errors. */
tsr_status tsr_decode_tensor(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, double *out, tsr_err *err);

/* Finds the first element of a tensor of scales that is not a positive number. *at: the number of elements if there is
 * none. Errors are those of tsr_decode_tensor. */
tsr_status tsr_find_bad_scale(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, uint64_t *at, double *value,
                              tsr_err *err);

/* Decodes n elements of such a dtype. Only those of F8_E4M3 are multiplied by `scale`. */
void tsr_decode_scaled(tsr_dtype dtype, const unsigned char *bytes, size_t n, double scale, double *out);

/* Decodes n 4-bit codes, from element `at` of a row of words on: (code - 8 - zero) * scale. */
void tsr_decode_int4(const unsigned char *words, uint64_t at, size_t n, double zero, double scale, double *out);

/* Decodes n e2m1 codes, two per byte with the first in the low bits, from element `at` of a row on: value * scale.
 * Exact if the scale has at most 51 bits. Reads no byte beyond that of the last element. */
void tsr_decode_e2m1(const unsigned char *bytes, uint64_t at, size_t n, double scale, double *out);

/* Decodes n codes of MXFP6, four per three bytes with the first in the lowest bits, from element `at` of a row on:
 * value * scale. Exact if the scale has at most 50 bits. e3m2: or e2m3. Reads whole triples of bytes. */
void tsr_decode_six_bits(const unsigned char *bytes, uint64_t at, size_t n, bool e3m2, double scale, double *out);

/* Decodes e2m1 codes of one byte each, whose high bits are 0. */
void tsr_decode_e2m1_codes(const unsigned char *codes, size_t n, double scale, double *out);

/* Decodes n 8-bit codes: (code - zero) * scale. `middle` is the code of 0: 0x80 for unsigned bytes in packed words, 0
 * for two's complement. */
void tsr_decode_int8(const unsigned char *codes, unsigned char middle, size_t n, double zero, double scale,
                     double *out);
