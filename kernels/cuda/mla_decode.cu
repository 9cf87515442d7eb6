/* Entry of MLA decoding: the plain kernel, which is its definition, and the launches of the fast one. */
#include "kernels/cuda/mla_decode.h"

#include <limits.h>
#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mla_decode_combine.cuh"
#include "kernels/cuda/mla_decode_fast.cuh"
#include "kernels/cuda/mla_decode_schedule.cuh"
#include "kernels/cuda/tensor_map.cuh"

static_assert(std::is_same<tsr_stream, cudaStream_t>::value, "tsr_stream is cudaStream_t");

namespace
{

/* ---- the definition ---------------------------------------------------------------------------------------------- */

/* Returns a token's columns. A row that does not exist is negative. */
__device__ __forceinline__ plain_token<> token_of(const problem &p, int row)
{
    const __nv_bfloat16 *const k = p.cache + (int64_t)row * p.width;
    return {k, k + p.latent, k, row >= 0};
}

template <bool LISTED> __device__ __forceinline__ auto token_of(const gathered<true, LISTED> &p, int row)
{
    const int scales = p.latent / 128 * (int)sizeof(float), bytes = p.latent + scales + 2 * (p.width - p.latent);
    const uint8_t *const k = reinterpret_cast<const uint8_t *>(p.cache) + (int64_t)row * bytes;
    const coded_columns columns = {k, reinterpret_cast<const float *>(k + p.latent)};
    return plain_token<coded_columns>{columns, reinterpret_cast<const __nv_bfloat16 *>(k + p.latent + scales), columns,
                                      row >= 0};
}

__device__ __host__ plain_shape plain_shape_of(const problem &p)
{
    return {p.latent, p.width - p.latent, p.latent, p.scale};
}

template <typename PROBLEM> __global__ void __launch_bounds__(kPlainThreads) plain_kernel(const PROBLEM p)
{
    extern __shared__ float shared[];
    const int64_t row = blockIdx.x;
    const int64_t rows = (int64_t)p.s_q * p.heads;
    const int b = (int)(row / rows), i = (int)(row % rows / p.heads);
    const int length = length_of(p, b);
    const auto token = [&](int t) { return token_of(p, row_of(p, b, length, t)); };
    const auto write = [&](int c, float x) { p.out[row * p.latent + c] = __float2bfloat16_rn(x); };
    attend_plain(plain_shape_of(p), p.q + row * p.width, length - p.s_q + i + 1, token, write,
                 p.lse ? p.lse + row : NULL, shared);
}

/* ---- launchers --------------------------------------------------------------------------------------------------- */

constexpr char kWhat[] = "MLA decoding";

bool fast_fits(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->latent == kLatent && args->rope == kRope &&
           (args->page == kPage || args->indices) && host::aligned(args->q, 16) && host::aligned(args->cache, 16) &&
           host::aligned(args->out, 16);
}

/* A query that lists its rows is a sequence of its own. */
problem problem_of(const tsr_mla_decode *args)
{
    return {reinterpret_cast<const __nv_bfloat16 *>(args->q),
            static_cast<const __nv_bfloat16 *>(args->cache),
            args->block_table,
            args->seqlens,
            reinterpret_cast<__nv_bfloat16 *>(args->out),
            args->lse,
            (int)(args->indices ? args->batch * args->s_q : args->batch),
            (int)(args->indices ? 1 : args->s_q),
            (int)args->heads,
            (int)args->max_pages,
            args->latent,
            args->latent + args->rope,
            args->page,
            args->scale};
}

/* Calls run with the problem in the type that the kernels take. */
template <typename RUN> tsr_status with_problem(const tsr_mla_decode *args, RUN run)
{
    const problem p = problem_of(args);
    const int top_k = (int)args->top_k;
    if (args->indices) {
        return args->fp8 ? run(gathered<true, true>{p, args->indices, top_k})
                         : run(gathered<false, true>{p, args->indices, top_k});
    }
    return args->fp8 ? run(gathered<true, false>{p, NULL, 0}) : run(p);
}

/* Places the schedule and the parts' results in the workspace. Returns the bytes. */
size_t lay_out(const tsr_mla_decode *args, int processors, schedule *s)
{
    const problem p = problem_of(args);
    const auto up = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    s->tiles = (int)host::ceil_div(p.s_q * p.heads, kRows);
    s->rows = s->tiles * kRows;
    s->parts = processors / s->tiles > 1 ? processors / s->tiles : 1;
    const size_t starts = up((size_t)(p.batch + 1) * sizeof *s->start);
    const size_t begins = up((size_t)(s->parts + 1) * sizeof *s->begin);
    const size_t spans = up((size_t)p.batch * sizeof *s->span);
    const size_t lse = up((size_t)2 * s->parts * s->rows * sizeof *s->lse);
    uint8_t *const base = static_cast<uint8_t *>(args->workspace);
    s->start = reinterpret_cast<int32_t *>(base);
    s->begin = reinterpret_cast<tsr_mla_pair *>(base + starts);
    s->span = reinterpret_cast<tsr_mla_pair *>(base + starts + begins);
    s->lse = reinterpret_cast<float *>(base + starts + begins + spans);
    s->out = reinterpret_cast<float *>(base + starts + begins + spans + lse);
    return starts + begins + spans + lse + (size_t)2 * s->parts * s->rows * kLatent * sizeof *s->out;
}

tsr_status check(const tsr_mla_decode *args, tsr_err *err)
{
    const int64_t most = INT_MAX / 4;
    if (args->batch < 0 || args->s_q < 0 || args->heads < 0 || args->max_pages < 0 || args->latent < 1 ||
        args->rope < 0 || args->page < 1 || args->batch > most || args->s_q > most || args->heads > most ||
        args->max_pages > most / args->page || (args->s_q > 0 && args->heads > most / args->s_q) ||
        args->pages > most / args->page || (args->max_pages + TSR_MLA_FIXED_COST) * args->batch > most ||
        args->latent + (int64_t)args->rope >= 6000) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "MLA decoding: unsupported shape: batch %lld, queries %lld, heads %lld, pages %lld of %d, "
                        "columns %d + %d",
                        (long long)args->batch, (long long)args->s_q, (long long)args->heads,
                        (long long)args->max_pages, args->page, args->latent, args->rope);
    }
    if (args->indices && (args->top_k < 0 || args->top_k > most ||
                          (host::ceil_div(args->top_k, kPage) + TSR_MLA_FIXED_COST) * args->batch > most ||
                          (args->batch > 0 && (host::ceil_div(args->top_k, kPage) + TSR_MLA_FIXED_COST) * args->s_q >
                                                  most / args->batch))) {
        return tsr_fail(err, TSR_E_SHAPE, "MLA decoding: unsupported shape: %lld of %lld queries list %lld rows each",
                        (long long)args->batch, (long long)args->s_q, (long long)args->top_k);
    }
    if (args->fp8 && (args->latent % 128 != 0 || args->rope % 2 != 0 || !host::aligned(args->cache, 4))) {
        return tsr_fail(err, TSR_E_SHAPE, "MLA decoding: no FP8 cache of %d + %d columns, 4-byte aligned", args->latent,
                        args->rope);
    }
    return TSR_OK;
}

/* Checks the arguments, and chooses the kernel. */
tsr_status choose(const tsr_mla_decode *args, tsr_cuda_device *device, tsr_mla_kind *kind, tsr_err *err)
{
    TSR_TRY(check(args, err));
    const request r = {kWhat, "512 + 64 columns, pages of 64", args->batch == 0 || args->s_q == 0 || args->heads == 0};
    return attention::choose(r, args, fast_fits, tsr_cuda_mla_choose, device, kind, err);
}

/* BF16 rows that are gathered arrive sooner from L2 than from another CTA. */
template <typename PROBLEM> constexpr bool kPairs = PROBLEM::kFp8 || !PROBLEM::kGathered;

/* Returns the cluster size. An even number of tiles of q is processed in pairs, which share the copy of each page. */
template <typename PROBLEM> int cluster_of(const schedule &s)
{
    return kPairs<PROBLEM> && s.tiles % 2 == 0 ? 2 : 1;
}

template <typename PROBLEM> auto kernel_of(const schedule &s)
{
    if constexpr (kPairs<PROBLEM>) {
        if (cluster_of<PROBLEM>(s) == 2) {
            return fast_kernel<2, PROBLEM>;
        }
    }
    return fast_kernel<1, PROBLEM>;
}

template <typename PROBLEM>
tsr_status launch_fast(const PROBLEM &p, const schedule &s, int64_t pages, tsr_stream stream, tsr_err *err)
{
    const unsigned cluster = (unsigned)cluster_of<PROBLEM>(s);
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    CUtensorMap map_q, map_cache = {};
    const int rows = p.s_q * p.heads;
    const cuuint64_t q_dims[3] = {kWidth, (cuuint64_t)rows, (cuuint64_t)p.batch};
    const cuuint64_t q_pitches[2] = {kWidth * 2, (cuuint64_t)rows * kWidth * 2};
    const cuuint32_t q_box[3] = {64, kRows, 1}, steps[3] = {1, 1, 1};
    CUresult code = encode(&map_q, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16 *>(p.q), q_dims,
                           q_pitches, q_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS && !PROBLEM::kGathered) {
        const cuuint64_t dims[2] = {kWidth, (cuuint64_t)(pages > 0 ? pages : 1) * kPage}, pitches[1] = {kWidth * 2};
        const cuuint32_t box[2] = {64, kPage / cluster};
        code = encode(&map_cache, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16 *>(p.cache), dims,
                      pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
    if (code != CUDA_SUCCESS) {
        return tsr_fail(err, TSR_E_DEVICE, "MLA decoding: the driver refused a tensor map: error %d", (int)code);
    }
    const host::launch_shape shape = {dim3((unsigned)s.tiles, (unsigned)s.parts), 384, fast_shape::kBytes, stream};
    TSR_TRY(host::launched(kWhat,
                           host::launch(kernel_of<PROBLEM>(s), shape,
                                        {host::in_clusters(cluster), host::beside_the_one_before()}, map_q, map_cache,
                                        p, s),
                           err));

    if (s.parts == 1) {
        return TSR_OK;
    }
    const dim3 grid((unsigned)s.parts - 1, (unsigned)host::ceil_div(rows, kCombineRows));
    const host::launch_shape combine = {grid, 32 * kCombineWarps, kCombineWarps * s.parts * (int)sizeof(float), stream};
    const problem &base = p;
    return host::launched(kWhat, host::launch(combine_kernel, combine, {host::beside_the_one_before()}, base, s), err);
}

} // namespace

tsr_mla_kind tsr_cuda_mla_choose(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    return args->kind != TSR_MLA_AUTO ? args->kind : fast_fits(args, device) ? TSR_MLA_FAST : TSR_MLA_PLAIN;
}

size_t tsr_cuda_mla_workspace(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    schedule s;
    const bool fast =
        args->batch > 0 && args->s_q > 0 && args->heads > 0 && tsr_cuda_mla_choose(args, device) == TSR_MLA_FAST;
    return fast ? lay_out(args, device->processors, &s) : 0;
}

tsr_status tsr_cuda_mla_plan(const tsr_mla_decode *args, tsr_stream stream, tsr_err *err)
{
    tsr_cuda_device device;
    tsr_mla_kind kind;
    TSR_TRY(choose(args, &device, &kind, err));
    if (kind != TSR_MLA_FAST) {
        return TSR_OK;
    }
    schedule s;
    (void)lay_out(args, device.processors, &s);
    return with_problem(args, [&](const auto &p) {
        using PROBLEM = std::decay_t<decltype(p)>;
        TSR_TRY(host::launched(kWhat, host::allow_shared(kernel_of<PROBLEM>(s), fast_shape::kBytes), err));
        if constexpr (PROBLEM::kListed) {
            plan_alike_kernel<<<1, 32, 0, stream>>>(p.batch, (int)host::ceil_div(p.top_k, kPage), s);
        } else {
            plan_kernel<<<1, kPlanThreads, 0, stream>>>(p, s);
        }
        return host::launched(kWhat, cudaSuccess, err);
    });
}

tsr_status tsr_cuda_mla_decode(const tsr_mla_decode *args, tsr_stream stream, tsr_err *err)
{
    tsr_cuda_device device;
    tsr_mla_kind kind;
    TSR_TRY(choose(args, &device, &kind, err));
    if (kind == TSR_MLA_AUTO) {
        return TSR_OK;
    }
    if (kind == TSR_MLA_PLAIN) {
        const int64_t rows = args->batch * args->s_q * args->heads;
        if (rows > INT_MAX) {
            return tsr_fail(err, TSR_E_SHAPE, "MLA decoding: %lld rows exceed the plain kernel's grid",
                            (long long)rows);
        }
        return with_problem(args, [&](const auto &p) {
            plain_kernel<<<(unsigned)rows, kPlainThreads, (size_t)plain_shape_of(p).shared_floats() * sizeof(float),
                           stream>>>(p);
            return host::launched(kWhat, cudaSuccess, err);
        });
    }
    schedule s;
    (void)lay_out(args, device.processors, &s);
    return with_problem(args, [&](const auto &p) { return launch_fast(p, s, args->pages, stream, err); });
}
