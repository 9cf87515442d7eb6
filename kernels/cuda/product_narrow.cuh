/* The kernel for up to some hundred tokens: A * W^T in tiles of 64 or 128 tokens, with k split over a cluster.
 *
 * PROBLEM is a kind of product: its matrices and scales; kName; kScaled, true if A's scales are copied with its k
 * tiles; `number`, the type of the sums; multiply_share, which computes the sums of a share; finisher<WIDTH>, which
 * computes the results of a thread's sums. */
#pragma once

#include "kernels/cuda/product_share.cuh"

namespace product
{

constexpr int kBox = 64; /* columns of a box of results that the copy engine writes */

/* A warpgroup handles 64 tokens and all of a tile's weight rows. With 64 tokens, two warpgroups alternate between the k
 * tiles of the same results. The warp after the last warpgroup loads. */
template <typename PROBLEM, int TOKENS, int WIDTH> struct narrow_shape {
    using problem = PROBLEM;
    using number = typename PROBLEM::number;
    using finisher = typename PROBLEM::template finisher<WIDTH>;
    static constexpr int kTokens = TOKENS, kWidth = WIDTH;
    static constexpr int kPlaces = TOKENS / 64, kTurns = 2 / kPlaces;
    static constexpr int kWarps = kPlaces * kTurns * 4; /* that multiply */
    static constexpr int kThreads = kWarps * 32 + 32;
    static constexpr int kABytes = TOKENS * kDepth, kWBytes = WIDTH * kDepth;
    static constexpr int kScaleBytes = PROBLEM::kScaled ? TOKENS * 4 : 0;
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
    static_assert(kDepth % WIDTH == 0 && WIDTH % kBox == 0,
                  "a tile has one block of scales, and whole boxes of results");
    /* The ring's memory is reused after the last k tile, for partial sums and for rows of results. The pitch of the
     * rows avoids bank conflicts. */
    static constexpr int kPitch = WIDTH * 2 + 16;
    static constexpr int kRowsAt = kPlaces * kSumBytes;
    static_assert(kRowsAt + kPlaces * 64 * kPitch <= kStages * (kABytes + kWBytes), "the sums fit the ring");
};

/* The position of a warpgroup in the CTA's tile. */
struct narrow_place {
    int index, part;  /* the place, and the number of the warpgroup among those that alternate there */
    int row0;         /* its first row */
    int thread, lane; /* index in the warpgroup, in the warp */
};

/* Returns the first of a thread's two rows, which are eight apart. */
__device__ __forceinline__ int first_row(const tile_share &mine, const narrow_place &at)
{
    return mine.m0 + at.row0 + at.thread / 32 * 16 + at.lane / 4;
}

/* Stores two adjacent results of a thread. */
template <typename T> __device__ __forceinline__ void store_pair(const matrices &p, int i, int j, float x, float y)
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
template <typename SHAPE, typename T>
__device__ __forceinline__ void put_group(const typename SHAPE::problem &p, const tile_share &mine,
                                          const narrow_place &at, const typename SHAPE::finisher &finisher,
                                          uint8_t *rows, int g, const float4 &sums)
{
    using number = typename SHAPE::number;
    const int row = at.thread / 32 * 16 + at.lane / 4, column = 8 * g + at.lane % 4 * 2;
    const number four[4] = {of_bits<number>(sums.x), of_bits<number>(sums.y), of_bits<number>(sums.z),
                            of_bits<number>(sums.w)};
    float v[4];
    finisher.template finish<1>(0, four, g, v);
    if constexpr (sizeof(T) == 2) {
        if (p.vector_store) {
            uint8_t *const to = rows + row * SHAPE::kPitch + column * 2;
            *reinterpret_cast<uint32_t *>(to) = narrow2<T>(v[0], v[1]);
            *reinterpret_cast<uint32_t *>(to + 8 * SHAPE::kPitch) = narrow2<T>(v[2], v[3]);
            return;
        }
    }
    const int i = mine.m0 + at.row0 + row, j = mine.n0 + column;
    store_pair<T>(p, i, j, v[0], v[1]);
    store_pair<T>(p, i + 8, j, v[2], v[3]);
}

/* Stores groups `begin` to `end` - 1 of a place's rows from shared memory, 16 bytes per thread. */
template <typename SHAPE, typename T>
__device__ __forceinline__ void store_rows(const matrices &p, const tile_share &mine, const narrow_place &at,
                                           const uint8_t *rows, int begin, int end)
{
    constexpr int kGroups = SHAPE::kWidth / 8, kThreads = SHAPE::kTurns * 128;
#pragma unroll 4
    for (int x = at.part * 128 + at.thread; x < 64 * kGroups; x += kThreads) {
        const int row = x / kGroups, g = x % kGroups;
        const int i = mine.m0 + at.row0 + row, j = mine.n0 + 8 * g;
        if (i >= p.m || j >= p.n || g < begin || g >= end) {
            continue;
        }
        const uint4 v = *reinterpret_cast<const uint4 *>(rows + row * SHAPE::kPitch + g * 16);
        T *const out = static_cast<T *>(p.d) + i * p.ldd + j;
        if (j + 8 <= p.n) {
            *reinterpret_cast<uint4 *>(out) = v;
        } else {
            const T *const values = reinterpret_cast<const T *>(rows + row * SHAPE::kPitch + g * 16);
            for (int c = 0; j + c < p.n; ++c) {
                out[c] = values[c];
            }
        }
    }
}

/* Role of the multiplying warps after all k tiles: adds the sums of all parts and ranks, always in their order, and
 * stores the results. */
template <typename SHAPE, typename T>
__device__ __forceinline__ void finish(uint8_t *memory, typename SHAPE::number (&sum)[SHAPE::kWidth / 2],
                                       const tile_share &mine, const typename SHAPE::problem &p,
                                       const typename SHAPE::finisher &finisher, const narrow_place &at)
{
    constexpr int kGroups = SHAPE::kWidth / 8, kThreads = SHAPE::kTurns * 128, kAtOnce = 2;
    float4 *const sums = reinterpret_cast<float4 *>(memory + at.index * SHAPE::kSumBytes) + at.thread;
    uint8_t *const rows = memory + SHAPE::kRowsAt + at.index * 64 * SHAPE::kPitch;
    const int id = 3 + at.index;         /* barrier of this place's warpgroups */
    hopper::meet(1, SHAPE::kWarps * 32); /* all warps have finished with the ring, which sums now replace */
    if (SHAPE::kTurns > 1) {
        if (at.part == 1) {
#pragma unroll
            for (int g = 0; g < kGroups; ++g) {
                sums[128 * g] = bits_of_group(sum, g);
            }
        }
        hopper::meet(id, kThreads);
    }
    if (at.part == 0) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            float4 v = bits_of_group(sum, g);
            if (SHAPE::kTurns > 1) {
                const float4 later = sums[128 * g];
                v = added<typename SHAPE::number>(v, later);
            }
            if (mine.splits > 1) {
                sums[128 * g] = v;
            } else {
                put_group<SHAPE, T>(p, mine, at, finisher, rows, g, v);
            }
        }
    }
    int begin = 0, end = kGroups;
    if (mine.splits > 1) {
        hopper::cluster_sync();
        begin = kGroups * mine.rank / mine.splits;
        end = kGroups * (mine.rank + 1) / mine.splits;
        for (int g0 = begin + at.part; g0 < end; g0 += kAtOnce * SHAPE::kTurns) {
            float4 parts[kAtOnce][kMostSplits]; /* all loads are issued before the first is used */
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const float *const own = reinterpret_cast<float *>(sums + 128 * min(g0 + i * SHAPE::kTurns, end - 1));
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
                    v = added<typename SHAPE::number>(v, parts[i][r]);
                }
                if (g0 + i * SHAPE::kTurns < end) {
                    put_group<SHAPE, T>(p, mine, at, finisher, rows, g0 + i * SHAPE::kTurns, v);
                }
            }
        }
    }
    if (sizeof(T) == 2 && p.vector_store) {
        hopper::meet(id, kThreads);
        store_rows<SHAPE, T>(p, mine, at, rows, begin, end);
    }
    if (mine.splits > 1) {
        hopper::cluster_meet(); /* a CTA must not exit while a neighbour reads its memory */
    }
}

/* Adds the sums of the two warpgroups of a place, in the one with the last k tile. Returns true for that one. The other
 * one has stored its sums before; the sum of two does not depend on the order. */
template <typename SHAPE>
__device__ __forceinline__ bool join_parts(uint8_t *memory, typename SHAPE::number (&sum)[SHAPE::kWidth / 2],
                                           const tile_share &mine, const narrow_place &at)
{
    using number = typename SHAPE::number;
    constexpr int kGroups = SHAPE::kWidth / 8;
    const int id = 3 + at.index;
    float4 *const sums = reinterpret_cast<float4 *>(memory + SHAPE::kKeptAt + at.index * SHAPE::kSumBytes) + at.thread;
    if (at.part != (mine.last - mine.first - 1) % 2) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            sums[128 * g] = bits_of_group(sum, g);
        }
        hopper::meet_arrive(id, 256);
        return false;
    }
    hopper::meet(id, 256);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        const float4 other = sums[128 * g];
        sum[4 * g] += of_bits<number>(other.x);
        sum[4 * g + 1] += of_bits<number>(other.y);
        sum[4 * g + 2] += of_bits<number>(other.z);
        sum[4 * g + 3] += of_bits<number>(other.w);
    }
    return true;
}

/* The same for an unsplit k: the copy engine stores 64 rows of results at a time. They overwrite operands that only the
 * warpgroups of this CTA have read, so no CTA waits for another. */
template <typename SHAPE, typename T>
__device__ __forceinline__ void finish_alone(uint8_t *memory, typename SHAPE::number (&sum)[SHAPE::kWidth / 2],
                                             const tile_share &mine, const typename SHAPE::problem &p,
                                             const typename SHAPE::finisher &finisher, const CUtensorMap *map,
                                             const narrow_place &at)
{
    const int id = 3 + at.index, warp = at.thread / 32;
    if constexpr (SHAPE::kTurns > 1) {
        if (!join_parts<SHAPE>(memory, sum, mine, at)) {
            return;
        }
    } else {
        hopper::meet(id, 128); /* all four warps have finished with the operands */
    }
    uint8_t *const rows = memory + SHAPE::kAAt + at.row0 * kDepth;
    const int row = warp * 16 + at.lane % 16;
    float results[SHAPE::kWidth / 2];
    finisher.template finish<SHAPE::kWidth / 8>(0, sum, 0, results);
#pragma unroll
    for (int j = 0; j < SHAPE::kWidth; j += 16) {
        const float *const v = results + j / 2;
        const int chunk = j % 64 / 8 + at.lane / 16; /* swizzled by 128 bytes */
        hopper::store_matrices(rows + j / kBox * SHAPE::kABytes + row * 128 + (chunk ^ row % 8) * 16,
                               narrow2<T>(v[0], v[1]), narrow2<T>(v[2], v[3]), narrow2<T>(v[4], v[5]),
                               narrow2<T>(v[6], v[7]));
    }
    hopper::fence_shared_for_copies();
    hopper::meet(id, 128);
    if (warp == 0 && hopper::elect()) {
        const int i = mine.m0 + at.row0, j = mine.n0;
#pragma unroll
        for (int b = 0; b < SHAPE::kWidth / kBox; ++b) {
            if (i < p.m && j + b * kBox < p.n) {
                hopper::store_tile(map, rows + b * SHAPE::kABytes, j + b * kBox, i);
            }
        }
        hopper::bulk_commit();
        hopper::bulk_wait_read(); /* shared memory must outlive the copies */
    }
}

template <typename SHAPE, typename T>
__global__ void __launch_bounds__(SHAPE::kThreads, 1)
    narrow_kernel(const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_a,
                  const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ typename SHAPE::problem p,
                  const int splits, const __grid_constant__ CUtensorMap map_d)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr int kWarps = SHAPE::kWarps;
    extern __shared__ __align__(1024) uint8_t memory[];
    const tile_share mine = share_of(p, splits, SHAPE::kTokens, SHAPE::kWidth);
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    if (p.hand_over) {
        hopper::let_next_launch_begin();
    }
    if (warp == kWarps) {
        const tile_ring<SHAPE> ring(memory);
        if (hopper::elect()) {
            hopper::prefetch_map(&map_w);
            hopper::prefetch_map(&map_a);
            if constexpr (SHAPE::kScaleBytes > 0) {
                hopper::prefetch_map(&map_scale);
            }
            make_barriers(ring, SHAPE::kPlaces * 4);
        }
        __syncwarp();
        hopper::meet_arrive(2, SHAPE::kThreads); /* no wait: this warp initialized the barriers */
        hopper::wait_for_launch_before();
        if (hopper::elect()) {
            load_share(ring, mine, p.m, &map_w, &map_a, &map_scale);
        }
    } else {
        hopper::meet(2, SHAPE::kThreads);
        hopper::wait_for_launch_before();
        const int group = warp / 4, index = group / SHAPE::kTurns;
        const narrow_place at = {index, group % SHAPE::kTurns, index * 64, (int)threadIdx.x % 128, lane};
        const typename SHAPE::finisher finisher(p, first_row(mine, at), mine.n0, lane);
        typename SHAPE::number sum[SHAPE::kWidth / 2] = {};
        multiply_share(tile_reader<SHAPE>(memory, at.row0, 0), mine, p, at, sum);
        if constexpr (sizeof(T) == 2) {
            if (mine.splits == 1 && p.vector_store) {
                finish_alone<SHAPE, T>(memory, sum, mine, p, finisher, &map_d, at);
                return;
            }
        }
        finish<SHAPE, T>(memory, sum, mine, p, finisher, at);
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

template <typename SHAPE, typename T>
tsr_status launch_narrow(const typename SHAPE::problem &p, int splits, tsr_stream stream, tsr_err *err)
{
    CUtensorMap map_d = {};
    if (sizeof(T) == 2 && splits == 1 && p.vector_store) {
        encode_fn encode = NULL;
        TSR_TRY(find_encode(&encode, err));
        TSR_TRY(encode_matrix(encode, &map_d, CU_TENSOR_MAP_DATA_TYPE_UINT16, p.d, p.m, p.n, p.ldd * 2, 64, kBox, err));
    }
    return launch_shares<SHAPE>(narrow_kernel<SHAPE, T>, p, SHAPE::kTokens, SHAPE::kWidth, splits, stream, err, map_d);
}

/* Runs the kernel of a tile on `p`. */
template <typename PROBLEM>
tsr_status run_narrow_tile(const PROBLEM &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream,
                           tsr_err *err)
{
    const bool split = config.cluster >= 1 && config.cluster <= kMostSplits;
    return for_results(out, [&](auto of) {
        using T = typename decltype(of)::type;
#define TSR_TILE(TOKENS, ROWS)                                                                        \
    if (split && config.tokens == TOKENS && config.rows == ROWS) {                                    \
        return launch_narrow<narrow_shape<PROBLEM, TOKENS, ROWS>, T>(p, config.cluster, stream, err); \
    }
        TSR_TILE(64, 64)
        TSR_TILE(64, 128)
        TSR_TILE(128, 64)
        TSR_TILE(128, 128)
#undef TSR_TILE
        return no_such_tile(PROBLEM::kName, config, err);
    });
}

} // namespace product
