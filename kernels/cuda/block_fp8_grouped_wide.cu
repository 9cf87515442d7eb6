/* Grouped block-FP8 kernel for many rows, in both layouts: the tiles of block_fp8_wide.cuh, each of one group. */
#include "kernels/cuda/block_fp8_grouped.cuh"
#include "kernels/cuda/block_fp8_wide.cuh"

namespace
{

using namespace block_fp8;

constexpr int kTokens = 128;     /* tokens of a tile; groups of the contiguous layout begin at multiples of it */
constexpr int kMostInOne = 4096; /* most tiles along m per launch in the contiguous layout */

/* One CTA's tile of a unit, which is a pair of tiles. */
struct grouped_unit {
    int group;  /* -1: no units are left */
    int m0, n0; /* m0 counts through the rows of all groups, n0 through the group's columns */
    int rows;   /* the group's rows from m0 on; 0 or less: none */
    int shared; /* shared with the neighbour: 0 nothing, 1 A, 2 W */
};

/* Lookup table of a launch, in shared memory; read for every unit. */
struct grouped_table {
    union {
        group_table masked;
        int tiles[kMostInOne]; /* contiguous: 2 * group of a tile's first row, + 1 if padding follows; -1: padding */
    };
    /* Units that the loading warp passes to the multiplying warps: unit i is in entry i % kPlaces. Unit i + 1 is
     * written before the first k tile of unit i is loaded, so a warp that has waited for that tile may read both. The
     * ring lets the loading warp be at most kStages units ahead, so no entry is overwritten while it may be read. */
    static constexpr int kPlaces = 8;
    grouped_unit units[kPlaces];
    uint64_t begun; /* barrier: the first of them has been written */
};

/* The units: a pair lies along m and shares W if both tiles are of one group; otherwise it lies along n and shares A,
 * or shares nothing. */
template <int WIDTH> struct grouped_schedule {
    const grouped_problem &p;
    const grouped_table &table;
    int rank;
    wide_schedule contiguous; /* pairs of all tiles along m, without regard to groups */
    group_cursor cursor = {};

    /* Returns the pairs of a group with this many rows: along m, where a pair shares the larger operand, unless an odd
     * tile would remain and waste more than pairs along n. */
    __device__ __forceinline__ static wide_schedule pairs_of(int rows, int n)
    {
        const int along_m = (rows + kTokens - 1) / kTokens, along_n = (n + WIDTH - 1) / WIDTH;
        if ((along_m + 1) / 2 * along_n <= along_m * ((along_n + 1) / 2)) {
            return {(along_m + 1) / 2, along_n, 2, 1};
        }
        return {along_m, (along_n + 1) / 2, 1, 2};
    }

    __device__ __forceinline__ grouped_unit find_masked(int index)
    {
        if (!cursor.seek(table.masked, p.groups, index)) {
            return {-1, 0, 0, 0, 0};
        }
        const int rows = table.masked.rows[cursor.group];
        const wide_schedule pairs = pairs_of(rows, p.all.n);
        int m0, n0;
        pairs.at(index - cursor.begin, rank, m0, n0, kTokens, WIDTH);
        return {cursor.group, cursor.group * p.room + m0, n0, n0 < p.all.n ? rows - m0 : 0, pairs.along_m};
    }

    /* Returns how many rows from m0 on belong to the group. */
    __device__ __forceinline__ int count(int group, int m0, int lane) const
    {
        static_assert(kTokens == 4 * 32, "four rows a lane");
        int rows = 0;
#pragma unroll
        for (int part = 3; part >= 0; --part) {
            const uint32_t others = __ballot_sync(0xFFFFFFFFu, p.group_of(m0 + 32 * part + lane) != group);
            rows = others == 0 ? 32 + rows : __ffs((int)others) - 1;
        }
        return rows;
    }

    /* Returns the unit at `index` or, if that is padding, the next one of the CTA, and sets `index` to its position. A
     * tile of padding only is not multiplied, but loads for its neighbour. */
    __device__ __forceinline__ grouped_unit find_contiguous(int &index, int stride, int lane) const
    {
        const int pairs = contiguous.rows * contiguous.columns, tiles_m = (p.all.m + kTokens - 1) / kTokens;
        /* If the number of tiles along m is odd, the last ones form pairs along n. */
        const int units = pairs + tiles_m % 2 * ((contiguous.columns + 1) / 2);
        for (; index < units; index += stride) {
            int m0, n0, own, other, shared;
            if (index < pairs) {
                contiguous.at(index, 0, m0, n0, kTokens, WIDTH);
                const int first = table.tiles[m0 / kTokens], second = table.tiles[m0 / kTokens + 1];
                own = rank ? second : first, other = rank ? first : second;
                shared = own < 0 || other < 0 || own / 2 == other / 2 ? 2 : 0;
                m0 += rank * kTokens;
            } else {
                m0 = (tiles_m - 1) * kTokens, n0 = (2 * (index - pairs) + rank) * WIDTH;
                other = table.tiles[tiles_m - 1], own = n0 < p.all.n ? other : -1;
                shared = 1;
            }
            if (own >= 0 || other >= 0) {
                const int rows = own < 0 ? 0 : own % 2 ? count(own / 2, m0, lane) : kTokens;
                return {(own >= 0 ? own : other) / 2, m0, n0, rows, shared};
            }
        }
        return {-1, 0, 0, 0, 0};
    }

    /* Called by all lanes of a warp. */
    __device__ __forceinline__ grouped_unit find(int &index, int stride, int lane)
    {
        return p.rows_of_group != NULL ? find_masked(index) : find_contiguous(index, stride, lane);
    }
};

/* Role of the loading warp. All its lanes search for units; one of them announces the units and requests the tiles. */
template <int WIDTH>
__device__ __forceinline__ void load_groups(tile_ring<wide_shape<kTokens, WIDTH>> &ring,
                                            grouped_schedule<WIDTH> schedule, grouped_table &table, int tiles,
                                            const wide_maps &maps, int lane)
{
    const int stride = (int)gridDim.x / 2;
    int index = blockIdx.x / 2;
    grouped_unit unit = schedule.find(index, stride, lane);
    if (hopper::elect()) {
        table.units[0] = unit;
        hopper::barrier_arrive(&table.begun);
    }
    __syncwarp();
    for (int i = 1; unit.group >= 0; ++i) {
        index += stride;
        const grouped_unit next = schedule.find(index, stride, lane);
        if (hopper::elect()) {
            table.units[i % grouped_table::kPlaces] = next;
            load_unit(ring,
                      {unit.m0, unit.group * schedule.p.all.n + unit.n0, kTokens, unit.shared == 1, unit.shared == 2},
                      schedule.rank, tiles, maps);
        }
        __syncwarp();
        unit = next;
    }
    if (hopper::elect()) {
        drain(ring); /* so that the neighbour does not arrive at barriers of a CTA that has ended */
    }
}

/* Consumes the k tiles of a unit without multiplying them. */
template <int WIDTH> __device__ __forceinline__ void pass_unit(wide_reader<kTokens, WIDTH> &ring, int tiles, int lane)
{
    for (int t = 0; t < tiles; ++t) {
        ring.wait();
        __syncwarp();
        if (lane < 2) {
            hopper::barrier_arrive(ring.empty(ring.stage), (uint32_t)lane);
        }
        ring.step();
    }
}

/* Role of the multiplying warps: unit by unit, k tile by k tile, then the results. A warpgroup without rows of its
 * group only consumes the tiles. */
template <int WIDTH, typename T>
__device__ __forceinline__ void multiply_groups(const grouped_problem &p, grouped_table &table, int tiles,
                                                const CUtensorMap *map_d, uint8_t *staged, int warp, int lane)
{
    using shape = wide_shape<kTokens, WIDTH>;
    const int first_row = warp / 4 * 64, row0 = first_row + warp % 4 * 16, blocks = (p.all.n + kBlock - 1) / kBlock;
    wide_reader<kTokens, WIDTH> ring(staged + shape::kStagedBytes, first_row, 0);
    held_scales<shape::kBlocks> scales_w;
    const auto fetch_of = [&](const grouped_unit &of, int t) {
        const int row = max(of.group, 0) * blocks;
        scales_w.fetch(p.all.scale_w, row + of.n0 / kBlock, row + blocks - 1, t, tiles, lane);
    };
    hopper::barrier_wait(&table.begun, 0);
    grouped_unit unit = table.units[0], next;
    fetch_of(unit, 0);
    for (int i = 1; unit.group >= 0; ++i) {
        const auto fetch = [&](int t) {
            if (t < tiles) {
                fetch_of(unit, t);
            } else {
                ring.wait(); /* also waits for the announcement of the next unit */
                next = table.units[i % grouped_table::kPlaces];
                fetch_of(next, 0);
            }
        };
        if (unit.rows > first_row) {
            float sum[1][WIDTH / 2] = {};
            multiply_unit<kTokens, WIDTH>(ring, scales_w, fetch, tiles, row0 + lane / 4, unit.n0 % kBlock, lane, 2,
                                          sum);
            store_results<WIDTH, shape::kOut, T>(
                map_d, p.all, results_in(sum[0]), staged + warp / 4 * shape::kGroupBytes,
                {unit.m0 + first_row, unit.n0, unit.rows - first_row, warp / 4, warp % 4, lane});
        } else {
            fetch(tiles);
            pass_unit<WIDTH>(ring, tiles, lane);
        }
        unit = next;
    }
    hopper::bulk_wait(); /* shared memory must outlive the copies */
}

template <int WIDTH, typename T>
__global__ void __launch_bounds__(384, 1)
    grouped_wide_kernel(const __grid_constant__ wide_maps maps, const __grid_constant__ grouped_problem p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = wide_shape<kTokens, WIDTH>;
    extern __shared__ __align__(1024) uint8_t staged[];
    tile_ring<wide_shape<kTokens, WIDTH>> ring(staged + shape::kStagedBytes);
    grouped_table &table = *reinterpret_cast<grouped_table *>(staged + shape::kBytes);
    const int tiles = (p.all.k + kBlock - 1) / kBlock, columns = (p.all.n + WIDTH - 1) / WIDTH;
    const int along_m = (p.all.m + kTokens - 1) / kTokens;
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    hopper::let_next_launch_begin();
    if (threadIdx.x == 0) {
        hopper::barrier_init(&table.begun, 1);
        prepare(ring, maps, 2);
    }
    hopper::wait_for_launch_before();
    if (p.rows_of_group != NULL) {
        table.masked.fill(p, [&](int rows) {
            const wide_schedule pairs = grouped_schedule<WIDTH>::pairs_of(rows, p.all.n);
            return pairs.rows * pairs.columns;
        });
    } else {
        for (int tile = threadIdx.x; tile < along_m; tile += blockDim.x) {
            const int group = p.group_of(tile * kTokens), last = p.group_of(tile * kTokens + kTokens - 1);
            table.tiles[tile] = group < 0 ? -1 : group * 2 + (last != group);
        }
    }
    __syncthreads();
    hopper::cluster_meet();

    const grouped_schedule<WIDTH> schedule = {p, table, (int)hopper::cluster_rank(), {along_m / 2, columns, 2, 1}};
    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 8) {
            load_groups<WIDTH>(ring, schedule, table, tiles, maps, lane);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_groups<WIDTH, T>(p, table, tiles, &maps.d, staged, warp, lane);
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

template <int WIDTH, typename T>
tsr_status launch_grouped(const grouped_problem &p, int processors, tsr_stream stream, tsr_err *err)
{
    const problem &all = p.all;
    wide_maps maps;
    TSR_TRY((encode_maps<wide_shape<kTokens, WIDTH>, T>(all, weight_rows(p), kTokens, &maps, err)));
    const int64_t tiles_m =
        p.rows_of_group != NULL ? p.groups * host::ceil_div(p.room, kTokens) : host::ceil_div(all.m, kTokens);
    const int64_t units = tiles_m * host::ceil_div(all.n, WIDTH),
                  most = processors / 2; /* units, as if none were shared */
    const dim3 grid((unsigned)(2 * (units < most ? units : most)));
    const auto kernel = grouped_wide_kernel<WIDTH, T>;
    constexpr int kBytes = wide_shape<kTokens, WIDTH>::kBytes + (int)sizeof(grouped_table);
    static_assert(kBytes <= kSharedMax, "shared memory of one CTA");
    TSR_TRY(host::launched(kWhat, host::allow_shared(kernel, kBytes), err));
    return host::launched(kWhat,
                          host::launch(kernel, {grid, 384, kBytes, stream},
                                       {host::in_clusters(2), host::beside_the_one_before()}, maps, p),
                          err);
}

/* Divides the contiguous layout into launches of at most as many tiles as the table has. */
template <int WIDTH, typename T>
tsr_status launch_ranges(const grouped_problem &p, int processors, tsr_stream stream, tsr_err *err)
{
    constexpr int kRows = kMostInOne * kTokens;
    if (p.rows_of_group != NULL) {
        return launch_grouped<WIDTH, T>(p, processors, stream, err);
    }
    for (int64_t row = 0; row < p.all.m; row += kRows) {
        grouped_problem part = p;
        part.all.a += row * p.all.lda;
        part.all.scale_a += row;
        part.all.d = static_cast<T *>(p.all.d) + row * p.all.ldd;
        part.all.m = p.all.m - row < kRows ? (int)(p.all.m - row) : kRows;
        part.group_of_row += row;
        TSR_TRY((launch_grouped<WIDTH, T>(part, processors, stream, err)));
    }
    return TSR_OK;
}

template <typename T>
tsr_status run_grouped(const grouped_problem &p, const tsr_gemm_config &config, int processors, tsr_stream stream,
                       tsr_err *err)
{
    if (config.tokens == kTokens && config.rows == 128) {
        return launch_ranges<128, T>(p, processors, stream, err);
    }
    if (config.tokens == kTokens && config.rows == 192) {
        return launch_ranges<192, T>(p, processors, stream, err);
    }
    return no_such_tile(kWhat, config, err);
}

} // namespace

tsr_status block_fp8::run_grouped_wide(const grouped_problem &p, const tsr_gemm_config &config, int processors,
                                       tsr_stream stream, tsr_err *err)
{
    if (config.cluster != 2) {
        return no_such_tile(kWhat, config, err);
    }
    return for_results(
        p.out, [&](auto of) { return run_grouped<typename decltype(of)::type>(p, config, processors, stream, err); });
}
