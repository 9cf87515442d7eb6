/* Declares the product of 16-bit activations with int8 or int4 weights in an interleaved layout: the definition.
 *
 * It uses the conversions of the GPU (kernels/cpu/fast_dequant.h). It is for verifying, not for serving.
 *
 *   a scale a channel   D[i,n] = scale[n] * sum over k of A[i,k] * code(k,n)
 *   groups              D[i,n] = sum over k of A[i,k] * W(k,n)
 *                       W(k,n) = code(k,n) * scale[k / group, n] + zero[k / group, n]
 *
 * W is a fused multiply-add, rounded once, to the type of A. Products and sums are in FP32, in the order of the codes
 * in memory. zero is -zero_point * scale in the type of A, as in TensorRT-LLM. With zeros, a scale a channel counts as
 * one group. So over the same operands |D - exact| <= k * 2^-24 * sum of |A * W|, and with groups in addition sum of
 * |A| * (half a step of A's type at W). */
#pragma once

#include "kernels/cpu/ft_layout.h"

typedef struct tsr_weight_only_args {
    const tsr_ft_format *format; /* any layout but P; it has passed tsr_ft_format_check with k and n */
    const uint32_t *words;       /* [k * n * bits / 32] in the layout */
    const float *a;              /* [m][k]; a, scales and zeros hold only numbers that BF16 or F16 has */
    const float *scales;         /* [n], or [k / group][n] */
    const float *zeros;          /* zero points, shaped as `scales`, or NULL */
    float *d;                    /* [m][ldd] */
    size_t m, n, k, ldd;
    size_t group; /* divides k; 0: one scale per channel */
    bool bf16;    /* type of A; else F16 */
} tsr_weight_only_args;

/* Computes the product. Allocates nothing, cannot fail, is thread-safe. */
void tsr_weight_only_reference(const tsr_weight_only_args *args);
