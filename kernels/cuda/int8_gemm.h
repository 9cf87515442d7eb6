/* The int8 product with vLLM's four epilogues (csrc/quantization/w8a8/cutlass/Epilogues.md):
 *
 *   P[i,j] = sum over x of A[i,x] * W[j,x]                              exact in int32: k < 2^17, with azp k <= 65793
 *   D[i,j] = scale_a * (scale_w * float(P - azp * azp_adj)) + bias      each step in FP32, then rounded to the output
 *
 * azp_adj[j] is the sum of W[j,x] over x. The given arguments select the epilogue: nothing (scaled); bias;
 * azp_with_adj, which is azp * azp_adj computed beforehand (azp per tensor); azp and azp_adj (azp per token). The plain
 * and the fast kernel give the same bits, because integers are exact and both round at the same steps.
 * docs/kernels/int8_gemm.md explains the fast one.
 *
 * Layouts: a [m][lda], w [n][ldw], k contiguous; d [m][ldd] elements. The fast kernel needs a and w 16-byte aligned,
 * lda, ldw and k multiples of 16, and sm_80 or later; otherwise the plain one runs. d must not overlap an operand. */
#ifndef TSR_KERNELS_CUDA_INT8_GEMM_H
#define TSR_KERNELS_CUDA_INT8_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/block_fp8_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_int8_gemm {
    const int8_t *a, *w;
    const float *scale_a, *scale_w; /* [m], [n] */
    bool one_scale_a, one_scale_w;  /* the scale has one element, which holds for all */
    const int32_t *azp_with_adj;    /* [n], or NULL */
    const int32_t *azp, *azp_adj;   /* [m], [n], or both NULL */
    const float *bias;              /* [n], or NULL */
    void *d;
    int64_t m, n, k, lda, ldw, ldd;
    tsr_gemm_out out;
    bool plain; /* run the plain kernel, which is the definition: one thread per element */
} tsr_int8_gemm;

/* Launches the product. TSR_E_SHAPE: k exceeds the range of int32 (|A - azp| <= 255, |W| <= 128), or a leading
 * dimension is smaller than its row. */
tsr_status tsr_cuda_int8_gemm(const tsr_int8_gemm *args, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
