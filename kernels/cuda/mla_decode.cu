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

__device__ __host__ plain_shape plain_shape_of(const problem &p)
{
    return {p.latent, p.width - p.latent, p.latent, p.scale};
}

__global__ void __launch_bounds__(kPlainThreads) plain_kernel(const problem p)
{
    extern __shared__ float shared[];
    const int64_t row = blockIdx.x;
    const int64_t rows = (int64_t)p.s_q * p.heads;
    const int b = (int)(row / rows), i = (int)(row % rows / p.heads);
    const int32_t *const table = p.block_table + (int64_t)b * p.max_pages;
    const auto token = [&](int t) {
        const __nv_bfloat16 *const k = p.cache + ((int64_t)table[t / p.page] * p.page + t % p.page) * p.width;
        return plain_token{k, k + p.latent, k};
    };
    const auto write = [&](int c, float x) { p.out[row * p.latent + c] = __float2bfloat16_rn(x); };
    attend_plain(plain_shape_of(p), p.q + row * p.width, length_of(p, b) - p.s_q + i + 1, token, write,
                 p.lse ? p.lse + row : NULL, shared);
}
/* ---- launchers --------------------------------------------------------------------------------------------------- */

constexpr char kWhat[] = "MLA decoding";

bool fast_fits(const tsr_mla_decode *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->latent == kLatent && args->rope == kRope && args->page == kPage &&
           host::aligned(args->q, 16) && host::aligned(args->cache, 16) && host::aligned(args->out, 16);
}

problem problem_of(const tsr_mla_decode *args)
{
    return {reinterpret_cast<const __nv_bfloat16 *>(args->q),
            reinterpret_cast<const __nv_bfloat16 *>(args->cache),
            args->block_table,
            args->seqlens,
            reinterpret_cast<__nv_bfloat16 *>(args->out),
            args->lse,
            (int)args->batch,
            (int)args->s_q,
            (int)args->heads,
            (int)args->max_pages,
            args->latent,
            args->latent + args->rope,
            args->page,
            args->scale};
}

/* Places the schedule and the parts' results in the workspace. Returns the bytes. */
size_t lay_out(const tsr_mla_decode *args, int processors, schedule *s)
{
    const auto up = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    s->tiles = (int)host::ceil_div(args->s_q * args->heads, kRows);
    s->rows = s->tiles * kRows;
    s->parts = processors / s->tiles > 1 ? processors / s->tiles : 1;
    const size_t starts = up((size_t)(args->batch + 1) * sizeof *s->start);
    const size_t begins = up((size_t)(s->parts + 1) * sizeof *s->begin);
    const size_t spans = up((size_t)args->batch * sizeof *s->span);
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
    return TSR_OK;
}

/* Checks the arguments, and chooses the kernel. */
tsr_status choose(const tsr_mla_decode *args, tsr_cuda_device *device, tsr_mla_kind *kind, tsr_err *err)
{
    TSR_TRY(check(args, err));
    const request r = {kWhat, "512 + 64 columns, pages of 64", args->batch == 0 || args->s_q == 0 || args->heads == 0};
    return attention::choose(r, args, fast_fits, tsr_cuda_mla_choose, device, kind, err);
}

/* Returns the cluster size. An even number of tiles of q is processed in pairs, which share the copy of each page. */
int cluster_of(const schedule &s)
{
    return s.tiles % 2 == 0 ? 2 : 1;
}

void (*kernel_of(const schedule &s))(CUtensorMap, CUtensorMap, problem, schedule)
{
    return cluster_of(s) == 2 ? fast_kernel<2> : fast_kernel<1>;
}

tsr_status launch_fast(const problem &p, const schedule &s, int64_t pages, tsr_stream stream, tsr_err *err)
{
    const unsigned cluster = (unsigned)cluster_of(s);
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    CUtensorMap map_q, map_cache;
    const int rows = p.s_q * p.heads;
    const cuuint64_t q_dims[3] = {kWidth, (cuuint64_t)rows, (cuuint64_t)p.batch};
    const cuuint64_t q_pitches[2] = {kWidth * 2, (cuuint64_t)rows * kWidth * 2};
    const cuuint32_t q_box[3] = {64, kRows, 1}, steps[3] = {1, 1, 1};
    CUresult code = encode(&map_q, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16 *>(p.q), q_dims,
                           q_pitches, q_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS) {
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
    TSR_TRY(
        host::launched(kWhat,
                       host::launch(kernel_of(s), shape, {host::in_clusters(cluster), host::beside_the_one_before()},
                                    map_q, map_cache, p, s),
                       err));

    if (s.parts == 1) {
        return TSR_OK;
    }
    const dim3 grid((unsigned)s.parts - 1, (unsigned)host::ceil_div(rows, kCombineRows));
    const host::launch_shape combine = {grid, 32 * kCombineWarps, kCombineWarps * s.parts * (int)sizeof(float), stream};
    return host::launched(kWhat, host::launch(combine_kernel, combine, {host::beside_the_one_before()}, p, s), err);
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
    TSR_TRY(host::launched(kWhat, host::allow_shared(kernel_of(s), fast_shape::kBytes), err));
    plan_kernel<<<1, kPlanThreads, 0, stream>>>(problem_of(args), s);
    return host::launched(kWhat, cudaSuccess, err);
}

tsr_status tsr_cuda_mla_decode(const tsr_mla_decode *args, tsr_stream stream, tsr_err *err)
{
    tsr_cuda_device device;
    tsr_mla_kind kind;
    TSR_TRY(choose(args, &device, &kind, err));
    if (kind == TSR_MLA_AUTO) {
        return TSR_OK;
    }
    const problem p = problem_of(args);
    if (kind == TSR_MLA_PLAIN) {
        const int64_t rows = args->batch * args->s_q * args->heads;
        if (rows > INT_MAX) {
            return tsr_fail(err, TSR_E_SHAPE, "MLA decoding: %lld rows exceed the plain kernel's grid",
                            (long long)rows);
        }
        plain_kernel<<<(unsigned)rows, kPlainThreads, (size_t)plain_shape_of(p).shared_floats() * sizeof(float),
                       stream>>>(p);
        return host::launched(kWhat, cudaSuccess, err);
    }
    schedule s;
    (void)lay_out(args, device.processors, &s);
    return launch_fast(p, s, args->pages, stream, err);
}
