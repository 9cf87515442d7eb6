/* FP32 projections on a GPU: one warp per sum. */
#include "kernels/cuda/project.h"

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

__global__ void __launch_bounds__(kThreads) add_kernel(float *sum, const float *part, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)kThreads + threadIdx.x; i < n; i += (size_t)gridDim.x * kThreads) {
        sum[i] += part[i];
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

extern "C" tsr_status tsr_cuda_add(float *sum, const float *part, size_t n, tsr_stream stream, tsr_err *err)
{
    if (n == 0) {
        return TSR_OK;
    }
    add_kernel<<<ctas_for(n), kThreads, 0, stream>>>(sum, part, n);
    return host::launched("projection", cudaSuccess, err);
}
