/* Common code of the dense and the grouped block-FP8 kernel for many tokens, for these two files only: A * W^T in tiles
 * of TOKENS by WIDTH weight rows, with CTAs in pairs that share an operand; how a tile is loaded, multiplied and
 * stored. */
#ifndef TSR_KERNELS_CUDA_BLOCK_FP8_WIDE_CUH
#define TSR_KERNELS_CUDA_BLOCK_FP8_WIDE_CUH

#include "kernels/cuda/block_fp8_parts.cuh"

#pragma nv_diag_suppress 177 /* functions called only by the sm_90a kernels are unused in the pass for sm_80 */

namespace block_fp8
{

constexpr int kStaged = 64; /* columns and rows of a box of results that the copy engine writes */
constexpr int kBoxBytes = kStaged * kStaged * 2;

template <int TOKENS, int WIDTH> struct wide_shape {
    static constexpr int kSubs = TOKENS / 128; /* number of 64-token tiles per warpgroup */
    static constexpr int kABytes = TOKENS * kBlock, kWBytes = WIDTH * kBlock, kScaleBytes = TOKENS * 4;
    static constexpr int kStages = TOKENS == 128 && WIDTH == 128 ? 5 : 4, kTurns = 1;
    static constexpr int kAAt = 0, kWAt = kStages * kABytes;
    static constexpr int kOut = kSubs == 1 ? WIDTH : kStaged; /* columns that a warpgroup stages at once */
    static constexpr int kGroupBytes = 64 * kOut * 2, kStagedBytes = 2 * kGroupBytes;
    static constexpr int kRing = kStages * (kABytes + kWBytes + kScaleBytes);
    static constexpr int kBytes = kStagedBytes + kRing + kStages * 16;
    /* A tile begins at a multiple of kStep columns within a block of scales, at most at kLatest. */
    static constexpr int kStep = WIDTH % 128 == 0 ? 128 : 64;
    static constexpr int kLatest = kBlock - kStep;
    /* most blocks of scales that a tile touches */
    static constexpr int kBlocks = (WIDTH + kLatest + kBlock - 1) / kBlock;
    /* the halves of a k tile's columns are multiplied one after the other */
    static constexpr bool kHalves = TOKENS == 128 && WIDTH == 128;
    static_assert(WIDTH % kStaged == 0 && kBytes <= kSharedMax, "shared memory of one CTA");
};

/* Pairs of tiles, two along m (sharing W) or along n (sharing A), in bands along m, so that concurrent CTAs share both
 * operands in L2. */
struct wide_schedule {
    static constexpr int kBand = 8;
    int rows, columns;    /* numbers of pairs */
    int along_m, along_n; /* tiles of a pair: 2 and 1, or 1 and 2 */

    __device__ __forceinline__ void at(int index, int rank, int &m0, int &n0, int tokens, int width) const
    {
        const unsigned before = (unsigned)index / (unsigned)(kBand * columns),
                       inside = index - before * kBand * columns;
        const unsigned begin = before * kBand, height = min(kBand, rows - (int)begin);
        /* Dividing by a run-time value costs as much as one k tile, so only the last band does it. */
        const unsigned column = height == kBand ? inside / kBand : inside / height,
                       row = begin + inside - column * height;
        m0 = ((int)row * along_m + (along_m > 1 ? rank : 0)) * tokens;
        n0 = ((int)column * along_n + (along_n > 1 ? rank : 0)) * width;
    }
};

/* The scales of one k tile for a thread's two rows, by blocks of 128 columns. */
template <typename SHAPE> struct wide_scales {
    float low[SHAPE::kBlocks], high[SHAPE::kBlocks];

    /* Computes sum += tile * scale over groups FIRST .. FIRST + COUNT - 1 of eight columns. `offset` is where the tile
     * begins in a block of 128 columns. */
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

/* Stores a thread's share of a tile, rows i and i + 8, element by element, for rows before `end`. */
template <int WIDTH, typename T>
__device__ __forceinline__ void store_elements(const problem &p, const float (&sum)[WIDTH / 2], int i, int end, int n0,
                                               int lane)
{
#pragma unroll
    for (int e = 0; e < WIDTH / 2; ++e) {
        const int row = i + (e & 2) * 4, j = n0 + e / 4 * 8 + lane % 4 * 2 + e % 2;
        if (row < end && j < p.n) {
            static_cast<T *>(p.d)[row * p.ldd + j] = narrow<T>(sum[e]);
        }
    }
}

/* Returns the position of eight columns of a row in the boxes of a warpgroup's results, swizzled by 128 bytes; `chunk`
 * counts groups of eight. */
__device__ __forceinline__ int staged_at(int row, int chunk)
{
    constexpr int kChunks = kStaged / 8;
    return chunk / kChunks * kBoxBytes + row * 128 + (chunk % kChunks ^ row % 8) * 16;
}

/* Copies the first `rows` rows of the boxes to their destination, 16 bytes per thread. n is a multiple of 8. All
 * threads run the same number of iterations: with a different number per thread, the compiler assumes that warps have
 * diverged, and generates slower code for the products' loop. */
template <int OUT, typename T>
__device__ __forceinline__ void copy_rows(const problem &p, const uint8_t *staged, int i0, int n0, int rows, int thread)
{
    constexpr int kChunks = OUT / 8;
#pragma unroll 1
    for (int x = 0; x < 64 * kChunks; x += 128) {
        const int row = (x + thread) / kChunks, chunk = (x + thread) % kChunks, j = n0 + chunk * 8;
        if (row < rows && j < p.n) {
            *reinterpret_cast<uint4 *>(static_cast<T *>(p.d) + (i0 + row) * p.ldd + j) =
                *reinterpret_cast<const uint4 *>(staged + staged_at(row, chunk));
        }
    }
}

/* A warpgroup's 64 rows of results: which of them belong to its tile, their destination, and the thread that stores
 * them. */
struct wide_place {
    int i0, n0, rows; /* the first `rows` rows are written, none beyond the matrix */
    int group, warp, lane;
};

/* Stores them through `staged`, the warpgroup's shared memory. The copy engine copies boxes of all 64 rows; copying the
 * 16 rows of a warp at a time cost 4 % of large products, and 9 % of those with a small k. */
template <int WIDTH, int OUT, typename T>
__device__ __forceinline__ void store_boxes(const CUtensorMap *map, const problem &p, const float (&sum)[WIDTH / 2],
                                            uint8_t *staged, const wide_place &at)
{
    const int row = at.warp * 16 + at.lane % 16, id = 1 + at.group;
#pragma unroll
    for (int from = 0; from < WIDTH; from += OUT) {
        if (at.warp == 0) {
            hopper::bulk_wait_read(); /* until the previous boxes have been read */
        }
        hopper::meet(id, 128);
#pragma unroll
        for (int j = 0; j < OUT; j += 16) {
            const float *const v = sum + (from + j) / 2;
            hopper::store_matrices(staged + staged_at(row, j / 8 + at.lane / 16), narrow2<T>(v[0], v[1]),
                                   narrow2<T>(v[2], v[3]), narrow2<T>(v[4], v[5]), narrow2<T>(v[6], v[7]));
        }
        hopper::fence_shared_for_copies();
        hopper::meet(id, 128);
        if (at.rows < 64) {
            copy_rows<OUT, T>(p, staged, at.i0, at.n0 + from, at.rows, at.warp * 32 + at.lane);
        } else if (at.warp == 0 && hopper::elect()) {
#pragma unroll
            for (int j = 0; j < OUT; j += kStaged) {
                hopper::store_tile(map, staged + j / kStaged * kBoxBytes, at.n0 + from + j, at.i0);
            }
            hopper::bulk_commit();
        }
    }
}

template <int WIDTH, int OUT, typename T>
__device__ __forceinline__ void store_results(const CUtensorMap *map, const problem &p, const float (&sum)[WIDTH / 2],
                                              uint8_t *staged, const wide_place &at)
{
    if constexpr (sizeof(T) == 2) {
        if (p.vector_store && (at.rows >= 64 || p.n % 8 == 0)) {
            store_boxes<WIDTH, OUT, T>(map, p, sum, staged, at);
            return;
        }
    }
    store_elements<WIDTH, T>(p, sum, at.i0 + at.warp * 16 + at.lane / 4, min(at.i0 + at.rows, p.m), at.n0, at.lane);
}

template <int TOKENS, int WIDTH> using wide_ring = tile_ring<wide_shape<TOKENS, WIDTH>>;
template <int TOKENS, int WIDTH> using wide_reader = tile_reader<wide_shape<TOKENS, WIDTH>>;

/* The tensor maps of a launch. */
struct wide_maps {
    CUtensorMap a, w, scale, d;
};

/* Encodes the maps. `rows_w` is the number of rows of all weights that the launch may load, and `copied` the tokens of a tile.
 * 32-bit results, and results with unaligned rows, need no map. */
template <int TOKENS, int WIDTH, typename T>
tsr_status encode_maps(const problem &p, int64_t rows_w, int copied, wide_maps *maps, tsr_err *err)
{
    encode_fn encode = NULL;
    *maps = {};
    TSR_TRY(find_encode(&encode, err));
    if (sizeof(T) == 2 && p.vector_store) {
        TSR_TRY(encode_matrix(encode, &maps->d, CU_TENSOR_MAP_DATA_TYPE_UINT16, p.d, p.m, p.n, p.ldd * 2, kStaged,
                              kStaged, err));
    }
    TSR_TRY(encode_matrix(encode, &maps->a, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.a, p.m, p.k, p.lda, copied, kBlock, err));
    TSR_TRY(
        encode_matrix(encode, &maps->w, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.w, rows_w, p.k, p.ldw, WIDTH, kBlock, err));
    return encode_matrix(encode, &maps->scale, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.scale_a, host::ceil_div(p.k, kBlock),
                         p.m, p.ld_scale_a * 4, 1, copied, err);
}

/* Initializes the barriers; one thread of each CTA runs it before the neighbour may load. `ctas`: CTAs per cluster, 1
 * or 2. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void prepare(const wide_ring<TOKENS, WIDTH> &ring, const wide_maps &maps, int ctas)
{
    for (int s = 0; s < wide_shape<TOKENS, WIDTH>::kStages; ++s) {
        hopper::barrier_init(&ring.full[s], 1);
        hopper::barrier_init(&ring.empty[s], (uint32_t)ctas * 8);
    }
    hopper::fence_barrier_init();
    hopper::prefetch_map(&maps.a);
    hopper::prefetch_map(&maps.w);
    hopper::prefetch_map(&maps.scale);
}

/* The rows of the tiles of a unit, and what the CTA shares with its neighbour. */
struct wide_rows {
    int a, w;   /* first rows of the tile */
    int copied; /* tokens */
    bool share_a, share_w;
};

/* Requests an operand's part of a k tile. For an operand that a pair of CTAs shares, the first CTA requests it for
 * both. */
__device__ __forceinline__ void load_operand(uint8_t *dst, const CUtensorMap *map, uint64_t *full, int x, int y,
                                             bool shared, int rank)
{
    if (!shared) {
        hopper::load_tile(dst, map, full, x, y);
    } else if (rank == 0) {
        hopper::load_tile_multicast(dst, map, full, x, y, 3);
    }
}

/* Requests all k tiles of a unit. Called by one thread of the loading warp. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void load_unit(wide_ring<TOKENS, WIDTH> &ring, const wide_rows &rows, int rank, int tiles,
                                          const wide_maps &maps)
{
    using shape = wide_shape<TOKENS, WIDTH>;
    for (int t = 0; t < tiles; ++t) {
        uint64_t *const full = &ring.full[ring.stage];
        hopper::barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1);
        hopper::barrier_expect(full, (uint32_t)(shape::kWBytes + rows.copied * (kBlock + 4)));
        load_operand(ring.a + ring.stage * shape::kABytes, &maps.a, full, t * kBlock, rows.a, rows.share_a, rank);
        load_operand(ring.w + ring.stage * shape::kWBytes, &maps.w, full, t * kBlock, rows.w, rows.share_w, rank);
        hopper::load_tile(ring.scale + ring.stage * shape::kScaleBytes, &maps.scale, full, rows.a, t);
        ring.step();
    }
}

/* Multiplies one k tile: sum += scale_a * scale_w * (A * W^T), by a warpgroup for its kSubs tiles of 64 tokens. `row`
 * is a thread's first row of the CTA's tokens, `offset` where the tile begins in a block of 128 columns. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void multiply_tile(const wide_reader<TOKENS, WIDTH> &ring,
                                              const float (&by_w)[wide_shape<TOKENS, WIDTH>::kBlocks], int row,
                                              int offset, int lane, int ctas,
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
        /* Placed here because the compiler would otherwise load them among the products and wait for shared memory
         * there. */
        hopper::hold(scales.low);
        hopper::hold(scales.high);
        const auto release = [&] {
            __syncwarp(); /* all lanes have read the scales */
            if (lane < ctas) {
                hopper::barrier_arrive(ring.empty(ring.stage), (uint32_t)lane);
            }
        };
        if constexpr (shape::kHalves) {
            /* So that one half is added while the tensor cores compute the other. */
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

/* Multiplies all k tiles of a unit. `fetch(t)` requests the weights' scales from k tile t on or, after the last one,
 * the first ones of the next unit. */
template <int TOKENS, int WIDTH, typename FETCH>
__device__ __forceinline__ void multiply_unit(wide_reader<TOKENS, WIDTH> &ring,
                                              held_scales<wide_shape<TOKENS, WIDTH>::kBlocks> &scales_w,
                                              const FETCH &fetch, int tiles, int row, int offset, int lane, int ctas,
                                              float (&sum)[wide_shape<TOKENS, WIDTH>::kSubs][WIDTH / 2])
{
    using shape = wide_shape<TOKENS, WIDTH>;
    for (int t0 = 0; t0 < tiles; t0 += 32) {
        scales_w.take();
        fetch(t0 + 32);
        const int count = min(32, tiles - t0);
        const auto multiply = [&](int t) {
            ring.wait();
            float by_w[shape::kBlocks];
#pragma unroll
            for (int b = 0; b < shape::kBlocks; ++b) {
                by_w[b] = __shfl_sync(0xFFFFFFFFu, scales_w.now[b], t);
            }
            multiply_tile<TOKENS, WIDTH>(ring, by_w, row, offset, lane, ctas, sum);
        };
        int t = 0;
        if (ring.stage == 0) { /* the whole ring at once, so that the compiler knows the stages' addresses */
            for (; t + shape::kStages <= count; t += shape::kStages) {
#pragma unroll
                for (int s = 0; s < shape::kStages; ++s) {
                    ring.stage = s;
                    multiply(t + s);
                }
                ring.stage = 0;
                ring.phase ^= 1;
            }
        }
#pragma unroll 1
        for (; t < count; ++t) {
            multiply(t);
            ring.step();
        }
    }
}

} // namespace block_fp8
#endif
