/* Chooses a tile for the products of block FP8 and of int8, with a cost model of each tile on an H200. */
#include "kernels/cuda/block_fp8_parts.cuh"
#include "kernels/cuda/int8_hopper.cuh"

#include <algorithm>
#include <math.h>

namespace
{

using namespace product;

/* Constants of the model for a kind of product, in microseconds. */
struct rates {
    double launch, start;       /* a launch, and each wave of CTAs */
    double byte;                /* a byte of memory */
    double again;               /* the part of W that a further tile of tokens reads again */
    double split, split_result; /* the exchange of sums of a k that is split, and each of its results */
    double step, product;       /* a k tile in a CTA takes `step`, and `product` for each token and row of W */
    double slower;              /* the part by which it takes longer if all multiprocessors have a CTA */
    double halves;              /* the factor for small wide tiles, which are multiplied in two halves */
    double byte_of_l2;          /* reading a byte of a wide tile from L2, if all multiprocessors do */
    double result;              /* storing a result; a warpgroup stores 64 tokens at a time */
    bool alternating; /* warpgroups alternate between wide tiles with 128 rows: one stores, the other multiplies */
};

constexpr rates kBlockFp8 = {1.69,   2.4,     2.1e-7, 0.165, 2.36, 4.95e-5, /* from `launch` to `split_result` */
                             0.0275, 1.53e-5, 0.83,   1.08,  0,    3.16e-5, false},
                kInt8 = {2.1,    1.18,   2e-7,  0.369, 1.18,    8.13e-5, /* the same */
                         0.0214, 1.1e-5, 0.626, 1,     1.37e-5, 8.68e-5, true};

/* The tiles of the kernels of each. */
constexpr tsr_gemm_config kBlockFp8Tiles[] = {
    {TSR_GEMM_NARROW, 64, 64, 0},   {TSR_GEMM_NARROW, 64, 128, 0}, {TSR_GEMM_NARROW, 128, 64, 0},
    {TSR_GEMM_NARROW, 128, 128, 0}, {TSR_GEMM_WIDE, 128, 128, 0},  {TSR_GEMM_WIDE, 128, 160, 0},
    {TSR_GEMM_WIDE, 128, 192, 0},   {TSR_GEMM_WIDE, 256, 128, 0},
};
constexpr tsr_gemm_config kInt8Tiles[] = {
    {TSR_GEMM_NARROW, 64, 64, 0},   {TSR_GEMM_NARROW, 64, 128, 0}, {TSR_GEMM_NARROW, 128, 64, 0},
    {TSR_GEMM_NARROW, 128, 128, 0}, {TSR_GEMM_WIDE, 64, 128, 0},   {TSR_GEMM_WIDE, 128, 128, 0},
    {TSR_GEMM_WIDE, 128, 256, 0},
};

/* Returns the microseconds of a k tile in a CTA, of which `busy` of the multiprocessors have one. `loaded`: its
 * bytes. */
double step_us(const rates &of, const tsr_gemm_config &tile, double busy, double loaded)
{
    const double results = (double)tile.tokens * tile.rows,
                 step = (of.step + of.product * results) * (1 + of.slower * busy);
    if (tile.kind != TSR_GEMM_WIDE) {
        return step;
    }
    return std::max(results <= 128 * 128 ? step * of.halves : step, loaded * of.byte_of_l2 * busy) +
           (tile.cluster > 1 ? 0.003 : 0); /* CTAs of a pair wait for each other */
}

/* Returns the estimated microseconds of a launch, or infinity for a grid that is not possible. Products and memory go
 * on at the same time, but neither hides the other completely. The constants are an H200's, fitted to the times of all
 * tiles over the matrices of tests/peers/kernels/sweep_shapes.py (docs/kernels/block_fp8_gemm.md, int8_gemm.md). */
double cost_us(const rates &of, int64_t m, int64_t n, int64_t k, const tsr_gemm_config &tile, int64_t processors)
{
    constexpr int64_t kMostNarrow = 4; /* tiles of tokens up to which narrow ones were measured */
    const bool wide = tile.kind == TSR_GEMM_WIDE;
    const int splits = wide ? 1 : tile.cluster;
    const int64_t tokens = host::ceil_div(m, tile.tokens), rows = host::ceil_div(n, tile.rows);
    const bool of_w = wide && tile.cluster > 1 && share_w(tokens, rows, tile), of_a = wide && tile.cluster > 1 && !of_w;
    const int64_t along_m = of_w ? host::ceil_div(tokens, 2) : tokens, along_n = of_a ? host::ceil_div(rows, 2) : rows;
    const int64_t ctas = along_m * along_n * tile.cluster, tiles = host::ceil_div(k, kDepth);
    const int64_t waves = host::ceil_div(ctas, wide ? processors : host::room_for_clusters(splits, processors));
    if ((!wide && (rows > kMostBlocks || tokens > kMostNarrow)) || (splits > 1 && waves > 1)) {
        return INFINITY;
    }
    const double results = (double)tile.tokens * tile.rows, again = (double)std::min<int64_t>(along_m, 4) - 1;
    const double bytes = (double)n * k * (1 + of.again * again) + (double)m * k + 2.0 * m * n;
    const double loaded = kDepth * ((double)tile.tokens / (of_a ? 2 : 1) + (double)tile.rows / (of_w ? 2 : 1));
    const double step = step_us(of, tile, (double)ctas / (double)(waves * processors), loaded);
    const bool hidden = of.alternating && wide && tile.rows == 128; /* all results but those of the last tile */
    const double products = (double)waves * (double)host::ceil_div(tiles, splits) * step,
                 stored = of.result * results * tile.tokens / 128 * (hidden ? 1 : (double)waves);
    return of.launch + hypot(bytes * of.byte, products + stored) + of.start * (double)(wide ? 1 : waves) +
           (splits > 1 ? of.split + of.split_result * results : 0);
}

template <int COUNT>
tsr_gemm_config fastest_of(const tsr_gemm_config (&tiles)[COUNT], const rates &of, int64_t m, int64_t n, int64_t k,
                           int64_t processors)
{
    tsr_gemm_config best = {TSR_GEMM_PLAIN, 0, 0, 0};
    double least = INFINITY;
    for (tsr_gemm_config tile : tiles) {
        const int most = tile.kind == TSR_GEMM_WIDE ? 2 : kMostSplits;
        for (tile.cluster = 1; tile.cluster <= most; ++tile.cluster) {
            const double us = cost_us(of, m, n, k, tile, processors);
            if (us < least) {
                best = tile;
                least = us;
            }
        }
    }
    return best;
}

} // namespace

tsr_gemm_config block_fp8::fastest(int64_t m, int64_t n, int64_t k, int64_t processors)
{
    return fastest_of(kBlockFp8Tiles, kBlockFp8, m, n, k, processors);
}

tsr_gemm_config int8::fastest(int64_t m, int64_t n, int64_t k, int64_t processors)
{
    return fastest_of(kInt8Tiles, kInt8, m, n, k, processors);
}
