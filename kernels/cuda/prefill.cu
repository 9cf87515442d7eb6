/* Entry of prefill: the plain kernel, which is its definition, and the launch of the fast one. */
#include "kernels/cuda/prefill.h"

#include <limits.h>
#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prefill_fast.cuh"
#include "kernels/cuda/prefill_order.cuh"
#include "kernels/cuda/tensor_map.cuh"

static_assert(std::is_same<tsr_stream, cudaStream_t>::value, "tsr_stream is cudaStream_t");

namespace
{

/* ---- the definition ---------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(kPlainThreads) plain_kernel(const problem p)
{
    extern __shared__ float shared[];
    const int i = (int)(blockIdx.x / (unsigned)p.heads), h = (int)(blockIdx.x % (unsigned)p.heads);
    int b = 0;
    range q = {0, 0};
    for (; b < p.batch; ++b) {
        q = range_of(p.ends_q, b, p.tokens_q);
        if (i >= q.begin && i < q.begin + q.length) {
            break;
        }
    }
    if (b == p.batch) {
        return;
    }
    const range k = range_of(p.ends_k, b, p.tokens_k);
    const plain_shape &s = p.shape;
    const auto token = [&](int t) {
        const int64_t at = k.begin + t;
        const __nv_bfloat16 *const kv = p.kv + (at * (p.heads / p.share) + h / p.share) * (s.nope + s.value);
        return plain_token<>{kv, p.k_rope + at * s.rope, kv + s.nope};
    };
    const int64_t row = blockIdx.x;
    const auto write = [&](int c, float x) {
        if (p.out) {
            p.out[row * s.value + c] = __float2bfloat16_rn(x);
        }
        if (p.out_f32) {
            p.out_f32[row * s.value + c] = x;
        }
    };
    attend_plain(s, p.q + row * (s.nope + s.rope), k.length - q.length + i - q.begin + 1, token, write,
                 p.lse ? p.lse + row : NULL, shared);
}
/* ---- launchers --------------------------------------------------------------------------------------------------- */

constexpr char kWhat[] = "prefill";

bool fast_fits(const tsr_prefill *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->nope == kNope && (args->rope == kRope || args->rope == 0) &&
           args->value == kValue && args->tokens_k > 0 && host::aligned(args->q, 16) && host::aligned(args->kv, 16) &&
           host::aligned(args->k_rope, 16) && host::aligned(args->out, 16) && host::aligned(args->out_f32, 8);
}

problem problem_of(const tsr_prefill *args)
{
    return {reinterpret_cast<const __nv_bfloat16 *>(args->q),
            reinterpret_cast<const __nv_bfloat16 *>(args->kv),
            reinterpret_cast<const __nv_bfloat16 *>(args->k_rope),
            args->cu_seqlens_q,
            args->cu_seqlens_k,
            reinterpret_cast<__nv_bfloat16 *>(args->out),
            args->out_f32,
            args->lse,
            (int)args->batch,
            (int)args->heads,
            (int)(args->heads / args->kv_heads),
            (int)args->tokens_q,
            (int)args->tokens_k,
            {args->nope, args->rope, args->value, args->scale}};
}

constexpr size_t kCounters = 256; /* bytes before the sequences */

order order_of(const tsr_prefill *args)
{
    uint8_t *const base = static_cast<uint8_t *>(args->workspace);
    return {reinterpret_cast<int *>(base), reinterpret_cast<int *>(base + kCounters / 2),
            reinterpret_cast<int2 *>(base + kCounters)};
}

tsr_status check(const tsr_prefill *args, tsr_err *err)
{
    const int64_t most = INT_MAX / 4;
    if (args->batch < 0 || args->heads < 0 || args->kv_heads < 1 || args->heads % args->kv_heads != 0 ||
        args->tokens_q < 0 || args->tokens_k < 0 || args->nope < 0 || args->rope < 0 || args->value < 1 ||
        args->batch > most || args->tokens_q > most || args->tokens_k > most ||
        (args->heads > 0 && args->tokens_q / kRows + args->batch > most / args->heads) ||
        args->nope + (int64_t)args->rope + args->value >= 6000) {
        return tsr_fail(
            err, TSR_E_SHAPE,
            "prefill: unsupported shape: batch %lld, heads %lld, with keys %lld, queries %lld, tokens %lld, "
            "columns %d + %d, %d",
            (long long)args->batch, (long long)args->heads, (long long)args->kv_heads, (long long)args->tokens_q,
            (long long)args->tokens_k, args->nope, args->rope, args->value);
    }
    return TSR_OK;
}

/* Checks the arguments, and chooses the kernel. */
tsr_status choose(const tsr_prefill *args, tsr_cuda_device *device, tsr_mla_kind *kind, tsr_err *err)
{
    TSR_TRY(check(args, err));
    const request r = {kWhat, "128 + 64 (or 0) and 128 columns, a token",
                       args->batch == 0 || args->heads == 0 || args->tokens_q == 0};
    return attention::choose(r, args, fast_fits, tsr_cuda_prefill_choose, device, kind, err);
}

/* Encodes boxes of `box_rows` rows and 64 columns of one head of `base` [rows][heads][columns]. */
CUresult map_rows(encode_fn encode, CUtensorMap *map, const __nv_bfloat16 *base, int columns, int heads, int rows,
                  int box_rows)
{
    const cuuint64_t dims[3] = {(cuuint64_t)columns, (cuuint64_t)heads, (cuuint64_t)rows};
    const cuuint64_t pitches[2] = {(cuuint64_t)columns * 2, (cuuint64_t)heads * (cuuint64_t)columns * 2};
    const cuuint32_t box[3] = {64, 1, (cuuint32_t)box_rows}, steps[3] = {1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<__nv_bfloat16 *>(base), dims, pitches, box,
                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <int KEY_TILES>
tsr_status launch_fast(const problem &p, const order &s, const tsr_cuda_device &device, tsr_stream stream, tsr_err *err)
{
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    CUtensorMap map_q, map_kv, map_rope = {};
    CUresult code = map_rows(encode, &map_q, p.q, KEY_TILES * 64, p.heads, p.tokens_q, kGroupRows);
    if (code == CUDA_SUCCESS) {
        code = map_rows(encode, &map_kv, p.kv, kNope + kValue, p.heads / p.share, p.tokens_k, kTokens);
    }
    if (code == CUDA_SUCCESS && KEY_TILES > kNopeTiles) {
        code = map_rows(encode, &map_rope, p.k_rope, kRope, 1, p.tokens_k, kTokens);
    }
    if (code != CUDA_SUCCESS) {
        return tsr_fail(err, TSR_E_DEVICE, "prefill: the driver refused a tensor map: error %d", (int)code);
    }
    constexpr int kBytes = fast_shape<KEY_TILES>::kBytes;
    TSR_TRY(host::launched(kWhat, host::allow_shared(fast_kernel<KEY_TILES>, kBytes), err));
    const int64_t tiles = ((int64_t)p.tokens_q / kRows + p.batch) * p.heads; /* or fewer */
    const unsigned ctas = (unsigned)(tiles < device.processors ? tiles : device.processors);
    fast_kernel<KEY_TILES><<<ctas, 384, kBytes, stream>>>(map_q, map_kv, map_rope, p, s);
    return host::launched(kWhat, cudaSuccess, err);
}

} // namespace

tsr_mla_kind tsr_cuda_prefill_choose(const tsr_prefill *args, const tsr_cuda_device *device)
{
    return args->kind != TSR_MLA_AUTO ? args->kind : fast_fits(args, device) ? TSR_MLA_FAST : TSR_MLA_PLAIN;
}

size_t tsr_cuda_prefill_workspace(const tsr_prefill *args, const tsr_cuda_device *device)
{
    return tsr_cuda_prefill_choose(args, device) == TSR_MLA_FAST ? kCounters + (size_t)(args->batch + 1) * sizeof(int2)
                                                                 : 0;
}

tsr_status tsr_cuda_prefill_plan(const tsr_prefill *args, tsr_stream stream, tsr_err *err)
{
    tsr_cuda_device device;
    tsr_mla_kind kind;
    TSR_TRY(choose(args, &device, &kind, err));
    if (kind != TSR_MLA_FAST) {
        return TSR_OK;
    }
    const unsigned ctas = (unsigned)((args->batch + kPlanThreads - 1) / kPlanThreads);
    plan_kernel<<<ctas, kPlanThreads, 0, stream>>>(problem_of(args), order_of(args));
    return host::launched(kWhat, cudaSuccess, err);
}

tsr_status tsr_cuda_prefill(const tsr_prefill *args, tsr_stream stream, tsr_err *err)
{
    tsr_cuda_device device;
    tsr_mla_kind kind;
    TSR_TRY(choose(args, &device, &kind, err));
    if (kind == TSR_MLA_AUTO) {
        return TSR_OK;
    }
    const problem p = problem_of(args);
    if (kind == TSR_MLA_FAST) {
        auto *const launch = p.shape.rope > 0 ? launch_fast<kNopeTiles + 1> : launch_fast<kNopeTiles>;
        return launch(p, order_of(args), device, stream, err);
    }
    if (args->heads > INT_MAX / args->tokens_q) {
        return tsr_fail(err, TSR_E_SHAPE, "prefill: %lld queries of %lld heads exceed the plain kernel's grid",
                        (long long)args->tokens_q, (long long)args->heads);
    }
    plain_kernel<<<(unsigned)(args->tokens_q * args->heads), kPlainThreads,
                   (size_t)p.shape.shared_floats() * sizeof(float), stream>>>(p);
    return host::launched(kWhat, cudaSuccess, err);
}
