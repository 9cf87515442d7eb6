/* Declares kernels that encode MXFP4, MXFP8 and NVFP4, with scales per group of 32 or 16 columns.
 *
 * Rows consist of whole groups. Elements are therefore one sequence of n numbers, with n a multiple of the group, and
 * group i is x[i * group .. (i + 1) * group). E2M1 codes are packed two per byte, the even column in the low nibble.
 * The functions allocate nothing, cannot fail and are thread-safe; every variant gives the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Computes the scale of each of n groups as an E8M0 byte from its amax (finite, as FP32 bits). It is the exponent field
 * of amax, plus one if its mantissa field is above `limit`, minus `emax` (2 or 8), the exponent of the largest element;
 * 0 if that is negative. t[i] = 2^(scales[i] - 127). */
typedef void tsr_scale_e8m0_fn(const uint32_t *amax, size_t n, uint32_t limit, int emax, uint8_t *scales, float *t);

/* Computation of a group's scale in NVFP4, from its amax and the tensor's global scale. */
typedef struct tsr_nvfp4_recipe {
    float global;       /* finite, positive */
    bool multiplies;    /* t = s * global (ModelOpt); otherwise t = s / global (compressed-tensors) */
    bool bf16_quotient; /* if the global divides: amax / 6 is rounded to BF16 first */
} tsr_nvfp4_recipe;

/* Computes scales[i] = s, an e4m3 code, and t[i], the unit of the group's codes, from amax[i] (finite, FP32 bits).
 *   the global divides:    s = e4m3(min((amax / 6) * global, 448)), and 0.125 instead of 0;  t = s / global
 *   the global multiplies: s = e4m3(clamp(amax / (6 * global), 2^-9, 448)), 1 where amax = 0; t = s * global
 * Each operation is rounded to FP32. t may be 0 if amax is subnormal. */
typedef void tsr_scale_nvfp4_fn(const uint32_t *amax, size_t n, const tsr_nvfp4_recipe *recipe, uint8_t *scales,
                                float *t);

/* Rounding of a quotient to an E2M1 code. */
typedef enum tsr_e2m1_rounding {
    TSR_E2M1_EVEN,      /* to nearest, ties to even; a zero has code 0, a negative number that rounds to 0 has code 8 */
    TSR_E2M1_EVEN_BF16, /* the same for t that are powers of two, whose quotient is BF16: more quotients are 0 */
    TSR_E2M1_DOWN,      /* to nearest, ties toward zero; a zero of either sign has code 8 (ModelOpt's MXFP4) */
} tsr_e2m1_rounding;

/* code = e2m1(clamp(x / t[i], +-6)), the IEEE FP32 quotient. x is finite, t[i] finite and not negative; if t[i] is 0,
 * the quotient counts as 0. `group` is even. */
typedef void tsr_encode_e2m1_bf16_fn(const uint16_t *x, size_t n, size_t group, const float *t,
                                     tsr_e2m1_rounding rounding, uint8_t *packed);
typedef void tsr_encode_e2m1_f32_fn(const float *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding,
                                    uint8_t *packed);

/* code = e4m3(clamp(x / 2^(scales[i] - 127), +-448)) in groups of 32; -0 gives 0x80. x is finite, no scale is 255. (An
 * FP32 source goes to encode_e4m3_f32.) */
typedef void tsr_encode_mxfp8_bf16_fn(const uint16_t *x, size_t n, const uint8_t *scales, uint8_t *codes);
