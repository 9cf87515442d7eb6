/* Scores of an indexer: the plain kernel, which is the definition, and the Hopper kernel. */
#include "kernels/cuda/index_scores.h"

#include <cuda_fp8.h>
#include <limits.h>
#include <math.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/product_parts.cuh"

namespace
{

constexpr char kWhat[] = "index scores";

__device__ __forceinline__ int seen_by(const tsr_index_scores &p, int64_t query)
{
    return min(max(__ldg(p.seen + query), 0), (int)p.keys);
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

constexpr int kPlainThreads = 128;

__device__ __forceinline__ float decode(uint8_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

/* A thread computes the score of a key. blockIdx.x counts keys, then queries. */
__global__ void __launch_bounds__(kPlainThreads) plain_kernel(const tsr_index_scores p, int blocks)
{
    const int64_t query = blockIdx.x / blocks, key = (int64_t)(blockIdx.x % blocks) * kPlainThreads + threadIdx.x;
    if (key >= (int64_t)p.keys) {
        return;
    }
    float total = 0.0f;
    const bool seen = key < seen_by(p, query);
    for (size_t h = 0; seen && h < p.heads; ++h) {
        const uint8_t *const q = p.q + (query * p.heads + h) * p.width, *const k = p.k + key * p.width;
        float sum = 0.0f;
        for (size_t d = 0; d < p.width; ++d) {
            sum = fmaf(decode(q[d]), decode(k[d]), sum); /* the product is exact */
        }
        total = __fadd_rn(total, __fmul_rn(p.weights[query * p.heads + h], fmaxf(sum, 0.0f)));
    }
    p.logits[query * p.keys + key] = seen ? __fmul_rn(total, p.k_scale[key]) : -INFINITY;
}

/* ---- Hopper ------------------------------------------------------------------------------------------------------ */

constexpr int kWidth = 128, kTileKeys = 128; /* two groups of warps have 64 keys of a tile each */
constexpr int kColumns = 128;                /* heads of the queries of a CTA */
constexpr int kTileBytes = kTileKeys * kWidth, kStages = 4, kThreads = 256;
constexpr int kAhead = 2; /* tiles that are requested before their turn */
constexpr int kBarriers = (1 + kStages) * kTileBytes, kBytes = 1024 + kBarriers + (2 * kStages + 1) * 8;
constexpr int kMostTiles = 64; /* tiles of keys that a CTA computes one after another */
static_assert(hopper::ring_is_safe(kStages, 1), "all warps use every tile");
static_assert(2 * (kBytes + 1024) <= 228 * 1024, "shared memory of a multiprocessor, for two CTAs");

/* How the keys are divided among CTAs. */
struct cut {
    int tiles, each, chunks; /* tiles of keys; those of a CTA; CTAs of the same queries */
};

/* Returns the sum of x[lane % 4] over the four lanes of a quad. */
__device__ __forceinline__ float quad_sums(const float (&x)[4], int lane)
{
    const bool odd = lane & 1, high = lane & 2;
    float pair[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        pair[i] = (odd ? x[2 * i + 1] : x[2 * i]) + __shfl_xor_sync(0xFFFFFFFFu, odd ? x[2 * i] : x[2 * i + 1], 1);
    }
    return (high ? pair[1] : pair[0]) + __shfl_xor_sync(0xFFFFFFFFu, high ? pair[0] : pair[1], 2);
}

/* Adds the heads of the products of 64 keys. Sum i of a lane is that of query 2 i + lane % 4 / 2 and of the key in row
 * lane / 4 + 8 * (lane % 2) of the warp. */
template <int HEADS>
__device__ __forceinline__ void add_heads(const float (&d)[kColumns / 2], const float (&weights)[kColumns / 4],
                                          int lane, float (&sum)[kColumns / HEADS / 2])
{
    constexpr int kQueries = kColumns / HEADS;
    float score[kQueries / 2][4] = {}; /* [i][v]: query 2 i + v / 2, row 8 * (v % 2) */
#pragma unroll
    for (int c = 0; c < HEADS / 4; ++c) { /* d[4 g + 2 h + j] is column 8 g + 2 (lane % 4) + j of row 8 h */
#pragma unroll
        for (int v = 0; v < 2 * kQueries; ++v) {
            const int at = v / 2 * (HEADS / 4) + c;
            float &x = score[v / 4][v % 4];
            x = fmaf(weights[at], fmaxf(d[at / 2 * 4 + v % 2 * 2 + at % 2], 0.0f), x);
        }
    }
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
        sum[i] = quad_sums(score[i], lane);
    }
}

/* A CTA computes scores of kColumns / HEADS queries and a chunk of the keys: D = K * Q^T by e4m3 wgmma. Rows of D are
 * keys, and columns are heads of queries. Thread 0 also loads. */
template <int HEADS>
__global__ void __launch_bounds__(kThreads, 2)
    fast_kernel(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                const __grid_constant__ tsr_index_scores p, const __grid_constant__ cut keys)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int kQueries = kColumns / HEADS;
    extern __shared__ uint8_t raw[];
    uint8_t *const q = raw + (1024 - hopper::shared_address(raw) % 1024) % 1024, *const k = q + kTileBytes;
    uint64_t *const full = reinterpret_cast<uint64_t *>(q + kBarriers), *const empty = full + kStages,
                    *const q_full = empty + kStages;
    const int first_query = (int)(blockIdx.x / keys.chunks) * kQueries, lane = threadIdx.x % 32;
    const int begin = (int)(blockIdx.x % keys.chunks) * keys.each, end = min(begin + keys.each, keys.tiles);
    int most = 0;
#pragma unroll
    for (int s = 0; s < kQueries; ++s) {
        most = max(most, first_query + s < (int)p.queries ? seen_by(p, first_query + s) : 0);
    }
    const int last =
        max(begin, min(end, (most + kTileKeys - 1) / kTileKeys)); /* later tiles have no key that is seen */
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) {
            hopper::barrier_init(full + i, 1);
            hopper::barrier_init(empty + i, kThreads / 32);
        }
        hopper::barrier_init(q_full, 1);
        hopper::fence_barrier_init();
    }
    __syncthreads();

    const auto load = [&](int tile) {
        if (threadIdx.x == 0 && tile < last) {
            const int i = tile - begin, stage = i % kStages;
            hopper::barrier_wait(empty + stage, (i / kStages & 1) ^ 1);
            hopper::barrier_expect(full + stage, kTileBytes);
            hopper::load_tile(k + stage * kTileBytes, &map_k, full + stage, 0, tile * kTileKeys);
        }
    };
    if (threadIdx.x == 0 && begin < last) {
        hopper::barrier_expect(q_full, kTileBytes);
        hopper::load_tile(q, &map_q, q_full, 0, first_query * HEADS);
    }
    for (int i = 0; i < kAhead; ++i) {
        load(begin + i);
    }
    const int group = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0);
    const uint32_t a = hopper::operand_low(hopper::shared_address(k)) + (uint32_t)(group * (kTileBytes / 2 / 16));
    const uint32_t b = hopper::operand_low(hopper::shared_address(q));
    float weights[kColumns / 4];
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
        const int at = first_query * HEADS + i / 2 * 8 + lane % 4 * 2 + i % 2;
        weights[i] = __ldg(p.weights + min(at, (int)p.queries * HEADS - 1));
    }
    /* The scores that the lane stores: their first query, and the key in this tile. */
    const int query = first_query + lane % 4 / 2;
    int key = begin * kTileKeys + (int)threadIdx.x / 32 * 16 + lane % 2 * 8 + lane / 4;
    int seen[kQueries / 2], stop[kQueries / 2]; /* keys that the queries see, and that there are */
#pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
        const bool real = query + 2 * i < (int)p.queries;
        seen[i] = real ? seen_by(p, query + 2 * i) : 0;
        stop[i] = real ? (int)p.keys : 0;
    }
    float *logits = p.logits + (int64_t)query * p.keys + key;
    const float *scales = p.k_scale + key;
    if (begin < last) {
        hopper::barrier_wait(q_full, 0);
    }
    int stage = 0, phase = 0;
#pragma unroll 1
    for (int tile = begin; tile < last; ++tile) {
        const float scale = key < (int)p.keys ? __ldg(scales) : 0.0f;
        float d[kColumns / 2], sum[kQueries / 2];
        load(tile + kAhead);
        __syncwarp();
        hopper::barrier_wait(full + stage, phase);
        hopper::mma_128<kColumns>(d, a + (uint32_t)(stage * kTileBytes / 16), b);
        hopper::mma_wait<0>(d);
        if (lane == 0) {
            hopper::barrier_arrive(empty + stage);
        }
        add_heads<HEADS>(d, weights, lane, sum);
#pragma unroll
        for (int i = 0; i < kQueries / 2; ++i) {
            const float score = key < seen[i] ? sum[i] * scale : -INFINITY;
            if (key < stop[i]) {
                logits[2 * i * p.keys] = score;
            }
        }
        key += kTileKeys, logits += kTileKeys, scales += kTileKeys;
        stage = stage + 1 < kStages ? stage + 1 : 0;
        phase ^= stage == 0;
    }
    const int chunk_end = min(end * kTileKeys, (int)p.keys);
#pragma unroll
    for (int s = 0; s < kQueries; ++s) {
        for (int key = last * kTileKeys + (int)threadIdx.x; key < chunk_end && first_query + s < (int)p.queries;
             key += kThreads) {
            p.logits[(int64_t)(first_query + s) * p.keys + key] = -INFINITY;
        }
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

/* ---- launchers --------------------------------------------------------------------------------------------------- */

bool fast_fits(const tsr_index_scores *args, const tsr_cuda_device *device)
{
    return device->arch == 90 && args->width == kWidth && (args->heads == 32 || args->heads == 64) &&
           product::operands_fit(args->q, args->k, kWidth, kWidth);
}

template <int HEADS> tsr_status launch_fast(const tsr_index_scores &p, int processors, tsr_stream stream, tsr_err *err)
{
    const int64_t blocks = host::ceil_div((int64_t)p.queries, kColumns / HEADS);
    cut keys = {(int)host::ceil_div((int64_t)p.keys, kTileKeys), 0, 0};
    const int64_t even = host::ceil_div(keys.tiles * blocks, 4 * (int64_t)processors); /* two rounds of two CTAs */
    keys.chunks = (int)host::ceil_div(keys.tiles, even < kMostTiles ? even : kMostTiles);
    keys.each = (int)host::ceil_div(keys.tiles, keys.chunks);
    if (blocks * keys.chunks > INT_MAX) {
        return tsr_fail(err, TSR_E_SHAPE, "%s: %zu queries of %zu keys exceed the grid", kWhat, p.queries, p.keys);
    }
    encode_fn encode = NULL;
    CUtensorMap map_q, map_k;
    TSR_TRY(find_encode(&encode, err));
    TSR_TRY(product::encode_matrix(encode, &map_q, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.q, (int64_t)p.queries * HEADS,
                                   kWidth, kWidth, kColumns, kWidth, err));
    TSR_TRY(product::encode_matrix(encode, &map_k, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.k, (int64_t)p.keys, kWidth, kWidth,
                                   kTileKeys, kWidth, err));
    TSR_TRY(host::launched(kWhat, host::allow_shared(fast_kernel<HEADS>, kBytes), err));
    fast_kernel<HEADS><<<(unsigned)(blocks * keys.chunks), kThreads, kBytes, stream>>>(map_q, map_k, p, keys);
    return host::launched(kWhat, cudaSuccess, err);
}

} // namespace

tsr_index_kind tsr_cuda_index_choose(const tsr_index_scores *args, tsr_index_kind kind, const tsr_cuda_device *device)
{
    return kind != TSR_INDEX_AUTO ? kind : fast_fits(args, device) ? TSR_INDEX_FAST : TSR_INDEX_PLAIN;
}

tsr_status tsr_cuda_index_scores(const tsr_index_scores *args, tsr_index_kind kind, tsr_stream stream, tsr_err *err)
{
    const size_t most = INT_MAX / 4, blocks = (args->keys + kPlainThreads - 1) / kPlainThreads;
    if (args->keys > most || args->heads > most || args->width > most || args->queries > most ||
        (args->heads > 0 && args->queries > most / args->heads) || (blocks > 0 && args->queries > INT_MAX / blocks)) {
        return tsr_fail(err, TSR_E_SHAPE, "%s: unsupported shape: %zu queries, %zu keys, %zu heads of %zu", kWhat,
                        args->queries, args->keys, args->heads, args->width);
    }
    if (args->queries == 0 || args->keys == 0) {
        return TSR_OK;
    }
    tsr_cuda_device device;
    TSR_TRY(tsr_cuda_current_device(&device, err));
    if (tsr_cuda_index_choose(args, kind, &device) == TSR_INDEX_PLAIN) {
        plain_kernel<<<(unsigned)(args->queries * blocks), kPlainThreads, 0, stream>>>(*args, (int)blocks);
        return host::launched(kWhat, cudaSuccess, err);
    }
    if (!fast_fits(args, &device)) {
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: the fast kernel needs sm_90, 32 or 64 heads of 128 and 16-byte alignment; the device is "
                        "%s, sm_%d",
                        kWhat, device.name, device.arch);
    }
    return args->heads == 64 ? launch_fast<64>(*args, device.processors, stream, err)
                             : launch_fast<32>(*args, device.processors, stream, err);
}
