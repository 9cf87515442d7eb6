/* Block-FP8 kernel for up to 32 tokens: W * A^T, so that the rows of the weights fill the tensor cores, with k split
 * over a cluster. */
#include "kernels/cuda/block_fp8_share.cuh"

#pragma nv_diag_suppress 177 /* functions called only by the sm_90a kernels are unused in the pass for sm_80 */

namespace
{

using namespace block_fp8;

constexpr int kRows = 128; /* weight rows of a tile */

/* A warpgroup handles 64 of the rows; the warp after the last warpgroup loads. */
template <int TOKENS> struct tokens_shape {
    static constexpr int kWarps = kRows / 16; /* that multiply */
    static constexpr int kThreads = kWarps * 32 + 32;
    static constexpr int kWBytes = kRows * kBlock, kABytes = TOKENS * kBlock;
    static constexpr int kScaleBytes = TOKENS * 4 < 128 ? 128 : TOKENS * 4;
    static constexpr int kStageBytes = kWBytes + kABytes + kScaleBytes + 16;
    static constexpr int kStages = kSharedMax / kStageBytes, kTurns = 1;
    static constexpr int kBytes = kStages * kStageBytes;
    static constexpr int kWAt = 0, kAAt = kStages * kWBytes;
    /* CTAs of the next launch would crowd some multiprocessors, and two active CTAs on one gave different bits from run
     * to run. */
    static_assert(kBytes > kSharedMax / 2, "one CTA a multiprocessor");
    /* floats from token to token of the partial result; avoids bank conflicts */
    static constexpr int kPitch = kRows + 4;
    static_assert(TOKENS * kPitch * 4 <= kStages * (kWBytes + kABytes), "the partial result fits the ring");
};

template <int TOKENS> using tokens_ring = tile_ring<tokens_shape<TOKENS>>;
template <int TOKENS> using tokens_reader = tile_reader<tokens_shape<TOKENS>>;

/* Role of the multiplying warps: sum += scale_a * scale_w * (W * A^T), tile by tile of the share. One
 * block of scales covers all rows of W in the tile. */
template <int TOKENS>
__device__ __forceinline__ void multiply_tiles(tokens_reader<TOKENS> ring, const tile_share &mine, const problem &p,
                                               int lane, float (&sum)[TOKENS / 2])
{
    const float *const scale_w = p.scale_w + (int64_t)(mine.n0 / kBlock) * mine.tiles;
    const auto begin = [&](float(&tile)[TOKENS / 2]) {
        ring.wait();
        hopper::mma_128<TOKENS>(tile, ring.w(), ring.a());
    };
    const auto add = [&](const float(&tile)[TOKENS / 2], int stage, float by_w) {
        const uint32_t scale_a = ring.scale(stage) + (uint32_t)(lane % 4 * 8);
        add_scaled<TOKENS>(sum, tile, scale_a, by_w);
        __syncwarp(); /* all lanes have read the scales */
        if (lane == 0) {
            hopper::barrier_arrive(ring.empty(stage));
        }
    };
    const auto scale_of = [&](int t) { return t < mine.last ? __ldg(scale_w + t) : 0.0f; };
    int t = mine.first;
    float next0 = scale_of(t), next1 = scale_of(t + 1);
    for (; t + 1 < mine.last; t += 2) { /* the products of two k tiles overlap */
        const float by_w0 = next0, by_w1 = next1;
        next0 = scale_of(t + 2);
        next1 = scale_of(t + 3);
        float tile0[TOKENS / 2], tile1[TOKENS / 2];
        const int s0 = ring.stage;
        begin(tile0);
        ring.step();
        const int s1 = ring.stage;
        begin(tile1);
        ring.step();
        hopper::mma_wait<1>(tile0);
        add(tile0, s0, by_w0);
        hopper::mma_wait<0>(tile1);
        add(tile1, s1, by_w1);
    }
    if (t < mine.last) {
        float tile[TOKENS / 2];
        begin(tile);
        hopper::mma_wait<0>(tile);
        add(tile, ring.stage, next0);
    }
}

/* Adds the sums of all ranks for this CTA's share of the tokens, always in the order of the ranks, and stores the
 * results. */
template <int TOKENS, typename T>
__device__ __forceinline__ void add_ranks(const float *partial, const tile_share &mine, const problem &p)
{
    using shape = tokens_shape<TOKENS>;
    constexpr int kQuads = kRows / 4;
    const int end = TOKENS * (mine.rank + 1) / mine.splits * kQuads;
    for (int at = TOKENS * mine.rank / mine.splits * kQuads + (int)threadIdx.x; at < end; at += shape::kWarps * 32) {
        const int token = at / kQuads, quad = at % kQuads * 4;
        const float *const own = partial + token * shape::kPitch + quad;
        float4 v;
        if (mine.splits == 1) {
            v = *reinterpret_cast<const float4 *>(own);
        } else {
            float4 parts[kMostSplits]; /* all loads are issued before the first is used */
#pragma unroll
            for (int r = 0; r < kMostSplits; ++r) {
                parts[r] =
                    r < mine.splits ? hopper::load_remote(own, (uint32_t)r) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
            v = parts[0];
#pragma unroll
            for (int r = 1; r < kMostSplits; ++r) {
                v.x += parts[r].x;
                v.y += parts[r].y;
                v.z += parts[r].z;
                v.w += parts[r].w;
            }
        }
        const int i = mine.m0 + token, j = mine.n0 + quad;
        if (i < p.m && j < p.n) {
            store_quad<T>(p, i, j, v);
        }
    }
}

template <int TOKENS, typename T>
__global__ void __launch_bounds__(tokens_shape<TOKENS>::kThreads, 1)
    tokens_kernel(const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_a,
                  const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ problem p, const int splits)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = tokens_shape<TOKENS>;
    constexpr int kWarps = shape::kWarps;
    extern __shared__ __align__(1024) uint8_t memory[];
    tokens_ring<TOKENS> ring(memory);

    const tile_share mine = share_of(p, splits, TOKENS, kRows);
    /* The shuffle tells the compiler that the value is the same in the whole warp. */
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    hopper::let_next_launch_begin();
    if (warp == kWarps && hopper::elect()) {
        make_barriers(ring, kWarps);
        hopper::prefetch_map(&map_w);
        hopper::prefetch_map(&map_a);
        hopper::prefetch_map(&map_scale);
    }
    __syncthreads();
    hopper::wait_for_launch_before();

    if (warp >= kWarps) {
        if (warp == kWarps && hopper::elect()) {
            load_share(ring, mine, p.m, &map_w, &map_a, &map_scale);
        }
    } else {
        float sum[TOKENS / 2] = {};
        multiply_tiles(tokens_reader<TOKENS>(memory, 0, warp / 4 * 64), mine, p, lane, sum);
        hopper::meet(1, kWarps * 32); /* the ring becomes the partial result */
        float *const partial = reinterpret_cast<float *>(memory);
        write_columns<TOKENS, shape::kPitch>(partial, sum, warp * 16 + lane / 4, lane);
        if (splits > 1) {
            hopper::cluster_sync();
        } else {
            hopper::meet(1, kWarps * 32);
        }
        add_ranks<TOKENS, T>(partial, mine, p);
        if (splits > 1) {
            hopper::cluster_meet(); /* a CTA must not exit while a neighbour reads its memory */
        }
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

template <int TOKENS, typename T>
tsr_status launch_tokens(const problem &p, int splits, tsr_stream stream, tsr_err *err)
{
    return launch_shares<tokens_shape<TOKENS>>(tokens_kernel<TOKENS, T>, p, TOKENS, kRows, splits, stream, err);
}

template <typename T> tsr_status run(const problem &p, const tsr_gemm_config &config, tsr_stream stream, tsr_err *err)
{
    if (config.rows == kRows && config.tokens == 16) {
        return launch_tokens<16, T>(p, config.cluster, stream, err);
    }
    if (config.rows == kRows && config.tokens == 32) {
        return launch_tokens<32, T>(p, config.cluster, stream, err);
    }
    return no_such_tile(config, err);
}

} // namespace

tsr_status block_fp8::run_tokens(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream,
                                 tsr_err *err)
{
    return for_splits(config, out, err,
                      [&](auto of) { return run<typename decltype(of)::type>(p, config, stream, err); });
}
