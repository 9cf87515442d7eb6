/* Stores one result in the type that a product asks for. */
#pragma once

#include "kernels/cuda/block_fp8_gemm.h"

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tsr
{

/* Stores element `at` of g.d, which has the type g.out. */
template <typename ARGS> __device__ __forceinline__ void store_result(const ARGS &g, int64_t at, float value)
{
    if (g.out == TSR_GEMM_F32) {
        static_cast<float *>(g.d)[at] = value;
    } else if (g.out == TSR_GEMM_BF16) {
        static_cast<__nv_bfloat16 *>(g.d)[at] = __float2bfloat16_rn(value);
    } else {
        static_cast<__half *>(g.d)[at] = __float2half_rn(value);
    }
}

} // namespace tsr
