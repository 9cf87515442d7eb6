/* Grouped block-FP8 kernel for few rows per group in the masked layout: W * A^T, persistent, so that the weights of all
 * groups stream without interruption. */
#include "kernels/cuda/block_fp8_grouped.cuh"
#include "kernels/cuda/product_share.cuh"

#pragma nv_diag_suppress 177 /* functions called only by the sm_90a kernels are unused in the pass for sm_80 */

namespace
{

using namespace block_fp8;

/* A warpgroup handles 64 of the rows of W; the warp after the last warpgroup loads. */
template <int ROWS, int TOKENS> struct few_shape {
    static constexpr int kWarps = ROWS / 16; /* that multiply */
    static constexpr int kThreads = kWarps * 32 + 32;
    static constexpr int kWBytes = ROWS * kBlock, kABytes = TOKENS * kBlock;
    static constexpr int kScaleBytes = TOKENS * 4 < 128 ? 128 : TOKENS * 4;
    static constexpr int kStageBytes = kWBytes + kABytes + kScaleBytes + 16;
    static constexpr int kPitch = ROWS + 4; /* floats from token to token of the results; avoids bank conflicts */
    static constexpr int kStagedBytes = TOKENS * kPitch * 4;
    static constexpr int kFit = (kSharedMax - kStagedBytes - (int)sizeof(group_table)) / kStageBytes;
    static constexpr int kStages = kFit < 16 ? kFit : 16, kTurns = 1;
    static constexpr int kStagedAt = kStages * kStageBytes, kTableAt = kStagedAt + kStagedBytes;
    static constexpr int kBytes = kTableAt + (int)sizeof(group_table);
    static constexpr int kWAt = 0, kAAt = kStages * kWBytes;
    static_assert(kStages >= 4 && kBytes > kSharedMax / 2, "a ring that hides latency, one CTA a multiprocessor");
};

template <int ROWS, int TOKENS> using few_ring = tile_ring<few_shape<ROWS, TOKENS>>;
template <int ROWS, int TOKENS> using few_reader = tile_reader<few_shape<ROWS, TOKENS>>;

/* A unit of work: TOKENS rows of one group by ROWS rows of its weights. */
struct few_unit {
    int group, rows; /* rows: those of the group from the unit's first one on */
    int m0, n0;      /* m0 counts through all groups, n0 within one */
};

/* The order of units: tiles of rows within a group are consecutive, since they need the same weights. */
template <int ROWS, int TOKENS> struct few_schedule {
    const grouped_problem &p;
    const group_table &table;
    group_cursor cursor = {};

    __device__ __forceinline__ bool at(int index, few_unit &unit)
    {
        if (!cursor.seek(table, p.groups, index)) {
            return false;
        }
        const int inside = index - cursor.begin, rows = table.rows[cursor.group];
        const int tiles = (rows + TOKENS - 1) / TOKENS, from = inside % tiles * TOKENS;
        unit = {cursor.group, rows - from, cursor.group * p.room + from, inside / tiles * ROWS};
        return true;
    }
};

/* Role of the loading warp: one thread requests every tile of all units of the CTA. */
template <int ROWS, int TOKENS>
__device__ __forceinline__ void load_few(few_ring<ROWS, TOKENS> &ring, few_schedule<ROWS, TOKENS> schedule, int tiles,
                                         const CUtensorMap *map_w, const CUtensorMap *map_a,
                                         const CUtensorMap *map_scale)
{
    few_unit unit;
    for (int index = blockIdx.x; schedule.at(index, unit); index += gridDim.x) {
        const int row_w = unit.group * schedule.p.all.n + unit.n0;
        for (int t = 0; t < tiles; ++t) {
            load_k_tile(ring, t, row_w, unit.m0, TOKENS, map_w, map_a, map_scale);
        }
    }
    drain(ring);
}

/* sum += scale_a * by_w * tile, for a thread's part of W * A^T. `scale_a` is the address of its tokens' scales. */
template <int TOKENS>
__device__ __forceinline__ void add_scaled(float (&sum)[TOKENS / 2], const float (&tile)[TOKENS / 2], uint32_t scale_a,
                                           float by_w)
{
#pragma unroll
    for (int g = 0; g < TOKENS / 8; ++g) {
        const float2 by_a = hopper::load_shared2(scale_a + 32 * g);
        const float even = by_a.x * by_w, odd = by_a.y * by_w;
        sum[4 * g] = fmaf(tile[4 * g], even, sum[4 * g]);
        sum[4 * g + 1] = fmaf(tile[4 * g + 1], odd, sum[4 * g + 1]);
        sum[4 * g + 2] = fmaf(tile[4 * g + 2], even, sum[4 * g + 2]);
        sum[4 * g + 3] = fmaf(tile[4 * g + 3], odd, sum[4 * g + 3]);
    }
}

/* Writes a thread's sums, transposed, into results [TOKENS][PITCH] in shared memory. */
template <int TOKENS, int PITCH>
__device__ __forceinline__ void write_columns(float *results, const float (&sum)[TOKENS / 2], int row, int lane)
{
#pragma unroll
    for (int g = 0; g < TOKENS / 8; ++g) {
        float *const column = results + (8 * g + 2 * (lane % 4)) * PITCH + row;
        column[0] = sum[4 * g];
        column[PITCH] = sum[4 * g + 1];
        column[8] = sum[4 * g + 2];
        column[PITCH + 8] = sum[4 * g + 3];
    }
}

/* Multiplies one k tile: sum += scale_a * scale_w * (W * A^T). */
template <int ROWS, int TOKENS>
__device__ __forceinline__ void multiply_few(const few_reader<ROWS, TOKENS> &ring, float by_w, int lane,
                                             float (&sum)[TOKENS / 2])
{
    float tile[TOKENS / 2];
    ring.wait();
    hopper::mma_128<TOKENS>(tile, ring.w(), ring.a());
    const uint32_t scale_a = ring.scale(ring.stage) + (uint32_t)(lane % 4 * 8);
    hopper::mma_wait<0>(tile);
    add_scaled<TOKENS>(sum, tile, scale_a, by_w);
    __syncwarp(); /* all lanes have read the scales */
    if (lane == 0) {
        hopper::barrier_arrive(ring.empty(ring.stage));
    }
}

template <int ROWS, int TOKENS, typename T>
__device__ __forceinline__ void store_rows(const float *staged, const problem &p, const few_unit &unit)
{
    using shape = few_shape<ROWS, TOKENS>;
    constexpr int kQuads = ROWS / 4;
    const int end = min(unit.rows, TOKENS) * kQuads;
    for (int at = threadIdx.x; at < end; at += shape::kWarps * 32) {
        const int token = at / kQuads, j = unit.n0 + at % kQuads * 4;
        if (j < p.n) {
            store_quad<T>(p, unit.m0 + token, j,
                          *reinterpret_cast<const float4 *>(staged + token * shape::kPitch + at % kQuads * 4));
        }
    }
}

/* Stores a unit's results; `staged` transposes columns to rows. The output type is tested at run time, which costs
 * little compared with the products. */
template <int ROWS, int TOKENS>
__device__ __forceinline__ void store_unit(float *staged, const grouped_problem &p, const few_unit &unit,
                                           const float (&sum)[TOKENS / 2], int row, int lane)
{
    using shape = few_shape<ROWS, TOKENS>;
    hopper::meet(1, shape::kWarps * 32); /* all warps have finished the previous results */
    write_columns<TOKENS, shape::kPitch>(staged, sum, row, lane);
    hopper::meet(1, shape::kWarps * 32);
    if (p.out == TSR_GEMM_BF16) {
        store_rows<ROWS, TOKENS, __nv_bfloat16>(staged, p.all, unit);
    } else if (p.out == TSR_GEMM_F16) {
        store_rows<ROWS, TOKENS, __half>(staged, p.all, unit);
    } else {
        store_rows<ROWS, TOKENS, float>(staged, p.all, unit);
    }
}

/* Role of the multiplying warps: unit by unit, k tile by k tile, then the results. */
template <int ROWS, int TOKENS>
__device__ __forceinline__ void multiply_all(few_schedule<ROWS, TOKENS> schedule, int tiles, uint8_t *memory, int warp,
                                             int lane)
{
    const grouped_problem &p = schedule.p;
    const int row0 = warp / 4 * 64, blocks = (p.all.n + kBlock - 1) / kBlock;
    float *const staged = reinterpret_cast<float *>(memory + few_shape<ROWS, TOKENS>::kStagedAt);
    few_reader<ROWS, TOKENS> ring(memory, 0, row0);
    few_unit unit, next;
    held_scales<1> scales_w;
    const auto fetch = [&](const few_unit &of, int t) {
        const int row = of.group * blocks;
        scales_w.fetch(p.all.scale_w, row + (of.n0 + row0) / kBlock, row + blocks - 1, t, tiles, lane);
    };
    bool more = schedule.at(blockIdx.x, unit);
    if (more) {
        fetch(unit, 0);
    }
    for (int index = blockIdx.x + gridDim.x; more; index += gridDim.x) {
        next = unit;
        more = schedule.at(index, next);
        float sum[TOKENS / 2] = {};
        for (int t0 = 0; t0 < tiles; t0 += 32) {
            scales_w.take();
            if (t0 + 32 < tiles) {
                fetch(unit, t0 + 32);
            } else {
                fetch(next, 0);
            }
            const int count = min(32, tiles - t0);
            for (int t = 0; t < count; ++t) {
                multiply_few<ROWS, TOKENS>(ring, __shfl_sync(0xFFFFFFFFu, scales_w.now[0], t), lane, sum);
                ring.step();
            }
        }
        store_unit<ROWS, TOKENS>(staged, p, unit, sum, warp * 16 + lane / 4, lane);
        unit = next;
    }
}

template <int ROWS, int TOKENS>
__global__ void __launch_bounds__(few_shape<ROWS, TOKENS>::kThreads, 1)
    few_kernel(const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_a,
               const __grid_constant__ CUtensorMap map_scale, const __grid_constant__ grouped_problem p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = few_shape<ROWS, TOKENS>;
    extern __shared__ __align__(1024) uint8_t memory[];
    few_ring<ROWS, TOKENS> ring(memory);
    group_table &table = *reinterpret_cast<group_table *>(memory + shape::kTableAt);
    const int tiles = (p.all.k + kBlock - 1) / kBlock, columns = (p.all.n + ROWS - 1) / ROWS;
    /* The shuffle tells the compiler that the value is the same in the whole warp. */
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;

    hopper::let_next_launch_begin();
    if (warp == shape::kWarps && hopper::elect()) {
        make_barriers(ring, shape::kWarps);
        hopper::prefetch_map(&map_w);
        hopper::prefetch_map(&map_a);
        hopper::prefetch_map(&map_scale);
    }
    hopper::wait_for_launch_before();
    table.fill(p, [&](int rows) { return (rows + TOKENS - 1) / TOKENS * columns; });
    __syncthreads();

    const few_schedule<ROWS, TOKENS> schedule = {p, table};
    if (warp == shape::kWarps) {
        if (hopper::elect()) {
            load_few<ROWS, TOKENS>(ring, schedule, tiles, &map_w, &map_a, &map_scale);
        }
    } else {
        multiply_all<ROWS, TOKENS>(schedule, tiles, memory, warp, lane);
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

template <int ROWS, int TOKENS>
tsr_status launch_few(const grouped_problem &p, int processors, tsr_stream stream, tsr_err *err)
{
    using shape = few_shape<ROWS, TOKENS>;
    const problem &all = p.all;
    operand_maps maps;
    TSR_TRY(encode_operands(all, weight_rows(p), TOKENS, ROWS, &maps, err));
    const int64_t most = (int64_t)p.groups * host::ceil_div(p.room, TOKENS) * host::ceil_div(all.n, ROWS);
    const dim3 grid((unsigned)(most < processors ? most : processors));
    const auto kernel = few_kernel<ROWS, TOKENS>;
    TSR_TRY(host::launched(kWhat, host::allow_shared(kernel, shape::kBytes), err));
    return host::launched(kWhat,
                          host::launch(kernel, {grid, shape::kThreads, shape::kBytes, stream},
                                       {host::beside_the_one_before()}, maps.w, maps.a, maps.scale, p),
                          err);
}

} // namespace

tsr_status block_fp8::run_grouped_few(const grouped_problem &p, const tsr_gemm_config &config, int processors,
                                      tsr_stream stream, tsr_err *err)
{
#define TSR_TILE(TOKENS, ROWS)                                                                              \
    if (config.tokens == TOKENS && config.rows == ROWS && config.cluster == 1 && p.rows_of_group != NULL) { \
        return launch_few<ROWS, TOKENS>(p, processors, stream, err);                                        \
    }
    TSR_TILE(16, 64)
    TSR_TILE(16, 128)
    TSR_TILE(32, 64)
    TSR_TILE(32, 128)
    TSR_TILE(64, 64)
    TSR_TILE(64, 128)
#undef TSR_TILE
    return no_such_tile(kWhat, config, err);
}
