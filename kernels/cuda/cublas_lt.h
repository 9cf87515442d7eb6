/* cuBLASLt's block-scaled FP8 product, loaded at run time: an independent implementation to compare with, in checks and
 * benchmarks.
 *
 * It accepts the operands of block_fp8_gemm.h if m and ceil(k / 128) are multiples of 4, n and k of 16, and rows have
 * no gaps. Unlike launchers it holds memory on the GPU: a workspace of 64 MiB. Not thread-safe. */
#pragma once

#include "kernels/cuda/block_fp8_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_cublas_lt tsr_cublas_lt;

/* Opens the library. TSR_E_DEVICE: it is missing or cannot be initialized. */
tsr_status tsr_cublas_lt_open(tsr_cublas_lt **lt, tsr_err *err);

/* NULL is fine. */
void tsr_cublas_lt_close(tsr_cublas_lt *lt);

/* Sets the problem that tsr_cublas_lt_run solves. *offers is the number of algorithms, in the order of cuBLASLt's
 * heuristic, best first. TSR_E_UNSUPPORTED: it does not support these operands, or has no algorithm for them. */
tsr_status tsr_cublas_lt_prepare(tsr_cublas_lt *lt, const tsr_block_fp8_gemm *args, int *offers, tsr_err *err);

/* Launches algorithm `offer`, from 0. */
tsr_status tsr_cublas_lt_run(tsr_cublas_lt *lt, int offer, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
