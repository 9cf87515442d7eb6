/* Dense block-FP8 kernel for many tokens: persistent, every CTA computes one tile of results after the other. */
#include "kernels/cuda/block_fp8_wide.cuh"

namespace
{

using namespace block_fp8;

/* A CTA's share of the product: every `stride`th of `units` units from `first` on. A unit is a pair of tiles or a
 * single one. */
struct wide_share {
    int m, tiles;   /* tokens; tiles along k */
    int rank, ctas; /* rank of the CTA in its pair; number of CTAs per unit */
    int first, units, stride;
};

/* Finds the CTA's tile of a unit. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void find_tile(const wide_schedule &schedule, const wide_share &mine, int unit, int &m0,
                                          int &n0)
{
    schedule.at(unit, mine.rank, m0, n0, TOKENS, WIDTH);
    m0 = first_token(m0, TOKENS, mine.m);
}

/* Role of the loading warp: one thread requests the k tiles of all units of the CTA. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void load_units(wide_ring<TOKENS, WIDTH> &ring, const wide_schedule &schedule,
                                           const wide_share &mine, const wide_maps &maps)
{
    const int copied = copied_tokens(TOKENS, mine.m);
    for (int unit = mine.first; unit < mine.units; unit += mine.stride) {
        int m0, n0;
        find_tile<TOKENS, WIDTH>(schedule, mine, unit, m0, n0);
        load_unit<TOKENS, WIDTH>(ring, {m0, n0, copied, schedule.along_n > 1, schedule.along_m > 1}, mine.rank,
                                 mine.tiles, maps);
    }
}

/* Role of the multiplying warps: unit by unit, k tile by k tile, then the results. */
template <int TOKENS, int WIDTH, typename T>
__device__ __forceinline__ void multiply_units(const wide_schedule &schedule, const wide_share &mine, const problem &p,
                                               const CUtensorMap *map_d, uint8_t *staged, int warp, int lane)
{
    using shape = wide_shape<TOKENS, WIDTH>;
    const int group = warp / 4, row0 = group * (TOKENS / 2) + warp % 4 * 16, last_block = (p.n - 1) / kBlock;
    wide_reader<TOKENS, WIDTH> ring(staged + shape::kStagedBytes, group * (TOKENS / 2), 0);
    held_scales<shape::kBlocks> scales_w;
    int m0, n0, next_m0, next_n0;
    find_tile<TOKENS, WIDTH>(schedule, mine, mine.first, m0, n0);
    scales_w.fetch(p.scale_w, n0 / kBlock, last_block, 0, mine.tiles, lane);
    for (int unit = mine.first; unit < mine.units; unit += mine.stride, m0 = next_m0, n0 = next_n0) {
        find_tile<TOKENS, WIDTH>(schedule, mine, min(unit + mine.stride, mine.units - 1), next_m0, next_n0);
        float sum[shape::kSubs][WIDTH / 2] = {};
        const auto fetch = [&](int t) {
            scales_w.fetch(p.scale_w, (t < mine.tiles ? n0 : next_n0) / kBlock, last_block, t < mine.tiles ? t : 0,
                           mine.tiles, lane);
        };
        multiply_unit<TOKENS, WIDTH>(ring, scales_w, fetch, mine.tiles, row0 + lane / 4, n0 % kBlock, lane, mine.ctas,
                                     sum);
#pragma unroll
        for (int sub = 0; sub < shape::kSubs; ++sub) {
            store_results<WIDTH, shape::kOut, T>(map_d, p, sum[sub], staged + group * shape::kGroupBytes,
                                                 {m0 + group * (TOKENS / 2) + 64 * sub, n0, 64, group, warp % 4, lane});
        }
    }
    hopper::bulk_wait(); /* shared memory must outlive the copies */
}

template <int TOKENS, int WIDTH, typename T>
__global__ void __launch_bounds__(384, 1)
    wide_kernel(const __grid_constant__ wide_maps maps, const __grid_constant__ problem p,
                const __grid_constant__ wide_schedule schedule)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using shape = wide_shape<TOKENS, WIDTH>;
    extern __shared__ __align__(1024) uint8_t staged[];
    wide_ring<TOKENS, WIDTH> ring(staged + shape::kStagedBytes);

    const int tiles = (p.k + kBlock - 1) / kBlock;
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
        prepare<TOKENS, WIDTH>(ring, maps, ctas);
    }
    hopper::cluster_meet();
    hopper::wait_for_launch_before();

    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 8 && hopper::elect()) {
            load_units<TOKENS, WIDTH>(ring, schedule, mine, maps);
            drain(ring); /* so that the neighbour does not arrive at barriers of a CTA that has ended */
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_units<TOKENS, WIDTH, T>(schedule, mine, p, &maps.d, staged, warp, lane);
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

template <int TOKENS, int WIDTH, typename T>
tsr_status launch_wide(const problem &p, int ctas, int processors, tsr_stream stream, tsr_err *err)
{
    wide_maps maps;
    TSR_TRY((encode_maps<TOKENS, WIDTH, T>(p, p.n, copied_tokens(TOKENS, p.m), &maps, err)));
    const int64_t rows = host::ceil_div(p.m, TOKENS), columns = host::ceil_div(p.n, WIDTH);
    wide_schedule schedule;
    const bool along_m = share_w(rows, columns, {TSR_GEMM_WIDE, TOKENS, WIDTH, ctas});
    schedule.along_m = along_m ? ctas : 1;
    schedule.along_n = along_m ? 1 : ctas;
    schedule.rows = (int)host::ceil_div(rows, schedule.along_m);
    schedule.columns = (int)host::ceil_div(columns, schedule.along_n);
    const int64_t all = (int64_t)schedule.rows * schedule.columns, most = processors / ctas;
    const dim3 grid((unsigned)(ctas * (all < most ? all : most)));
    const auto kernel = wide_kernel<TOKENS, WIDTH, T>;
    constexpr int kBytes = wide_shape<TOKENS, WIDTH>::kBytes;
    TSR_TRY(host::launched(kWhat, host::allow_shared(kernel, kBytes), err));
    return host::launched(kWhat,
                          host::launch(kernel, {grid, 384, kBytes, stream},
                                       {host::in_clusters((unsigned)ctas), host::beside_the_one_before()}, maps, p,
                                       schedule),
                          err);
}

template <typename T>
tsr_status run(const problem &p, const tsr_gemm_config &config, int processors, tsr_stream stream, tsr_err *err)
{
    if (config.tokens == 128 && config.rows == 128) {
        return launch_wide<128, 128, T>(p, config.cluster, processors, stream, err);
    }
    if (config.tokens == 128 && config.rows == 192) {
        return launch_wide<128, 192, T>(p, config.cluster, processors, stream, err);
    }
    if (config.tokens == 256 && config.rows == 128) {
        return launch_wide<256, 128, T>(p, config.cluster, processors, stream, err);
    }
    return no_such_tile(config, err);
}

} // namespace

tsr_status block_fp8::run_wide(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                               tsr_stream stream, tsr_err *err)
{
    if (config.cluster < 1 || config.cluster > 2) {
        return no_such_tile(config, err);
    }
    return for_results(out,
                       [&](auto of) { return run<typename decltype(of)::type>(p, config, processors, stream, err); });
}
