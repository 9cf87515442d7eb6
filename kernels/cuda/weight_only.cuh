/* Helpers of the weight-only kernels: conversions between 16 bits and FP32, mma.m16n8k16, and the launch of the kernel
 * for Hopper. */
#pragma once

#include "kernels/cuda/fast_dequant.cuh"
#include "kernels/cuda/weight_only_gemm.h"

namespace tsr
{

__device__ __forceinline__ float widen(uint16_t x, bool bf16)
{
    return bf16 ? __uint_as_float((uint32_t)x << 16) : __half2float(__ushort_as_half(x));
}

__device__ __forceinline__ uint16_t narrow(float x, bool bf16)
{
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

/* c[16 x 8] = A[16 x 16] * B[16 x 8] + from */
template <bool kBf16>
__device__ __forceinline__ void multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, float from0,
                                             float from1, float from2, float from3)
{
    if constexpr (kBf16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(from0), "f"(from1), "f"(from2),
              "f"(from3));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(from0), "f"(from1), "f"(from2),
              "f"(from3));
    }
}

template <bool kBf16>
__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    multiply_add<kBf16>(c, a, b0, b1, c[0], c[1], c[2], c[3]);
}

template <bool kBf16>
__device__ __forceinline__ void multiply_afresh(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    multiply_add<kBf16>(c, a, b0, b1, 0, 0, 0, 0);
}

/* Launches the kernel for few tokens on Hopper. The caller has checked the arguments: at most 16 tokens, or 32 for int4
 * in groups of 128, and no zeros. TSR_E_DEVICE: error of the driver or the runtime. */
tsr_status weight_only_stream(const tsr_weight_only_gemm &g, int processors, tsr_stream stream, tsr_err *err);

/* The same for any number of tokens, with or without zeros. */
tsr_status weight_only_tiles(const tsr_weight_only_gemm &g, int processors, tsr_stream stream, tsr_err *err);

} // namespace tsr
