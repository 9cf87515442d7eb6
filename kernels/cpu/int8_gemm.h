/* Declares the int8 product with vLLM's four epilogues: the definition, for verifying and not for serving.
 *
 *   P[i,j] = sum over x of A[i,x] * W[j,x]                              exact in int32: k < 2^17, with azp k <= 65793
 *   D[i,j] = scale_a * (scale_w * float(P - azp * azp_adj)) + bias      each step in FP32
 *
 * azp_adj[j] is the sum of W[j,x] over x (vLLM csrc/quantization/w8a8/cutlass/Epilogues.md). The given arguments select
 * the epilogue: nothing (scaled); bias (scaled + bias); azp_with_adj, which is azp * azp_adj computed beforehand (azp
 * per tensor); azp and azp_adj (azp per token). a is [m][k], w [n][k], d [m][ldd]. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_int8_gemm_args {
    const int8_t *a, *w;
    const float *scale_a, *scale_w; /* [m], [n] */
    bool one_scale_a, one_scale_w;  /* the scale has one element for all */
    const int32_t *azp_with_adj;    /* [n], or NULL */
    const int32_t *azp, *azp_adj;   /* [m], [n], or both NULL */
    const float *bias;              /* [n], or NULL */
    float *d;
    size_t m, n, k, ldd;
} tsr_int8_gemm_args;

typedef void tsr_int8_gemm_fn(const tsr_int8_gemm_args *args);
