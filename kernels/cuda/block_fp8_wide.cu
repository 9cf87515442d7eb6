/* Dense block-FP8 kernel for many tokens: how the kernel of product_wide.cuh multiplies its tiles. */
#include "kernels/cuda/block_fp8_wide.cuh"

namespace block_fp8
{

/* Role of the multiplying warps: unit by unit, k tile by k tile, then the results. */
template <int TOKENS, int WIDTH, typename T>
__device__ __forceinline__ void multiply_units(wide_shape<TOKENS, WIDTH>, result_type<T>, const wide_schedule &schedule,
                                               const wide_share &mine, const problem &p, const CUtensorMap *map_d,
                                               uint8_t *staged, int warp, int lane)
{
    using shape = wide_shape<TOKENS, WIDTH>;
    const int group = warp / 4, row0 = group * (TOKENS / 2) + warp % 4 * 16, last_block = (p.n - 1) / kBlock;
    wide_reader<TOKENS, WIDTH> ring(staged + shape::kStagedBytes, group * (TOKENS / 2), 0);
    held_scales<shape::kBlocks> scales_w;
    int m0, n0, next_m0, next_n0;
    find_tile<shape>(schedule, mine, mine.first, m0, n0);
    scales_w.fetch(p.scale_w, n0 / kBlock, last_block, 0, mine.tiles, lane);
    for (int unit = mine.first; unit < mine.units; unit += mine.stride, m0 = next_m0, n0 = next_n0) {
        find_tile<shape>(schedule, mine, min(unit + mine.stride, mine.units - 1), next_m0, next_n0);
        float sum[shape::kSubs][WIDTH / 2] = {};
        const auto fetch = [&](int t) {
            scales_w.fetch(p.scale_w, (t < mine.tiles ? n0 : next_n0) / kBlock, last_block, t < mine.tiles ? t : 0,
                           mine.tiles, lane);
        };
        multiply_unit<TOKENS, WIDTH>(ring, scales_w, fetch, mine.tiles, row0 + lane / 4, n0 % kBlock, lane, mine.ctas,
                                     sum);
#pragma unroll
        for (int sub = 0; sub < shape::kSubs; ++sub) {
            store_results<WIDTH, shape::kOut, T>(map_d, p, results_in(sum[sub]), staged + group * shape::kGroupBytes,
                                                 {m0 + group * (TOKENS / 2) + 64 * sub, n0, 64, group, warp % 4, lane});
        }
    }
    hopper::bulk_wait(); /* shared memory must outlive the copies */
}

tsr_status run_wide(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                    tsr_stream stream, tsr_err *err)
{
    const bool pairs = config.cluster == 1 || config.cluster == 2;
    return for_results(out, [&](auto of) {
        using T = typename decltype(of)::type;
#define TSR_TILE(TOKENS, ROWS)                                                                       \
    if (pairs && config.tokens == TOKENS && config.rows == ROWS) {                                   \
        return launch_wide<wide_shape<TOKENS, ROWS>, T>(p, config.cluster, processors, stream, err); \
    }
        TSR_TILE(128, 128)
        TSR_TILE(128, 160)
        TSR_TILE(128, 192)
        TSR_TILE(256, 128)
#undef TSR_TILE
        return no_such_tile(kWhat, config, err);
    });
}

} // namespace block_fp8
