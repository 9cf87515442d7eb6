/* Plain product of small groups: a lane handles every 32nd group, and the lanes are added in halves. */
#include "kernels/cuda/mx_gemm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mx_values.cuh"
#include "kernels/cuda/store_result.cuh"

namespace
{

constexpr int kThreads = 256;
constexpr int64_t kMostCtas = 1 << 16;

/* Loads values of the codes of one group, from code `at` on. */
template <int kGroup> __device__ __forceinline__ void load(const tsr_mx_matrix &x, int64_t at, float *values)
{
    const uint8_t *const bytes = static_cast<const uint8_t *>(x.codes);
    if (x.form == TSR_MX_FORM_BF16) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            values[i] = __uint_as_float((uint32_t) static_cast<const uint16_t *>(x.codes)[at + i] << 16);
        }
    } else if (x.form == TSR_MX_FORM_MXFP8) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            values[i] = tsr::e4m3_value(bytes[at + i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            values[i] = tsr::e2m1_value(bytes[at / 2 + i / 2] >> i % 2 * 4);
        }
    }
}

template <int kGroup> __global__ void __launch_bounds__(kThreads) product_kernel(const tsr_mx_gemm g)
{
    const int64_t lane = threadIdx.x % 32, warps = (int64_t)gridDim.x * (kThreads / 32), groups = g.k / kGroup;
    for (int64_t at = ((int64_t)blockIdx.x * kThreads + threadIdx.x) / 32; at < g.m * g.n; at += warps) {
        const int64_t i = at % g.m, j = at / g.m; /* a row of w stays in the cache */
        float total = 0.0f;
        for (int64_t group = lane; group < groups; group += 32) {
            float a[kGroup], w[kGroup], sum = 0.0f;
            load<kGroup>(g.a, i * g.k + group * kGroup, a);
            load<kGroup>(g.w, j * g.k + group * kGroup, w);
#pragma unroll
            for (int x = 0; x < kGroup; ++x) {
                sum = __fadd_rn(sum, __fmul_rn(a[x], w[x]));
            }
            const float scale = __fmul_rn(tsr::mx_scale(g.a.form, g.a.scales, g.a.global, i * groups + group),
                                          tsr::mx_scale(g.w.form, g.w.scales, g.w.global, j * groups + group));
            total = __fadd_rn(total, __fmul_rn(scale, sum));
        }
        for (int half = 16; half > 0; half /= 2) {
            total = __fadd_rn(total, __shfl_down_sync(0xFFFFFFFFu, total, half));
        }
        if (lane == 0) {
            tsr::store_result(g, i * g.ldd + j, total);
        }
    }
}

} // namespace

tsr_status tsr_cuda_mx_gemm(const tsr_mx_gemm *args, tsr_stream stream, tsr_err *err)
{
    const tsr_mx_gemm &g = *args;
    const int64_t group = (int64_t)tsr_mx_form_group(g.w.form);
    const bool alike = g.a.form == TSR_MX_FORM_BF16 || (int64_t)tsr_mx_form_group(g.a.form) == group;
    if (!tsr::is_mx_coded(g.w.form) || !alike || g.m < 0 || g.n < 0 || g.k < 0 || g.k % group != 0 || g.ldd < g.n) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "product of small groups: needs codes with scales, the same group size on both sides, whole "
                        "groups, and leading dimensions no smaller than a row");
    }
    if (g.m == 0 || g.n == 0) {
        return TSR_OK;
    }
    const int64_t ctas = host::ceil_div(g.m * g.n, kThreads / 32);
    const unsigned grid = (unsigned)(ctas < kMostCtas ? ctas : kMostCtas);
    if (group == 16) {
        product_kernel<16><<<grid, kThreads, 0, stream>>>(g);
    } else {
        product_kernel<32><<<grid, kThreads, 0, stream>>>(g);
    }
    return host::launched("product of small groups", cudaSuccess, err);
}
