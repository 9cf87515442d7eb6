/* cuBLAS's products in FP64, FP32 and BF16, loaded at run time.
 *
 * All pointers are device memory. A handle allocates its own workspace on the GPU. Not thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/precision.h"
#include "common/status.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_cublas tsr_cublas;

/* Opens the library for the current GPU and a stream, on which all products run. TSR_E_DEVICE: it is missing or cannot
 * be initialized. */
tsr_status tsr_cublas_open(tsr_cublas **cublas, tsr_stream stream, tsr_err *err);

/* NULL is fine. */
void tsr_cublas_close(tsr_cublas *cublas);

/* c[m][n] = (add ? c : 0) + sum over k of a[m][k] b[n][k], for each of `batch` matrices, which are step_a, step_b and
 * step_c elements apart; if `across`, b is [k][n], and if `both_across`, a is [k][m] too. a and b have the precision,
 * and c has it, too, or with `sums` that of its sums (common/precision.h). */
typedef struct tsr_cublas_gemm {
    tsr_precision precision;
    const void *a, *b;
    void *c;
    size_t m, n, k, lda, ldb, ldc;
    bool add, sums, across, both_across;
    size_t batch, step_a, step_b, step_c;
} tsr_cublas_gemm;
tsr_status tsr_cublas_run(tsr_cublas *cublas, const tsr_cublas_gemm *gemm, tsr_err *err);

#ifdef __cplusplus
}
#endif
