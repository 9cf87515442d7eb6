/* The kernel for many tokens: persistent, A * W^T in tiles of TOKENS by WIDTH weight rows, with CTAs in pairs that
 * share an operand; how tiles are found, loaded and stored, also for the grouped kernel.
 *
 * SHAPE is the tile of a kind of product: kTokens and kWidth; what a ring needs (product_parts.cuh); kUsers, the warps
 * of a CTA that use a k tile; kOut, the columns that a warpgroup stages at once, kGroupBytes of shared memory, and
 * kStagedBytes of both warpgroups; kBytes in all; `problem`; and multiply_units, which computes the results of all
 * tiles of a CTA. */
#pragma once

#include "kernels/cuda/product_parts.cuh"

namespace product
{

constexpr int kStaged = 64; /* columns and rows of a box of results that the copy engine writes */
constexpr int kBoxBytes = kStaged * kStaged * 2;

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

/* Stores a thread's share of a tile, rows i and i + 8, element by element, for rows before `end`. results_of(g) sets
 * the four results of its group g of eight columns: two of row i, two of row i + 8. */
template <int WIDTH, typename T, typename RESULTS>
__device__ __forceinline__ void store_elements(const matrices &p, const RESULTS &results_of, int i, int end, int n0,
                                               int lane)
{
#pragma unroll
    for (int g = 0; g < WIDTH / 8; ++g) {
        float results[4];
        results_of(g, results);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int row = i + (e & 2) * 4, j = n0 + g * 8 + lane % 4 * 2 + e % 2;
            if (row < end && j < p.n) {
                static_cast<T *>(p.d)[row * p.ldd + j] = narrow<T>(results[e]);
            }
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

/* Returns the column of a tile that is at column j of its boxes. If WIDTH is no multiple of a box, the last box ends
 * with the tile, and its first columns are also in the box before. */
template <int WIDTH> __device__ __forceinline__ constexpr int boxed_column(int j)
{
    return j < WIDTH / kStaged * kStaged ? j : j - (kStaged - WIDTH % kStaged);
}

/* Copies the first `rows` rows of the boxes to their destination, 16 bytes per thread. n is a multiple of 8. All
 * threads run the same number of iterations: with a different number per thread, the compiler assumes that warps have
 * diverged, and generates slower code for the products' loop. */
template <int WIDTH, int OUT, typename T>
__device__ __forceinline__ void copy_rows(const matrices &p, const uint8_t *staged, int i0, int n0, int rows,
                                          int thread)
{
    constexpr int kChunks = OUT / 8;
#pragma unroll 1
    for (int x = 0; x < 64 * kChunks; x += 128) {
        const int row = (x + thread) / kChunks, chunk = (x + thread) % kChunks, j = n0 + boxed_column<WIDTH>(chunk * 8);
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
template <int WIDTH, int OUT, typename T, typename RESULTS>
__device__ __forceinline__ void store_boxes(const CUtensorMap *map, const matrices &p, const RESULTS &results_of,
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
            float v[8];
            const int group = boxed_column<WIDTH>(from + j) / 8;
            results_of(group, v);
            results_of(group + 1, v + 4);
            hopper::store_matrices(staged + staged_at(row, j / 8 + at.lane / 16), narrow2<T>(v[0], v[1]),
                                   narrow2<T>(v[2], v[3]), narrow2<T>(v[4], v[5]), narrow2<T>(v[6], v[7]));
        }
        hopper::fence_shared_for_copies();
        hopper::meet(id, 128);
        if (at.rows < 64) {
            copy_rows<WIDTH, OUT, T>(p, staged, at.i0, at.n0 + from, at.rows, at.warp * 32 + at.lane);
        } else if (at.warp == 0 && hopper::elect()) {
#pragma unroll
            for (int j = 0; j < OUT; j += kStaged) {
                hopper::store_tile(map, staged + j / kStaged * kBoxBytes, at.n0 + boxed_column<WIDTH>(from + j), at.i0);
            }
            hopper::bulk_commit();
        }
    }
}

template <int WIDTH, int OUT, typename T, typename RESULTS>
__device__ __forceinline__ void store_results(const CUtensorMap *map, const matrices &p, const RESULTS &results_of,
                                              uint8_t *staged, const wide_place &at)
{
    if constexpr (sizeof(T) == 2) {
        if (p.vector_store && (at.rows >= 64 || p.n % 8 == 0)) {
            store_boxes<WIDTH, OUT, T>(map, p, results_of, staged, at);
            return;
        }
    }
    store_elements<WIDTH, T>(p, results_of, at.i0 + at.warp * 16 + at.lane / 4, min(at.i0 + at.rows, p.m), at.n0,
                             at.lane);
}

/* The tensor maps of a launch. */
struct wide_maps {
    CUtensorMap a, w, scale, d;
};

/* Encodes the maps. `rows_w` is the number of rows of all weights that the launch may load, and `copied` the tokens of
 * a tile. 32-bit results, and results with unaligned rows, need no map. */
template <typename SHAPE, typename T>
tsr_status encode_maps(const typename SHAPE::problem &p, int64_t rows_w, int copied, wide_maps *maps, tsr_err *err)
{
    encode_fn encode = NULL;
    *maps = {};
    TSR_TRY(find_encode(&encode, err));
    if (sizeof(T) == 2 && p.vector_store) {
        TSR_TRY(encode_matrix(encode, &maps->d, CU_TENSOR_MAP_DATA_TYPE_UINT16, p.d, p.m, p.n, p.ldd * 2, kStaged,
                              kStaged, err));
    }
    TSR_TRY(encode_matrix(encode, &maps->a, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.a, p.m, p.k, p.lda, copied, kDepth, err));
    TSR_TRY(encode_matrix(encode, &maps->w, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.w, rows_w, p.k, p.ldw, SHAPE::kWidth,
                          kDepth, err));
    if constexpr (SHAPE::kScaleBytes > 0) {
        return encode_matrix(encode, &maps->scale, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.scale_a,
                             host::ceil_div(p.k, kDepth), p.m, p.ld_scale_a * 4, 1, copied, err);
    }
    return TSR_OK;
}

/* Initializes the barriers; one thread of each CTA runs it before the neighbour may load. `ctas`: CTAs per cluster, 1
 * or 2. */
template <typename SHAPE>
__device__ __forceinline__ void prepare(const tile_ring<SHAPE> &ring, const wide_maps &maps, int ctas)
{
    for (int s = 0; s < SHAPE::kStages; ++s) {
        hopper::barrier_init(&ring.full[s], 1);
        hopper::barrier_init(&ring.empty[s], (uint32_t)(ctas * SHAPE::kUsers));
    }
    hopper::fence_barrier_init();
    hopper::prefetch_map(&maps.a);
    hopper::prefetch_map(&maps.w);
    if constexpr (SHAPE::kScaleBytes > 0) {
        hopper::prefetch_map(&maps.scale);
    }
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
template <typename SHAPE>
__device__ __forceinline__ void load_unit(tile_ring<SHAPE> &ring, const wide_rows &rows, int rank, int tiles,
                                          const wide_maps &maps)
{
    for (int t = 0; t < tiles; ++t) {
        uint64_t *const full = &ring.full[ring.stage];
        hopper::barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1);
        hopper::barrier_expect(full, (uint32_t)(SHAPE::kWBytes + rows.copied * ring.kTokenBytes));
        load_operand(ring.a + ring.stage * SHAPE::kABytes, &maps.a, full, t * kDepth, rows.a, rows.share_a, rank);
        load_operand(ring.w + ring.stage * SHAPE::kWBytes, &maps.w, full, t * kDepth, rows.w, rows.share_w, rank);
        if constexpr (SHAPE::kScaleBytes > 0) {
            hopper::load_tile(ring.scale + ring.stage * SHAPE::kScaleBytes, &maps.scale, full, rows.a, t);
        }
        ring.step();
    }
}

/* A CTA's share of the product: every `stride`th of `units` units from `first` on. A unit is a pair of tiles or a
 * single one. */
struct wide_share {
    int m, tiles;   /* tokens; tiles along k */
    int rank, ctas; /* rank of the CTA in its pair; number of CTAs per unit */
    int first, units, stride;
};

/* Finds the CTA's tile of a unit. */
template <typename SHAPE>
__device__ __forceinline__ void find_tile(const wide_schedule &schedule, const wide_share &mine, int unit, int &m0,
                                          int &n0)
{
    schedule.at(unit, mine.rank, m0, n0, SHAPE::kTokens, SHAPE::kWidth);
    m0 = first_token(m0, SHAPE::kTokens, mine.m);
}

/* Role of the loading warp: one thread requests the k tiles of all units of the CTA. */
template <typename SHAPE>
__device__ __forceinline__ void load_units(tile_ring<SHAPE> &ring, const wide_schedule &schedule,
                                           const wide_share &mine, const wide_maps &maps)
{
    const int copied = copied_tokens(SHAPE::kTokens, mine.m);
    for (int unit = mine.first; unit < mine.units; unit += mine.stride) {
        int m0, n0;
        find_tile<SHAPE>(schedule, mine, unit, m0, n0);
        load_unit(ring, {m0, n0, copied, schedule.along_n > 1, schedule.along_m > 1}, mine.rank, mine.tiles, maps);
    }
}

template <typename SHAPE, typename T>
__global__ void __launch_bounds__(384, 1)
    wide_kernel(const __grid_constant__ wide_maps maps, const __grid_constant__ typename SHAPE::problem p,
                const __grid_constant__ wide_schedule schedule)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) uint8_t staged[];
    tile_ring<SHAPE> ring(staged + SHAPE::kStagedBytes);

    const int tiles = (p.k + kDepth - 1) / kDepth;
    const int ctas = schedule.along_m * schedule.along_n;
    const wide_share mine = {p.m,
                             tiles,
                             (int)hopper::cluster_rank(),
                             ctas,
                             (int)blockIdx.x / ctas,
                             schedule.rows * schedule.columns,
                             (int)gridDim.x / ctas};
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    if (p.hand_over) {
        hopper::let_next_launch_begin();
    }
    if (threadIdx.x == 0) {
        prepare(ring, maps, ctas);
    }
    hopper::cluster_meet();
    hopper::wait_for_launch_before();

    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 8 && hopper::elect()) {
            load_units(ring, schedule, mine, maps);
            drain(ring); /* so that the neighbour does not arrive at barriers of a CTA that has ended */
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_units(SHAPE(), result_type<T>(), schedule, mine, p, &maps.d, staged, warp, lane);
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

template <typename SHAPE, typename T>
tsr_status launch_wide(const typename SHAPE::problem &p, int ctas, int processors, tsr_stream stream, tsr_err *err)
{
    wide_maps maps;
    TSR_TRY((encode_maps<SHAPE, T>(p, p.n, copied_tokens(SHAPE::kTokens, p.m), &maps, err)));
    const int64_t rows = host::ceil_div(p.m, SHAPE::kTokens), columns = host::ceil_div(p.n, SHAPE::kWidth);
    wide_schedule schedule;
    const bool along_m = share_w(rows, columns, {TSR_GEMM_WIDE, SHAPE::kTokens, SHAPE::kWidth, ctas});
    schedule.along_m = along_m ? ctas : 1;
    schedule.along_n = along_m ? 1 : ctas;
    schedule.rows = (int)host::ceil_div(rows, schedule.along_m);
    schedule.columns = (int)host::ceil_div(columns, schedule.along_n);
    const int64_t all = (int64_t)schedule.rows * schedule.columns, most = processors / ctas;
    const dim3 grid((unsigned)(ctas * (all < most ? all : most)));
    const auto kernel = wide_kernel<SHAPE, T>;
    constexpr int kBytes = SHAPE::kBytes;
    TSR_TRY(host::launched(SHAPE::problem::kName, host::allow_shared(kernel, kBytes), err));
    return host::launched(SHAPE::problem::kName,
                          host::launch(kernel, {grid, 384, kBytes, stream},
                                       {host::in_clusters((unsigned)ctas), host::beside_the_one_before()}, maps, p,
                                       schedule),
                          err);
}

} // namespace product
