/* Chooses a tile for the block-FP8 product, with a cost model of each tile on an H200. */
#include "kernels/cuda/block_fp8_parts.cuh"

#include <algorithm>
#include <math.h>

namespace
{

using namespace block_fp8;

/* All tiles of the Hopper kernels. */
constexpr tsr_gemm_config kTiles[] = {
    {TSR_GEMM_NARROW, 64, 64, 0}, {TSR_GEMM_NARROW, 64, 128, 0}, {TSR_GEMM_NARROW, 128, 128, 0},
    {TSR_GEMM_WIDE, 128, 128, 0}, {TSR_GEMM_WIDE, 128, 192, 0},  {TSR_GEMM_WIDE, 256, 128, 0},
};

/* Returns the microseconds of a k tile in a CTA, of which `busy` of the multiprocessors have one. */
double step_us(const tsr_gemm_config &tile, double busy)
{
    constexpr double kStep = 0.035, kProduct = 1.24e-5; /* for a k tile, and for each of its results */
    constexpr double kSlower = 0.85;                    /* the part by which it takes longer if all are busy */
    constexpr double kHalves = 1.05;                    /* the wide kernel multiplies 128 by 128 in two halves */
    const bool wide = tile.kind == TSR_GEMM_WIDE;
    return (kStep + kProduct * tile.tokens * tile.rows) * (wide && tile.tokens * tile.rows <= 128 * 128 ? kHalves : 1) *
               (1 + kSlower * busy) +
           (wide && tile.cluster > 1 ? 0.003 : 0); /* CTAs of a pair wait for each other */
}

/* Returns the estimated microseconds of a launch, or infinity for a grid that is not possible. Products and memory go on at
 * the same time, but neither hides the other completely. The constants are an H200's, fitted to the times of all tiles over
 * the matrices of tests/peers/kernels/sweep_shapes.py (docs/kernels/block_fp8_gemm.md). */
double cost_us(int64_t m, int64_t n, int64_t k, const tsr_gemm_config &tile, int64_t processors)
{
    constexpr double kLaunch = 2.2, kStart = 0.9; /* for a launch, and for each wave of CTAs */
    constexpr double kByte = 2.3e-7;              /* for a byte of memory */
    constexpr double kAgain = 0.16;               /* the part of W that a further tile of tokens reads again */
    constexpr double kResult = 2.3e-5, kSplit = 1.1, kSplitResult = 8.8e-5;
    const bool wide = tile.kind == TSR_GEMM_WIDE;
    const int splits = wide ? 1 : tile.cluster;
    const int64_t tokens = host::ceil_div(m, tile.tokens), rows = host::ceil_div(n, tile.rows);
    const bool of_w = wide && tile.cluster > 1 && share_w(tokens, rows, tile), of_a = wide && tile.cluster > 1 && !of_w;
    const int64_t along_m = of_w ? host::ceil_div(tokens, 2) : tokens, along_n = of_a ? host::ceil_div(rows, 2) : rows;
    const int64_t ctas = along_m * along_n * tile.cluster, tiles = host::ceil_div(k, kBlock);
    const int64_t waves = host::ceil_div(ctas, wide ? processors : host::room_for_clusters(splits, processors));
    if ((!wide && rows > kMostBlocks) || (splits > 1 && waves > 1)) {
        return INFINITY;
    }
    const double results = (double)tile.tokens * tile.rows, again = (double)std::min<int64_t>(along_m, 4) - 1;
    const double bytes = (double)n * k * (1 + kAgain * again) + (double)m * k + 2.0 * m * n;
    const double step = step_us(tile, (double)ctas / (double)(waves * processors));
    const double of_tile = (double)host::ceil_div(tiles, splits) * step +
                           kResult * results * tile.tokens / 128; /* a warpgroup stores 64 tokens at a time */
    return kLaunch + hypot(bytes * kByte, (double)waves * of_tile) + kStart * (double)(wide ? 1 : waves) +
           (splits > 1 ? kSplit + kSplitResult * results : 0);
}

} // namespace

tsr_gemm_config block_fp8::fastest(int64_t m, int64_t n, int64_t k, int64_t processors)
{
    tsr_gemm_config best = {TSR_GEMM_PLAIN, 0, 0, 0};
    double least = INFINITY;
    for (tsr_gemm_config tile : kTiles) {
        const int most = tile.kind == TSR_GEMM_WIDE ? 2 : kMostSplits;
        for (tile.cluster = 1; tile.cluster <= most; ++tile.cluster) {
            const double us = cost_us(m, n, k, tile, processors);
            if (us < least) {
                best = tile;
                least = us;
            }
        }
    }
    return best;
}
