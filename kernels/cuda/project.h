/* kernels/cpu/project.h on a GPU: the same sums with fused multiply-add, so within the same bound. */
#pragma once

#include "kernels/cpu/project.h"
#include "kernels/cuda/block_fp8_gemm.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the products; x, w and y are in device memory. */
tsr_status tsr_cuda_project(const tsr_project_args *args, tsr_stream stream, tsr_err *err);

/* Computes sum[n] += part[n] for values of type `out`, each rounded once to it, to nearest even; device memory. */
tsr_status tsr_cuda_add(void *sum, const void *part, size_t n, tsr_gemm_out out, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
