/* Block-FP8 kernel for some hundred tokens: A * W^T in tiles of 64 or 128 tokens, with k split over a cluster. */
#include "kernels/cuda/block_fp8_share.cuh"

#pragma nv_diag_suppress 177 /* functions called only by the sm_90a kernels are unused in the pass for sm_80 */

namespace
{

using namespace block_fp8;

constexpr int kBox = 64; /* columns of a box of results that the copy engine writes */

/* A warpgroup handles 64 tokens and all of a tile's weight rows. With 64 tokens, two warpgroups alternate between the k
 * tiles of the same results. The warp after the last warpgroup loads. */
template <int TOKENS, int WIDTH> struct narrow_shape {
    static constexpr int kPlaces = TOKENS / 64, kTurns = 2 / kPlaces;
    static constexpr int kWarps = kPlaces * kTurns * 4; /* that multiply */
    static constexpr int kThreads = kWarps * 32 + 32;
    static constexpr int kABytes = TOKENS * kBlock, kWBytes = WIDTH * kBlock, kScaleBytes = TOKENS * 4;
    /* bytes of sums of a place, by threads, a float4 per eight columns */
    static constexpr int kSumBytes = 64 * WIDTH * 4;
    static constexpr int kKeptBytes = kTurns > 1 ? kPlaces *kSumBytes : 0; /* beside the ring */
    static constexpr int kStageBytes = kABytes + kWBytes + kScaleBytes + 16;
    static constexpr int kFit = (kSharedMax - kKeptBytes) / kStageBytes, kMostStages = kFit < 16 ? kFit : 16;
    static constexpr int kStages = kMostStages / kTurns * kTurns;
    static constexpr int kKeptAt = (kStages * kStageBytes + 15) / 16 * 16;
    static constexpr int kBytes = kKeptAt + kKeptBytes;
    static constexpr int kAAt = 0, kWAt = kStages * kABytes;
    static_assert(kBytes > kSharedMax / 2, "one CTA a multiprocessor");
    static_assert(kBlock % WIDTH == 0 && WIDTH % kBox == 0,
                  "a tile has one block of scales, and whole boxes of results");
    /* The ring's memory is reused after the last k tile, for partial sums and for rows of results. The pitch of the
     * rows avoids bank conflicts. */
    static constexpr int kPitch = WIDTH * 2 + 16;
    static constexpr int kRowsAt = kPlaces * kSumBytes;
    static_assert(kRowsAt + kPlaces * 64 * kPitch <= kStages * (kABytes + kWBytes), "the sums fit the ring");
};

template <int TOKENS, int WIDTH> using narrow_ring = tile_ring<narrow_shape<TOKENS, WIDTH>>;
template <int TOKENS, int WIDTH> using narrow_reader = tile_reader<narrow_shape<TOKENS, WIDTH>>;

/* The position of a warpgroup in the CTA's tile. */
struct narrow_place {
    int index, part;  /* the place, and the number of the warpgroup among those that alternate there */
    int row0;         /* its first row */
    int thread, lane; /* index in the warpgroup, in the warp */
};

/* Role of the multiplying warps: sum += scale_a * scale_w * (A * W^T), tile by tile of the share. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void multiply_share(narrow_reader<TOKENS, WIDTH> ring, const tile_share &mine,
                                               const problem &p, const narrow_place &at, float (&sum)[WIDTH / 2])
{
    constexpr int kTurns = narrow_shape<TOKENS, WIDTH>::kTurns;
    held_scales<1> scales_w;
    const auto fetch_w = [&](int t) {
        scales_w.fetch(p.scale_w, mine.n0 / kBlock, (p.n - 1) / kBlock, t, mine.tiles, at.lane);
    };
    const uint32_t row = (uint32_t)(at.row0 + at.thread / 32 * 16 + at.lane / 4);
    fetch_w(mine.first);
    ring.begin(at.part);
    for (int t0 = mine.first; t0 < mine.last; t0 += 32) {
        scales_w.take();
        fetch_w(t0 + 32);
        const int count = min(32, mine.last - t0);
#pragma unroll 2
        for (int t = at.part; t < count; t += kTurns) {
            float tile[WIDTH / 2];
            ring.wait();
            const uint32_t scale_a = ring.scale(ring.stage) + row * 4;
            const float by_w = __shfl_sync(0xFFFFFFFFu, scales_w.now[0], t);
            const float low = hopper::load_shared(scale_a) * by_w, high = hopper::load_shared(scale_a + 32) * by_w;
            hopper::mma_128<WIDTH>(tile, ring.a(), ring.w());
            hopper::mma_wait<0>(tile);
            __syncwarp(); /* all lanes have read the scales */
            if (at.lane == 0) {
                hopper::barrier_arrive(ring.empty(ring.stage));
            }
#pragma unroll
            for (int g = 0; g < WIDTH / 8; ++g) {
                sum[4 * g] = fmaf(tile[4 * g], low, sum[4 * g]);
                sum[4 * g + 1] = fmaf(tile[4 * g + 1], low, sum[4 * g + 1]);
                sum[4 * g + 2] = fmaf(tile[4 * g + 2], high, sum[4 * g + 2]);
                sum[4 * g + 3] = fmaf(tile[4 * g + 3], high, sum[4 * g + 3]);
            }
            ring.step();
        }
    }
}

/* Stores two adjacent results of a thread. */
template <typename T> __device__ __forceinline__ void store_pair(const problem &p, int i, int j, float x, float y)
{
    T *const out = static_cast<T *>(p.d) + i * p.ldd + j;
    if (i < p.m && j < p.n) {
        out[0] = narrow<T>(x);
    }
    if (i < p.m && j + 1 < p.n) {
        out[1] = narrow<T>(y);
    }
}

/* Stores eight columns of 64 results, group g of a place: in its rows in shared memory or, if results cannot be stored
 * in 16 bytes, in their destination. */
template <int TOKENS, int WIDTH, typename T>
__device__ __forceinline__ void put_group(const problem &p, const tile_share &mine, const narrow_place &at,
                                          uint8_t *rows, int g, const float4 &v)
{
    using shape = narrow_shape<TOKENS, WIDTH>;
    const int row = at.thread / 32 * 16 + at.lane / 4, column = 8 * g + at.lane % 4 * 2;
    if constexpr (sizeof(T) == 2) {
        if (p.vector_store) {
            uint8_t *const to = rows + row * shape::kPitch + column * 2;
            *reinterpret_cast<uint32_t *>(to) = narrow2<T>(v.x, v.y);
            *reinterpret_cast<uint32_t *>(to + 8 * shape::kPitch) = narrow2<T>(v.z, v.w);
            return;
        }
    }
    const int i = mine.m0 + at.row0 + row, j = mine.n0 + column;
    store_pair<T>(p, i, j, v.x, v.y);
    store_pair<T>(p, i + 8, j, v.z, v.w);
}

/* Stores groups `begin` to `end` - 1 of a place's rows from shared memory, 16 bytes per thread. */
template <int TOKENS, int WIDTH, typename T>
__device__ __forceinline__ void store_rows(const problem &p, const tile_share &mine, const narrow_place &at,
                                           const uint8_t *rows, int begin, int end)
{
    using shape = narrow_shape<TOKENS, WIDTH>;
    constexpr int kGroups = WIDTH / 8, kThreads = shape::kTurns * 128;
#pragma unroll 4
    for (int x = at.part * 128 + at.thread; x < 64 * kGroups; x += kThreads) {
        const int row = x / kGroups, g = x % kGroups;
        const int i = mine.m0 + at.row0 + row, j = mine.n0 + 8 * g;
        if (i >= p.m || j >= p.n || g < begin || g >= end) {
            continue;
        }
        const uint4 v = *reinterpret_cast<const uint4 *>(rows + row * shape::kPitch + g * 16);
        T *const out = static_cast<T *>(p.d) + i * p.ldd + j;
        if (j + 8 <= p.n) {
            *reinterpret_cast<uint4 *>(out) = v;
        } else {
            const T *const values = reinterpret_cast<const T *>(rows + row * shape::kPitch + g * 16);
            for (int c = 0; j + c < p.n; ++c) {
                out[c] = values[c];
            }
        }
    }
}

/* Role of the multiplying warps after all k tiles: adds the sums of all parts and ranks, always in their order, and
 * stores the results. */
template <int TOKENS, int WIDTH, typename T>
__device__ __forceinline__ void finish(uint8_t *memory, float (&sum)[WIDTH / 2], const tile_share &mine,
                                       const problem &p, const narrow_place &at)
{
    using shape = narrow_shape<TOKENS, WIDTH>;
    constexpr int kGroups = WIDTH / 8, kThreads = shape::kTurns * 128, kAtOnce = 2;
    float4 *const sums = reinterpret_cast<float4 *>(memory + at.index * shape::kSumBytes) + at.thread;
    uint8_t *const rows = memory + shape::kRowsAt + at.index * 64 * shape::kPitch;
    const int id = 3 + at.index;         /* barrier of this place's warpgroups */
    hopper::meet(1, shape::kWarps * 32); /* all warps have finished with the ring, which sums now replace */
    if (shape::kTurns > 1) {
        if (at.part == 1) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                sums[128 * g] = make_float4(sum[4 * g], sum[4 * g + 1], sum[4 * g + 2], sum[4 * g + 3]);
            }
        }
        hopper::meet(id, kThreads);
    }
    if (at.part == 0) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            float4 v = make_float4(sum[4 * g], sum[4 * g + 1], sum[4 * g + 2], sum[4 * g + 3]);
            if (shape::kTurns > 1) {
                const float4 later = sums[128 * g];
                v = make_float4(v.x + later.x, v.y + later.y, v.z + later.z, v.w + later.w);
            }
            if (mine.splits > 1) {
                sums[128 * g] = v;
            } else {
                put_group<TOKENS, WIDTH, T>(p, mine, at, rows, g, v);
            }
        }
    }
    int begin = 0, end = kGroups;
    if (mine.splits > 1) {
        hopper::cluster_sync();
        begin = kGroups * mine.rank / mine.splits;
        end = kGroups * (mine.rank + 1) / mine.splits;
        for (int g0 = begin + at.part; g0 < end; g0 += kAtOnce * shape::kTurns) {
            float4 parts[kAtOnce][kMostSplits]; /* all loads are issued before the first is used */
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const float *const own = reinterpret_cast<float *>(sums + 128 * min(g0 + i * shape::kTurns, end - 1));
#pragma unroll
                for (int r = 0; r < kMostSplits; ++r) {
                    parts[i][r] =
                        r < mine.splits ? hopper::load_remote(own, (uint32_t)r) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                float4 v = parts[i][0];
#pragma unroll
                for (int r = 1; r < kMostSplits; ++r) {
                    const float4 &w = parts[i][r];
                    v = make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w);
                }
                if (g0 + i * shape::kTurns < end) {
                    put_group<TOKENS, WIDTH, T>(p, mine, at, rows, g0 + i * shape::kTurns, v);
                }
            }
        }
    }
    if (sizeof(T) == 2 && p.vector_store) {
        hopper::meet(id, kThreads);
        store_rows<TOKENS, WIDTH, T>(p, mine, at, rows, begin, end);
    }
    if (mine.splits > 1) {
        hopper::cluster_meet(); /* a CTA must not exit while a neighbour reads its memory */
    }
}

/* Adds the sums of the two warpgroups of a place, in the one with the last k tile. Returns true for that one. The other
 * one has stored its sums before; the sum of two does not depend on the order. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ bool join_parts(uint8_t *memory, float (&sum)[WIDTH / 2], const tile_share &mine,
                                           const narrow_place &at)
{
    using shape = narrow_shape<TOKENS, WIDTH>;
    constexpr int kGroups = WIDTH / 8;
    const int id = 3 + at.index;
    float4 *const sums = reinterpret_cast<float4 *>(memory + shape::kKeptAt + at.index * shape::kSumBytes) + at.thread;
    if (at.part != (mine.last - mine.first - 1) % 2) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            sums[128 * g] = make_float4(sum[4 * g], sum[4 * g + 1], sum[4 * g + 2], sum[4 * g + 3]);
        }
        hopper::meet_arrive(id, 256);
        return false;
    }
    hopper::meet(id, 256);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        const float4 other = sums[128 * g];
        sum[4 * g] += other.x;
        sum[4 * g + 1] += other.y;
        sum[4 * g + 2] += other.z;
        sum[4 * g + 3] += other.w;
    }
    return true;
}

/* The same for an unsplit k: the copy engine stores 64 rows of results at a time. They overwrite operands that only the
 * warpgroups of this CTA have read, so no CTA waits for another. */
template <int TOKENS, int WIDTH, typename T>
__device__ __forceinline__ void finish_alone(uint8_t *memory, float (&sum)[WIDTH / 2], const tile_share &mine,
                                             const problem &p, const CUtensorMap *map, const narrow_place &at)
{
    using shape = narrow_shape<TOKENS, WIDTH>;
    const int id = 3 + at.index, warp = at.thread / 32;
    if constexpr (shape::kTurns > 1) {
        if (!join_parts<TOKENS, WIDTH>(memory, sum, mine, at)) {
            return;
        }
    } else {
        hopper::meet(id, 128); /* all four warps have finished with the operands */
    }
    uint8_t *const rows = memory + shape::kAAt + at.row0 * kBlock;
    const int row = warp * 16 + at.lane % 16;
#pragma unroll
    for (int j = 0; j < WIDTH; j += 16) {
        const float *const v = sum + j / 2;
        const int chunk = j % 64 / 8 + at.lane / 16; /* swizzled by 128 bytes */
        hopper::store_matrices(rows + j / kBox * shape::kABytes + row * 128 + (chunk ^ row % 8) * 16,
                               narrow2<T>(v[0], v[1]), narrow2<T>(v[2], v[3]), narrow2<T>(v[4], v[5]),
                               narrow2<T>(v[6], v[7]));
    }
    hopper::fence_shared_for_copies();
    hopper::meet(id, 128);
    if (warp == 0 && hopper::elect()) {
        const int i = mine.m0 + at.row0, j = mine.n0;
#pragma unroll
        for (int b = 0; b < WIDTH / kBox; ++b) {
            if (i < p.m && j + b * kBox < p.n) {
                hopper::store_tile(map, rows + b * shape::kABytes, j + b * kBox, i);
            }
        }
        hopper::bulk_commit();
        hopper::bulk_wait_read(); /* shared memory must outlive the copies */
    }
}

template <int TOKENS, int WIDTH, typename T>
__global__ void __launch_bounds__(narrow_shape<TOKENS, WIDTH>::kThreads, 1)
    narrow_kernel(const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_a,
                  const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ problem p, const int splits,
                  const __grid_constant__ CUtensorMap map_d)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = narrow_shape<TOKENS, WIDTH>;
    constexpr int kWarps = shape::kWarps;
    extern __shared__ __align__(1024) uint8_t memory[];
    const tile_share mine = share_of(p, splits, TOKENS, WIDTH);
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    if (p.hand_over) {
        hopper::let_next_launch_begin();
    }
    if (warp == kWarps) {
        const narrow_ring<TOKENS, WIDTH> ring(memory);
        if (hopper::elect()) {
            hopper::prefetch_map(&map_w);
            hopper::prefetch_map(&map_a);
            hopper::prefetch_map(&map_scale);
            make_barriers(ring, shape::kPlaces * 4);
        }
        __syncwarp();
        hopper::meet_arrive(2, shape::kThreads); /* no wait: this warp initialized the barriers */
        hopper::wait_for_launch_before();
        if (hopper::elect()) {
            load_share(ring, mine, p.m, &map_w, &map_a, &map_scale);
        }
    } else {
        hopper::meet(2, shape::kThreads);
        hopper::wait_for_launch_before();
        const int group = warp / 4, index = group / shape::kTurns;
        const narrow_place at = {index, group % shape::kTurns, index * 64, (int)threadIdx.x % 128, lane};
        float sum[WIDTH / 2] = {};
        multiply_share<TOKENS, WIDTH>(narrow_reader<TOKENS, WIDTH>(memory, at.row0, 0), mine, p, at, sum);
        if constexpr (sizeof(T) == 2) {
            if (mine.splits == 1 && p.vector_store) {
                finish_alone<TOKENS, WIDTH, T>(memory, sum, mine, p, &map_d, at);
                return;
            }
        }
        finish<TOKENS, WIDTH, T>(memory, sum, mine, p, at);
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

template <int TOKENS, int WIDTH, typename T>
tsr_status launch_narrow(const problem &p, int splits, tsr_stream stream, tsr_err *err)
{
    using shape = narrow_shape<TOKENS, WIDTH>;
    CUtensorMap map_d = {};
    if (sizeof(T) == 2 && splits == 1 && p.vector_store) {
        encode_fn encode = NULL;
        TSR_TRY(find_encode(&encode, err));
        TSR_TRY(encode_matrix(encode, &map_d, CU_TENSOR_MAP_DATA_TYPE_UINT16, p.d, p.m, p.n, p.ldd * 2, 64, kBox, err));
    }
    return launch_shares<shape>(narrow_kernel<TOKENS, WIDTH, T>, p, TOKENS, WIDTH, splits, stream, err, map_d);
}

template <typename T> tsr_status run(const problem &p, const tsr_gemm_config &config, tsr_stream stream, tsr_err *err)
{
#define TSR_TILE(TOKENS, ROWS)                                                 \
    if (config.tokens == TOKENS && config.rows == ROWS) {                      \
        return launch_narrow<TOKENS, ROWS, T>(p, config.cluster, stream, err); \
    }
    TSR_TILE(64, 64)
    TSR_TILE(64, 128)
    TSR_TILE(128, 128)
#undef TSR_TILE
    return no_such_tile(config, err);
}

} // namespace

tsr_status block_fp8::run_narrow(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream,
                                 tsr_err *err)
{
    return for_splits(config, out, err,
                      [&](auto of) { return run<typename decltype(of)::type>(p, config, stream, err); });
}
