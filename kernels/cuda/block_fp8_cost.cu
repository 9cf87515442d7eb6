/* Chooses a tile for the block-FP8 product, with a cost model of each tile on an H200. */
#include "kernels/cuda/block_fp8_parts.cuh"

#include <algorithm>
#include <math.h>

namespace
{

using namespace block_fp8;

/* Returns the number of concurrent CTAs, one per multiprocessor. Clusters cannot fill every group of multiprocessors:
 * of its 132, an H200 uses 117, 120, 110, 102, 105 and 120 for clusters of 3, 4, 5, 6, 7 and 8. */
int64_t room_for_clusters(int cluster, int64_t processors)
{
    return cluster <= 2 ? processors : cluster <= 4 ? processors * 7 / 8 : processors * 3 / 4;
}

/* Returns the estimated microseconds of the kernel for up to 32 tokens, by a model fitted to an H200. The terms are: a
 * launch; for every wave of CTAs a constant; for every k tile the traffic from L2 and the products, where an
 * instruction costs as much as 60 more tokens; and the exchange of split sums. Splits need a single wave. */
double tokens_us(int64_t m, int64_t n, int64_t k, int tokens, int rows, int splits, int64_t processors)
{
    const int64_t room = room_for_clusters(splits, processors), blocks = host::ceil_div(m, tokens);
    const int64_t ctas = host::ceil_div(n, rows) * blocks * splits;
    if (blocks > kMostBlocks || (splits > 1 && ctas > room)) {
        return INFINITY;
    }
    const double bytes = (double)((rows + tokens) * kBlock * std::min(ctas, room));
    const double step = bytes / 32e6 + rows * (tokens + 60) * 2.2e-5;
    const double wave = 1.7 + (double)host::ceil_div(host::ceil_div(k, kBlock), splits) * step;
    return 0.9 + (double)host::ceil_div(ctas, room) * wave + (splits > 1 ? 0.31 + rows * tokens * 6.2e-5 : 0.0);
}

/* A tile and its cost in microseconds: for its results, and for each k tile. */
struct tile_cost {
    int tokens, rows;
    double results, step;
};

/* Costs of the kernel for 64 and 128 tokens, measured over all splits and up to four waves. With more waves the power
 * limit slows every k tile. */
constexpr int kMostWaves = 4;
constexpr tile_cost kNarrow[] = {{64, 32, 1.50, 0.095},   {64, 56, 1.84, 0.123},  {64, 64, 1.75, 0.128},
                                 {64, 72, 1.93, 0.147},   {64, 112, 2.31, 0.231}, {64, 128, 2.80, 0.212},
                                 {64, 192, 2.20, 0.361},  {64, 256, 2.66, 0.414}, {128, 32, 2.01, 0.138},
                                 {128, 56, 2.28, 0.185},  {128, 64, 2.33, 0.168}, {128, 72, 1.87, 0.285},
                                 {128, 112, 2.38, 0.384}, {128, 128, 2.59, 0.335}};

double narrow_us(int64_t m, int64_t n, int64_t k, const tile_cost &tile, int splits, int64_t processors)
{
    const int64_t room = room_for_clusters(splits, processors), blocks = host::ceil_div(m, tile.tokens);
    const int64_t ctas = host::ceil_div(n, tile.rows) * blocks * splits;
    if (ctas > kMostWaves * room || (splits > 1 && ctas > room)) {
        return INFINITY;
    }
    const double wave = tile.results + (double)host::ceil_div(host::ceil_div(k, kBlock), splits) * tile.step;
    return 2.0 + (double)host::ceil_div(ctas, room) * wave +
           (splits > 1 ? 0.57 + tile.tokens * tile.rows * 8.2e-5 : 0.0);
}

/* Costs of the persistent kernel. */
constexpr tile_cost kWide[] = {{128, 128, 0.7, 0.57}, {128, 192, 1.2, 0.645}, {256, 128, 2.0, 0.85}};

} // namespace

tsr_gemm_config block_fp8::fastest(int64_t m, int64_t n, int64_t k, int64_t processors)
{
    tsr_gemm_config best = {TSR_GEMM_PLAIN, 0, 0, 0};
    double least = INFINITY;
    const auto consider = [&](const tsr_gemm_config &config, double us) {
        if (us < least) {
            best = config;
            least = us;
        }
    };
    for (const auto &w : kWide) {
        const int64_t tiles = host::ceil_div(m, w.tokens) * host::ceil_div(n, w.rows);
        const int64_t queue = host::ceil_div(tiles, processors); /* tiles of the busiest CTA */
        const double us = 1.7 + (double)queue * (w.results + (double)host::ceil_div(k, kBlock) * w.step);
        /* Pairs share an operand, which pays if a CTA has more than one tile. */
        consider({TSR_GEMM_WIDE, w.tokens, w.rows, queue > 1 ? 2 : 1}, us);
    }
    for (int tokens = 16; tokens <= 32 && tokens < 2 * std::max<int64_t>(m, 16); tokens *= 2) {
        for (int rows = 64; rows <= 256; rows += 64) {
            for (int splits = 1; splits <= kMostSplits; ++splits) {
                consider({TSR_GEMM_TOKENS, tokens, rows, splits}, tokens_us(m, n, k, tokens, rows, splits, processors));
            }
        }
    }
    for (const auto &tile : kNarrow) {
        for (int splits = 1; splits <= kMostSplits && tile.tokens < 2 * m; ++splits) {
            consider({TSR_GEMM_NARROW, tile.tokens, tile.rows, splits}, narrow_us(m, n, k, tile, splits, processors));
        }
    }
    return best;
}
