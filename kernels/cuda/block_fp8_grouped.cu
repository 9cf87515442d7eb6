/* Entry of the grouped block-FP8 product: the plain kernel, which is its definition, and the choice of a kernel. */
#include "kernels/cuda/block_fp8_grouped.cuh"

#include <algorithm>
#include <limits.h>

namespace
{

using namespace block_fp8;

/* Returns the group whose weights row i is multiplied by; -1: none. */
__device__ __forceinline__ int group_of(const grouped_problem &p, int64_t i)
{
    if (p.group_of_row != NULL) {
        return p.group_of((int)i);
    }
    const int group = (int)(i / p.room);
    return i % p.room < p.rows_of(group) ? group : -1;
}

template <typename T> __global__ void __launch_bounds__(256) plain_grouped_kernel(const grouped_problem p)
{
    const problem &all = p.all;
    const int64_t scales = (int64_t)((all.n + kBlock - 1) / kBlock) * ((all.k + kBlock - 1) / kBlock);
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    for (int64_t i = (int64_t)blockIdx.y * 8 + threadIdx.x / 32; i < all.m; i += (int64_t)gridDim.y * 8) {
        const int group = group_of(p, i);
        if (group >= 0 && j < all.n) {
            static_cast<T *>(all.d)[i * all.ldd + j] =
                narrow<T>(defined(all, i, all.w + (int64_t)group * all.n * all.ldw, all.scale_w + group * scales, j));
        }
    }
}

template <typename T> tsr_status launch_plain(const grouped_problem &p, tsr_stream stream, tsr_err *err)
{
    const dim3 grid((unsigned)host::ceil_div(p.all.n, 32),
                    (unsigned)std::min<int64_t>(host::ceil_div(p.all.m, 8), kMostBlocks));
    plain_grouped_kernel<T><<<grid, 256, 0, stream>>>(p);
    return host::launched(kWhat, cudaSuccess, err);
}

tsr_status run_plain(const grouped_problem &p, tsr_stream stream, tsr_err *err)
{
    return for_results(p.out, [&](auto of) { return launch_plain<typename decltype(of)::type>(p, stream, err); });
}

/* Returns true if 32 bits suffice for rows of W over all groups and for units of work, which have at least 16 by 64
 * rows. The copy engine needs at least 16 bytes of scales. */
bool grouped_fits(const tsr_block_fp8_grouped *args, const tsr_cuda_device *device)
{
    return fast_fits(&args->gemm, device) && args->groups <= TSR_GROUPED_MOST &&
           (args->rows_of_group == NULL || args->gemm.m / args->groups % 4 == 0) &&
           args->groups * args->gemm.n < INT_MAX / 2 &&
           (args->gemm.m / 16 + args->groups) * host::ceil_div(args->gemm.n, 64) < INT_MAX / 2;
}

tsr_status check(const tsr_block_fp8_grouped *args, tsr_err *err)
{
    const int64_t groups = args->groups, m = args->gemm.m;
    if (groups < 1 || groups > INT_MAX / 2 || args->expected_rows < 0) {
        return tsr_fail(err, TSR_E_SHAPE, "grouped block-FP8 product: unsupported: %lld groups of %lld rows",
                        (long long)groups, (long long)args->expected_rows);
    }
    if ((args->group_of_row != NULL) == (args->rows_of_group != NULL)) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "grouped block-FP8 product: give exactly one of group_of_row (contiguous layout) and "
                        "rows_of_group (masked layout)");
    }
    if (args->rows_of_group != NULL && m % groups != 0) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "grouped block-FP8 product: %lld rows cannot be divided evenly among %lld groups", (long long)m,
                        (long long)groups);
    }
    return TSR_OK;
}

constexpr int kMostFew = 64; /* groups with at most this many rows are limited by reading weights */

/* Returns the fastest tile for masked rows with an expected number per group. Few rows stream the weights, with a tile
 * that contains all of them. */
tsr_gemm_config fastest_few(int64_t tokens, int64_t groups, int64_t n, int64_t processors)
{
    const int tile = tokens <= 16 ? 16 : tokens <= 32 ? 32 : kMostFew;
    const auto filled = [&](int rows) { /* the share of the processors' time slots that have work */
                                        const int64_t units = groups * host::ceil_div(n, rows);
                                        return (double)units / (double)(host::ceil_div(units, processors) * processors);
    };
    return {TSR_GEMM_FEW, tile, filled(64) > filled(128) + 0.2 ? 64 : 128, 1};
}

} // namespace

tsr_gemm_config tsr_cuda_block_fp8_grouped_choose(const tsr_block_fp8_grouped *args, const tsr_cuda_device *device)
{
    if (!grouped_fits(args, device)) {
        return {TSR_GEMM_PLAIN, 0, 0, 0};
    }
    const int64_t room = args->rows_of_group != NULL ? args->gemm.m / args->groups : args->gemm.m;
    const int64_t expected = args->expected_rows > 0 ? std::min(args->expected_rows, room) : room;
    if (args->rows_of_group != NULL && expected <= kMostFew) {
        return fastest_few(expected, args->groups, args->gemm.n, device->processors);
    }
    return {TSR_GEMM_WIDE, 128, 192, 2};
}

tsr_status tsr_cuda_block_fp8_grouped(const tsr_block_fp8_grouped *args, tsr_stream stream, tsr_err *err)
{
    grouped_problem p = {};
    TSR_TRY(block_fp8::problem_of(&args->gemm, &p.all, err));
    TSR_TRY(check(args, err));
    if (args->gemm.m == 0 || args->gemm.n == 0) {
        return TSR_OK;
    }
    p.out = args->gemm.out;
    p.groups = (int)args->groups;
    p.room = (int)(args->gemm.m / args->groups);
    p.group_of_row = args->group_of_row;
    p.rows_of_group = args->rows_of_group;
    tsr_cuda_device device;
    TSR_TRY(tsr_cuda_current_device(&device, err));
    tsr_gemm_config config = args->gemm.config;
    if (config.kind == TSR_GEMM_AUTO) {
        config = tsr_cuda_block_fp8_grouped_choose(args, &device);
    } else if (config.kind != TSR_GEMM_PLAIN && !grouped_fits(args, &device)) {
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "grouped block-FP8 product: the fast kernels need sm_90, rows aligned to 16 bytes, at most "
                        "%d groups and, in the masked layout, a multiple of 4 rows in each; the device is %s, sm_%d, "
                        "with %lld rows in %lld groups",
                        TSR_GROUPED_MOST, device.name, device.arch, (long long)args->gemm.m, (long long)args->groups);
    }
    switch (config.kind) {
    case TSR_GEMM_PLAIN:
        return run_plain(p, stream, err);
    case TSR_GEMM_FEW:
        return block_fp8::run_grouped_few(p, config, device.processors, stream, err);
    case TSR_GEMM_WIDE:
        return block_fp8::run_grouped_wide(p, config, device.processors, stream, err);
    case TSR_GEMM_NARROW: /* not supported for groups; neither is the next one */
    case TSR_GEMM_MMA:
    case TSR_GEMM_AUTO:
        break;
    }
    return block_fp8::no_such_tile(block_fp8::kWhat, config, err);
}
