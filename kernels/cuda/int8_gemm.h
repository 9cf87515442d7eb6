/* The int8 product with vLLM's four epilogues (csrc/quantization/w8a8/cutlass/Epilogues.md):
 *
 *   P[i,j] = sum over x of A[i,x] * W[j,x]                              exact in int32: k < 2^17, with azp k <= 65793
 *   D[i,j] = scale_a * (scale_w * float(P - azp * azp_adj)) + bias      each step in FP32, then rounded to the output
 *
 * azp_adj[j] is the sum of W[j,x] over x. The given arguments select the epilogue: nothing (scaled); bias;
 * azp_with_adj, which is azp * azp_adj computed beforehand (azp per tensor); azp and azp_adj (azp per token). All
 * kernels give the same bits, because integers are exact and all round at the same steps. docs/kernels/int8_gemm.md
 * explains them.
 *
 * Layouts: a [m][lda], w [n][ldw], k contiguous; d [m][ldd] elements. d must not overlap an operand. The fast kernels
 * need a and w 16-byte aligned, with lda and ldw multiples of 16; that before Hopper also needs k to be one. Otherwise
 * the plain one runs. The kernels for Hopper are launched as programmatic dependents (block_fp8_gemm.h). */
#pragma once

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
    tsr_gemm_config
        config; /* all zeros: chosen by tsr_cuda_int8_gemm_choose. TSR_GEMM_PLAIN: the definition, one thread
                             * per element. TSR_GEMM_MMA: before Hopper. For Hopper, TSR_GEMM_NARROW with the tiles of
                             * block_fp8_gemm.h, and TSR_GEMM_WIDE with tiles of 64 by 128, 128 by 128 and
                             * 128 by 256 */
} tsr_int8_gemm;

/* Returns the fastest kernel and tile for this problem on this device, by a model of an H200. Pure. */
tsr_gemm_config tsr_cuda_int8_gemm_choose(const tsr_int8_gemm *args, const tsr_cuda_device *device);

/* Launches the product. TSR_E_SHAPE: k exceeds the range of int32 (|A - azp| <= 255, |W| <= 128), or a leading
 * dimension is smaller than its row. TSR_E_UNSUPPORTED: the requested config does not fit the arguments or the
 * device. */
tsr_status tsr_cuda_int8_gemm(const tsr_int8_gemm *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
