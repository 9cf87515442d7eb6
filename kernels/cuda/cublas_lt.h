/* cuBLASLt's block-scaled FP8 product, loaded at run time: a second opinion beside our kernels, and their peer in
 * benches.
 *
 * It takes the operands of block_fp8_gemm.h where m and ceil(k / 128) are multiples of 4, n and k of 16, and leading
 * dimensions have no gap. Unlike launchers it holds memory on the GPU: a workspace of 64 MiB. One thread at a time. */
#ifndef TSR_KERNELS_CUDA_CUBLAS_LT_H
#define TSR_KERNELS_CUDA_CUBLAS_LT_H

#include "kernels/cuda/block_fp8_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_cublas_lt tsr_cublas_lt;

/* TSR_E_DEVICE: the library is not there, or refuses. */
tsr_status tsr_cublas_lt_open(tsr_cublas_lt **lt, tsr_err *err) TSR_WARN_UNUSED;

/* NULL is fine. */
void tsr_cublas_lt_close(tsr_cublas_lt *lt);

/* Makes this the problem that tsr_cublas_lt_run solves; *offers algorithms, the one that its heuristic likes best
 * first. TSR_E_UNSUPPORTED: operands that it does not take, or no algorithm for them. */
tsr_status tsr_cublas_lt_prepare(tsr_cublas_lt *lt, const tsr_block_fp8_gemm *args, int *offers,
                                 tsr_err *err) TSR_WARN_UNUSED;

/* Launches by algorithm `offer`. */
tsr_status tsr_cublas_lt_run(tsr_cublas_lt *lt, int offer, tsr_stream stream, tsr_err *err) TSR_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
