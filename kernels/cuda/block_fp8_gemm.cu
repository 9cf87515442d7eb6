/* Entry of the block-FP8 product: the plain kernel, which is its definition, and the choice of a kernel. */
#include "kernels/cuda/block_fp8_gemm.h"

#include "kernels/cuda/block_fp8_parts.cuh"

static_assert(std::is_same<tsr_stream, cudaStream_t>::value, "tsr_stream is cudaStream_t");

namespace
{

using namespace block_fp8;

template <typename T> __global__ void __launch_bounds__(256) plain_kernel(const problem p)
{
    const int64_t i = (int64_t)blockIdx.y * 8 + threadIdx.x / 32;
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    if (i < p.m && j < p.n) {
        static_cast<T *>(p.d)[i * p.ldd + j] = narrow<T>(defined(p, i, p.w, p.scale_w, j));
    }
}

template <typename T> tsr_status launch_plain(const problem &p, tsr_stream stream, tsr_err *err)
{
    const dim3 grid((unsigned)host::ceil_div(p.n, 32), (unsigned)host::ceil_div(p.m, 8));
    if (grid.y > kMostBlocks) {
        return tsr_fail(err, TSR_E_SHAPE, "block-FP8 product: %d tokens exceed the plain kernel's grid", p.m);
    }
    plain_kernel<T><<<grid, 256, 0, stream>>>(p);
    return host::launched(kWhat, cudaSuccess, err);
}

tsr_status run_plain(const problem &p, tsr_gemm_out out, tsr_stream stream, tsr_err *err)
{
    return for_results(out, [&](auto of) { return launch_plain<typename decltype(of)::type>(p, stream, err); });
}

} // namespace

bool block_fp8::fast_fits(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->group_m <= 1 && args->k > 0 &&
           operands_fit(args->a, args->w, args->lda, args->ldw) && host::aligned(args->scale_a, 16) &&
           args->ld_scale_a % 4 == 0;
}

tsr_status block_fp8::problem_of(const tsr_block_fp8_gemm *args, problem *p, tsr_err *err)
{
    matrices found;
    TSR_TRY(matrices_of(kWhat, *args, &found, err));
    const int64_t group = args->group_m;
    if (group != 0 && group != 1 && group != 64 && group != 128) {
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "block-FP8 product: %lld tokens share a scale; supported: 1, 64 and 128", (long long)group);
    }
    const uint8_t shift = group == 128 ? 7 : group == 64 ? 6 : 0;
    if (args->ld_scale_a < host::ceil_div(args->m, (int64_t)1 << shift)) {
        return tsr_fail(err, TSR_E_SHAPE, "block-FP8 product: a row of scale_a is shorter than the tokens' scales");
    }
    *p = {found, args->scale_a, args->scale_w, args->ld_scale_a, shift};
    return TSR_OK;
}

tsr_gemm_config tsr_cuda_block_fp8_gemm_choose(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device)
{
    return fast_fits(args, device)  ? fastest(args->m, args->n, args->k, device->processors)
           : mma_fits(args, device) ? mma_for(args->m)
                                    : tsr_gemm_config{TSR_GEMM_PLAIN, 0, 0, 0};
}

tsr_status tsr_cuda_block_fp8_gemm(const tsr_block_fp8_gemm *args, tsr_stream stream, tsr_err *err)
{
    problem p;
    TSR_TRY(block_fp8::problem_of(args, &p, err));
    if (args->m == 0 || args->n == 0) {
        return TSR_OK;
    }
    tsr_cuda_device device;
    TSR_TRY(tsr_cuda_current_device(&device, err));
    tsr_gemm_config config = args->config;
    if (config.kind == TSR_GEMM_AUTO) {
        config = tsr_cuda_block_fp8_gemm_choose(args, &device);
    } else if (config.kind == TSR_GEMM_MMA && !mma_fits(args, &device)) {
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "block-FP8 product: kernels with mma need sm_89 or later and rows aligned to 16 bytes; the device is %s, "
            "sm_%d",
            device.name, device.arch);
    } else if (config.kind != TSR_GEMM_PLAIN && config.kind != TSR_GEMM_MMA && !fast_fits(args, &device)) {
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "block-FP8 product: the kernels for Hopper need sm_90 and rows aligned to 16 bytes; the device is %s, "
            "sm_%d",
            device.name, device.arch);
    }
    switch (config.kind) {
    case TSR_GEMM_PLAIN:
        return run_plain(p, args->out, stream, err);
    case TSR_GEMM_NARROW:
        return block_fp8::run_narrow(p, args->out, config, stream, err);
    case TSR_GEMM_WIDE:
        return block_fp8::run_wide(p, args->out, config, device.processors, stream, err);
    case TSR_GEMM_MMA:
        return block_fp8::run_mma(p, args->out, config.tokens == 0 ? block_fp8::mma_for(args->m) : config, stream, err);
    case TSR_GEMM_FEW:
    case TSR_GEMM_AUTO:
        break;
    }
    return block_fp8::no_such_tile(block_fp8::kWhat, config, err);
}
