/* FP32 projections on a GPU, one warp per sum, and the sum of two ranks. */
#include "kernels/cuda/project.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.cuh"

namespace
{

constexpr int kThreads = 256;
constexpr size_t kMostCtas = 1 << 16;

__global__ void __launch_bounds__(kThreads) project_kernel(const tsr_project_args a)
{
    const size_t lane = threadIdx.x % TSR_PROJECT_LANES, sums = a.batch * a.m * a.n;
    const size_t warps = (size_t)gridDim.x * (kThreads / TSR_PROJECT_LANES);
    for (size_t at = (blockIdx.x * (size_t)kThreads + threadIdx.x) / TSR_PROJECT_LANES; at < sums; at += warps) {
        const size_t b = at / (a.m * a.n), i = at % a.m, j = at / a.m % a.n; /* rows of w stay in the cache */
        const float *const x = a.x + b * a.next_x + i * a.ld_x, *const w = a.w + b * a.next_w + j * a.ld_w;
        float sum = 0.0f;
        for (size_t c = lane; c < a.k; c += TSR_PROJECT_LANES) {
            sum = fmaf(x[c], w[c], sum);
        }
        for (int half = TSR_PROJECT_LANES / 2; half > 0; half /= 2) {
            sum += __shfl_down_sync(0xFFFFFFFFu, sum, half);
        }
        if (lane == 0) {
            a.y[b * a.next_y + i * a.ld_y + j] = sum;
        }
    }
}

__device__ float add_rounded(float a, float b)
{
    return a + b;
}

__device__ __half add_rounded(__half a, __half b)
{
    return __float2half_rn(__half2float(a) + __half2float(b));
}

__device__ __nv_bfloat16 add_rounded(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

template <typename T> __global__ void __launch_bounds__(kThreads) add_kernel(void *sum, const void *part, size_t n)
{
    T *const to = static_cast<T *>(sum);
    for (size_t i = blockIdx.x * (size_t)kThreads + threadIdx.x; i < n; i += (size_t)gridDim.x * kThreads) {
        to[i] = add_rounded(to[i], static_cast<const T *>(part)[i]);
    }
}

/* Returns a grid that covers n threads, limited to the largest grid. */
unsigned ctas_for(size_t n)
{
    const size_t all = (n + kThreads - 1) / kThreads;
    return (unsigned)(all < kMostCtas ? all : kMostCtas);
}

} // namespace

extern "C" tsr_status tsr_cuda_project(const tsr_project_args *args, tsr_stream stream, tsr_err *err)
{
    const size_t sums = args->batch * args->m * args->n;
    if (sums == 0) {
        return TSR_OK;
    }
    project_kernel<<<ctas_for(sums * TSR_PROJECT_LANES), kThreads, 0, stream>>>(*args);
    return host::launched("projection", cudaSuccess, err);
}

extern "C" tsr_status tsr_cuda_add(void *sum, const void *part, size_t n, tsr_gemm_out out, tsr_stream stream,
                                   tsr_err *err)
{
    auto *const kernel = out == TSR_GEMM_BF16  ? add_kernel<__nv_bfloat16>
                         : out == TSR_GEMM_F16 ? add_kernel<__half>
                                               : add_kernel<float>;
    if (n == 0) {
        return TSR_OK;
    }
    kernel<<<ctas_for(n), kThreads, 0, stream>>>(sum, part, n);
    return host::launched("sum over ranks", cudaSuccess, err);
}
