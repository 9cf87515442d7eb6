/* The product of operands in small groups on a GPU, with the definition, bound and bits of kernels/cpu/mx_gemm.h. A
 * plain kernel with a warp per element; GPUs before sm_100 have no tensor cores for these formats. */
#pragma once

#include <stdint.h>

#include "kernels/cpu/mx_gemm.h"
#include "kernels/cuda/block_fp8_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_mx_gemm {
    tsr_mx_matrix a, w; /* in device memory; a is BF16 or has the group of w; w is not BF16 */
    void *d;            /* [m][ldd], the FP32 sum rounded once to `out` */
    int64_t m, n, k, ldd;
    tsr_gemm_out out;
} tsr_mx_gemm;

/* Launches the product. TSR_E_SHAPE: forms or sizes are not as above. */
tsr_status tsr_cuda_mx_gemm(const tsr_mx_gemm *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
