/* Arguments of a block FP8 product for tests. */
#pragma once

#include "kernels/cpu/fp8_gemm.h"

/* Returns a product of A [m, k] and W [n, k] without operands: blocks of 128 x 128, and scales of A stored [k / 128,
 * m]. */
static inline tsr_fp8_gemm_args fp8_product(size_t m, size_t n, size_t k)
{
    return (tsr_fp8_gemm_args){.m = m, .n = n, .k = k, .ld_scale_a = m, .ldd = n, .block_n = 128, .block_k = 128};
}

/* Sets the operands: codes and scales of A, codes and scales of W, and the result. */
static inline tsr_fp8_gemm_args fp8_product_of(tsr_fp8_gemm_args args, const uint8_t *a, const float *scale_a,
                                               const uint8_t *w, const float *scale_w, float *d)
{
    args.a = a, args.scale_a = scale_a;
    args.w = w, args.scale_w = scale_w;
    args.d = d;
    return args;
}
