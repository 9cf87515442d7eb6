/* Owns the block-FP8 kernel for many tokens: A * W^T, persistent, TOKENS by WIDTH weight rows a tile, CTAs in pairs
 * that share an operand. */
#include "kernels/cuda/block_fp8_parts.cuh"

#pragma nv_diag_suppress 177 /* what only the sm_90a kernels call is unused in the pass for sm_80 */

namespace
{

using namespace block_fp8;

constexpr int kStaged = 64; /* columns of a box of results, as the copy engine writes it */

template <int TOKENS, int WIDTH> struct wide_shape {
    static constexpr int kSubs = TOKENS / 128; /* how many tiles of 64 tokens a warpgroup has */
    static constexpr int kABytes = TOKENS * kBlock, kWBytes = WIDTH * kBlock, kScaleBytes = TOKENS * 4;
    static constexpr int kStages = TOKENS == 128 && WIDTH == 128 ? 5 : 4;
    static constexpr int kAAt = 0, kWAt = kStages * kABytes;
    static constexpr int kOut = kSubs == 1 ? WIDTH : kStaged; /* columns that a warp stages at once */
    static constexpr int kStagedBytes = 8 * 16 * kOut * 2;
    static constexpr int kRing = kStages * (kABytes + kWBytes + kScaleBytes);
    static constexpr int kBytes = kStagedBytes + kRing + kStages * 16;
    /* A tile begins a multiple of kStep columns into a block of scales, kLatest columns at most. */
    static constexpr int kStep = WIDTH % 128 == 0 ? 128 : 64;
    static constexpr int kLatest = kBlock - kStep;
    static constexpr int kBlocks = (WIDTH + kLatest + kBlock - 1) / kBlock; /* of scales that a tile touches, at most */
    static constexpr bool kHalves = TOKENS == 128 && WIDTH == 128; /* of a k tile's columns, multiplied one by one */
    static_assert(WIDTH % kStaged == 0 && kBytes <= kSharedMax, "shared memory of one CTA");
};

/* Pairs of tiles, two along m (which share W) or along n (which share A), in bands along m: what runs at one time
 * shares both operands in L2. */
struct wide_schedule {
    static constexpr int kBand = 8;
    int rows, columns;    /* of pairs */
    int along_m, along_n; /* tiles of a pair: 2 and 1, or 1 and 2 */

    __device__ __forceinline__ void at(int index, int rank, int &m0, int &n0, int tokens, int width) const
    {
        const int begin = index / (kBand * columns) * kBand;
        const int height = min(kBand, rows - begin), inside = index - begin * columns;
        m0 = ((begin + inside % height) * along_m + (along_m > 1 ? rank : 0)) * tokens;
        n0 = (inside / height * along_n + (along_n > 1 ? rank : 0)) * width;
    }
};

/* The scales of one k tile for a thread's two rows, by blocks of 128 columns. */
template <typename SHAPE> struct wide_scales {
    float low[SHAPE::kBlocks], high[SHAPE::kBlocks];

    /* sum += tile * scale over groups FIRST .. FIRST + COUNT - 1 of eight columns; `offset` is where in a block of
     * 128 columns the whole tile begins. */
    template <int FIRST, int COUNT>
    __device__ __forceinline__ void add(float *sum, const float (&tile)[COUNT * 4], int offset) const
    {
#pragma unroll
        for (int g = 0; g < COUNT; ++g) {
            const int column = (FIRST + g) * 8, least = column / kBlock, most = (column + SHAPE::kLatest) / kBlock;
            float by_low = low[least], by_high = high[least];
            if (most > least) {
                const bool later = offset + column / SHAPE::kStep * SHAPE::kStep >= most * kBlock;
                by_low = later ? low[most] : by_low;
                by_high = later ? high[most] : by_high;
            }
            float *const at = sum + column / 2;
            at[0] = fmaf(tile[4 * g], by_low, at[0]);
            at[1] = fmaf(tile[4 * g + 1], by_low, at[1]);
            at[2] = fmaf(tile[4 * g + 2], by_high, at[2]);
            at[3] = fmaf(tile[4 * g + 3], by_high, at[3]);
        }
    }
};

/* Stores a thread's share of a tile, rows i and i + 8, element by element. */
template <int WIDTH, typename T>
__device__ __forceinline__ void store_elements(const problem &p, const float (&sum)[WIDTH / 2], int i, int n0, int lane)
{
#pragma unroll
    for (int e = 0; e < WIDTH / 2; ++e) {
        const int row = i + (e & 2) * 4, j = n0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
        if (row < p.m && j < p.n) {
            static_cast<T *>(p.d)[row * p.ldd + j] = narrow<T>(sum[e]);
        }
    }
}

/* Stores a warp's 16 rows by way of `staged`, its own shared memory, in boxes of 64 columns, swizzled by 128 bytes. */
template <int WIDTH, int OUT, typename T>
__device__ __forceinline__ void store_boxes(const CUtensorMap *map, const float (&sum)[WIDTH / 2], uint8_t *staged,
                                            int i0, int n0, int lane)
{
    const int row = lane % 16;
#pragma unroll
    for (int from = 0; from < WIDTH; from += OUT) {
        hopper::bulk_wait_read(); /* until the boxes before have been read */
        __syncwarp();
#pragma unroll
        for (int j = 0; j < OUT; j += 16) {
            const float *const v = sum + (from + j) / 2;
            const int chunk = j % kStaged / 8 + lane / 16;
            hopper::store_matrices(staged + j / kStaged * 2048 + row * 128 + (chunk ^ row % 8) * 16,
                                   narrow2<T>(v[0], v[1]), narrow2<T>(v[2], v[3]), narrow2<T>(v[4], v[5]),
                                   narrow2<T>(v[6], v[7]));
        }
        hopper::fence_shared_for_copies();
        __syncwarp();
        if (hopper::elect()) {
#pragma unroll
            for (int j = 0; j < OUT; j += kStaged) {
                hopper::store_tile(map, staged + j / kStaged * 2048, n0 + from + j, i0);
            }
            hopper::bulk_commit();
        }
    }
}

template <int WIDTH, int OUT, typename T>
__device__ __forceinline__ void store_results(const CUtensorMap *map, const problem &p, const float (&sum)[WIDTH / 2],
                                              uint8_t *staged, int i0, int n0, int lane)
{
    if constexpr (sizeof(T) == 2) {
        if (p.vector_store) {
            store_boxes<WIDTH, OUT, T>(map, sum, staged, i0, n0, lane);
            return;
        }
    }
    store_elements<WIDTH, T>(p, sum, i0 + lane / 4, n0, lane);
}

template <int TOKENS, int WIDTH> using wide_ring = tile_ring<wide_shape<TOKENS, WIDTH>>;
template <int TOKENS, int WIDTH> using wide_reader = tile_reader<wide_shape<TOKENS, WIDTH>>;

/* One CTA's share of the product: of `units` pairs of tiles every `stride`th, beginning with the CTA's own number. */
struct wide_share {
    int tiles; /* along k */
    int rank;  /* of the CTA in its pair */
    int units, stride;
};

/* The role of the warp that loads: one thread of it asks for the k tiles of all units that the CTA takes. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void load_units(wide_ring<TOKENS, WIDTH> &ring, const wide_schedule &schedule,
                                           const wide_share &mine, const CUtensorMap *map_a, const CUtensorMap *map_w,
                                           const CUtensorMap *map_scale)
{
    using shape = wide_shape<TOKENS, WIDTH>;
    for (int unit = blockIdx.x / 2; unit < mine.units; unit += mine.stride) {
        int m0, n0;
        schedule.at(unit, mine.rank, m0, n0, TOKENS, WIDTH);
        for (int t = 0; t < mine.tiles; ++t) {
            uint64_t *const full = &ring.full[ring.stage];
            hopper::barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1);
            hopper::barrier_expect(full, shape::kABytes + shape::kWBytes + shape::kScaleBytes);
            hopper::load_halves<TOKENS / 2 * kBlock>(ring.a + ring.stage * shape::kABytes, map_a, full, t * kBlock, m0,
                                                     schedule.along_n > 1, mine.rank);
            hopper::load_halves<WIDTH / 2 * kBlock>(ring.w + ring.stage * shape::kWBytes, map_w, full, t * kBlock, n0,
                                                    schedule.along_m > 1, mine.rank);
            hopper::load_tile(ring.scale + ring.stage * shape::kScaleBytes, map_scale, full, m0, t);
            ring.step();
        }
    }
}

/* One k tile: sum += scale_a * scale_w * (A * W^T), by a warpgroup for its kSubs tiles of 64 tokens. `row` is a
 * thread's first row of the CTA's tokens, `offset` where in a block of 128 columns the tile begins. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void multiply_tile(const wide_reader<TOKENS, WIDTH> &ring,
                                              const float (&by_w)[wide_shape<TOKENS, WIDTH>::kBlocks], int row,
                                              int offset, int lane,
                                              float (&sum)[wide_shape<TOKENS, WIDTH>::kSubs][WIDTH / 2])
{
    using shape = wide_shape<TOKENS, WIDTH>;
    const uint32_t a = ring.a(), w = ring.w(), scale_a = ring.scale(ring.stage) + (uint32_t)(row * 4);
#pragma unroll
    for (int sub = 0; sub < shape::kSubs; ++sub) {
        const float low = hopper::load_shared(scale_a + 256 * sub),
                    high = hopper::load_shared(scale_a + 256 * sub + 32);
        wide_scales<shape> scales;
#pragma unroll
        for (int b = 0; b < shape::kBlocks; ++b) {
            scales.low[b] = low * by_w[b];
            scales.high[b] = high * by_w[b];
        }
        /* Here, because the compiler would otherwise load them among the products and wait for shared memory there. */
        hopper::hold(scales.low);
        hopper::hold(scales.high);
        const auto release = [&] {
            __syncwarp(); /* all lanes have read the scales */
            if (lane < 2) {
                hopper::barrier_arrive(ring.empty(ring.stage), (uint32_t)lane);
            }
        };
        if constexpr (shape::kHalves) {
            /* So that one is added up while the tensor cores are at the other. */
            constexpr int kHalf = WIDTH / 2;
            float left[kHalf / 2], right[kHalf / 2];
            hopper::mma_128<kHalf>(left, a, w);
            hopper::mma_128<kHalf>(right, a, w + kHalf * kBlock / 16);
            hopper::mma_wait<1>(left);
            scales.template add<0, kHalf / 8>(sum[0], left, offset);
            hopper::mma_wait<0>(right);
            release();
            scales.template add<kHalf / 8, kHalf / 8>(sum[0], right, offset);
        } else {
            float tile[WIDTH / 2];
            hopper::mma_128<WIDTH>(tile, a + sub * 64 * kBlock / 16, w);
            hopper::mma_wait<0>(tile);
            if (sub == shape::kSubs - 1) {
                release();
            }
            scales.template add<0, WIDTH / 8>(sum[sub], tile, offset);
        }
    }
}

/* The role of the warps that multiply: unit by unit, k tile by k tile, then the results. */
template <int TOKENS, int WIDTH, typename T>
__device__ __forceinline__ void multiply_units(const wide_schedule &schedule, const wide_share &mine, const problem &p,
                                               const CUtensorMap *map_d, uint8_t *staged, int warp, int lane)
{
    using shape = wide_shape<TOKENS, WIDTH>;
    const int group = warp / 4, row0 = group * (TOKENS / 2) + warp % 4 * 16, last_block = (p.n - 1) / kBlock;
    wide_reader<TOKENS, WIDTH> ring(staged + shape::kStagedBytes, group * (TOKENS / 2), 0);
    /* A lane holds the weights' scales of one k tile out of 32, and already fetches those of one out of the next 32. */
    float held_w[shape::kBlocks], ahead_w[shape::kBlocks];
    const auto fetch_w = [&](int n0, int t) {
#pragma unroll
        for (int b = 0; b < shape::kBlocks; ++b) {
            ahead_w[b] = __ldg(p.scale_w + (int64_t)min(n0 / kBlock + b, last_block) * mine.tiles +
                               min(t + lane, mine.tiles - 1));
        }
    };
    int m0, n0, next_m0, next_n0;
    schedule.at(blockIdx.x / 2, mine.rank, m0, n0, TOKENS, WIDTH);
    fetch_w(n0, 0);
    for (int unit = blockIdx.x / 2; unit < mine.units; unit += mine.stride) {
        schedule.at(unit, mine.rank, m0, n0, TOKENS, WIDTH);
        const int offset = n0 % kBlock;
        schedule.at(min(unit + mine.stride, mine.units - 1), mine.rank, next_m0, next_n0, TOKENS, WIDTH);
        float sum[shape::kSubs][WIDTH / 2] = {};
        for (int t0 = 0; t0 < mine.tiles; t0 += 32) {
#pragma unroll
            for (int b = 0; b < shape::kBlocks; ++b) {
                held_w[b] = ahead_w[b];
            }
            fetch_w(t0 + 32 < mine.tiles ? n0 : next_n0, t0 + 32 < mine.tiles ? t0 + 32 : 0);
            const int count = min(32, mine.tiles - t0);
#pragma unroll 4
            for (int t = 0; t < count; ++t) {
                ring.wait();
                float by_w[shape::kBlocks];
#pragma unroll
                for (int b = 0; b < shape::kBlocks; ++b) {
                    by_w[b] = __shfl_sync(0xFFFFFFFFu, held_w[b], t);
                }
                multiply_tile<TOKENS, WIDTH>(ring, by_w, row0 + lane / 4, offset, lane, sum);
                ring.step();
            }
        }
#pragma unroll
        for (int sub = 0; sub < shape::kSubs; ++sub) {
            store_results<WIDTH, shape::kOut, T>(map_d, p, sum[sub], staged + warp * 16 * shape::kOut * 2,
                                                 m0 + row0 + 64 * sub, n0, lane);
        }
    }
    hopper::bulk_wait(); /* shared memory has to outlive the copies */
}

template <int TOKENS, int WIDTH, typename T>
__global__ void __launch_bounds__(384, 1)
    wide_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_w,
                const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ CUtensorMap map_d,
                const __grid_constant__ problem p, const __grid_constant__ wide_schedule schedule)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = wide_shape<TOKENS, WIDTH>;
    extern __shared__ __align__(1024) uint8_t staged[];
    wide_ring<TOKENS, WIDTH> ring(staged + shape::kStagedBytes);

    const int tiles = (p.k + kBlock - 1) / kBlock;
    const wide_share mine = {tiles, (int)hopper::cluster_rank(), schedule.rows * schedule.columns, (int)gridDim.x / 2};
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    hopper::let_next_launch_begin();
    if (threadIdx.x == 0) {
        for (int s = 0; s < shape::kStages; ++s) {
            hopper::barrier_init(&ring.full[s], 1);
            hopper::barrier_init(&ring.empty[s], 2 * 8);
        }
        hopper::fence_barrier_init();
        hopper::prefetch_map(&map_a);
        hopper::prefetch_map(&map_w);
        hopper::prefetch_map(&map_scale);
    }
    hopper::cluster_meet();
    hopper::wait_for_launch_before();

    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 8 && hopper::elect()) {
            load_units(ring, schedule, mine, &map_a, &map_w, &map_scale);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_units<TOKENS, WIDTH, T>(schedule, mine, p, &map_d, staged, warp, lane);
    }
    hopper::cluster_meet(); /* the neighbour may still arrive on these barriers */
#else
    __trap(); /* the launcher asks for sm_90 first */
#endif
}

template <int TOKENS, int WIDTH, typename T>
tsr_status launch_wide(const problem &p, int processors, tsr_stream stream, tsr_err *err)
{
    CUtensorMap map_a, map_w, map_scale, map_d = {};
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    if (sizeof(T) == 2 && p.vector_store) {
        TSR_TRY(
            encode_matrix(encode, &map_d, CU_TENSOR_MAP_DATA_TYPE_UINT16, p.d, p.m, p.n, p.ldd * 2, 16, kStaged, err));
    }
    TSR_TRY(
        encode_matrix(encode, &map_a, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.a, p.m, p.k, p.lda, TOKENS / 2, kBlock, err));
    TSR_TRY(encode_matrix(encode, &map_w, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.w, p.n, p.k, p.ldw, WIDTH / 2, kBlock, err));
    TSR_TRY(encode_matrix(encode, &map_scale, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.scale_a, host::ceil_div(p.k, kBlock),
                          p.m, p.ld_scale_a * 4, 1, TOKENS, err));
    const int64_t rows = host::ceil_div(p.m, TOKENS), columns = host::ceil_div(p.n, WIDTH);
    wide_schedule schedule;
    const int64_t by_m = host::ceil_div(rows, 2) * 2 * columns, by_n = rows * host::ceil_div(columns, 2) * 2;
    schedule.along_m = by_m < by_n || (by_m == by_n && WIDTH >= TOKENS) ? 2 : 1; /* shares the larger operand */
    schedule.along_n = 3 - schedule.along_m;
    schedule.rows = (int)host::ceil_div(rows, schedule.along_m);
    schedule.columns = (int)host::ceil_div(columns, schedule.along_n);
    const int64_t all = (int64_t)schedule.rows * schedule.columns, most = processors / 2;
    const dim3 grid((unsigned)(2 * (all < most ? all : most)));
    const auto kernel = wide_kernel<TOKENS, WIDTH, T>;
    constexpr int kBytes = wide_shape<TOKENS, WIDTH>::kBytes;
    TSR_TRY(host::launched(kWhat, host::allow_shared(kernel, kBytes), err));
    return host::launched(kWhat,
                          host::launch(kernel, {grid, 384, kBytes, stream},
                                       {host::in_clusters(2), host::beside_the_one_before()}, map_a, map_w, map_scale,
                                       map_d, p, schedule),
                          err);
}

template <typename T>
tsr_status run(const problem &p, const tsr_gemm_config &config, int processors, tsr_stream stream, tsr_err *err)
{
    if (config.tokens == 128 && config.rows == 128) {
        return launch_wide<128, 128, T>(p, processors, stream, err);
    }
    if (config.tokens == 128 && config.rows == 192) {
        return launch_wide<128, 192, T>(p, processors, stream, err);
    }
    if (config.tokens == 256 && config.rows == 128) {
        return launch_wide<256, 128, T>(p, processors, stream, err);
    }
    return no_such_tile(config, err);
}

} // namespace

tsr_status block_fp8::run_wide(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                               tsr_stream stream, tsr_err *err)
{
    if (config.cluster != 2) {
        return no_such_tile(config, err);
    }
    switch (out) {
    case TSR_GEMM_BF16:
        return run<__nv_bfloat16>(p, config, processors, stream, err);
    case TSR_GEMM_F16:
        return run<__half>(p, config, processors, stream, err);
    case TSR_GEMM_F32:
        return run<float>(p, config, processors, stream, err);
    }
    return no_such_tile(config, err);
}
