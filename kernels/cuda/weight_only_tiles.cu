/* Launches the weight-only product for any number of tokens on Hopper: chooses the kernel, and how the product is
 * divided. */
#include "kernels/cuda/weight_only_tiles.cuh"

#include <algorithm>

#include "kernels/cuda/weight_only_launch.cuh"

namespace
{

using kernel_fn = void (*)(const tile_maps, const tsr_weight_only_gemm, const tiling);

template <int kBits, bool kBf16> kernel_fn kernel_for(int tokens)
{
    return tokens == 32   ? tiles_kernel<kBits, kBf16, 32>
           : tokens == 48 ? tiles_kernel<kBits, kBf16, 48>
           : tokens == 64 ? tiles_kernel<kBits, kBf16, 64>
                          : tiles_kernel<kBits, kBf16, 128>;
}

/* Returns true if scales are multiplied into weights: if there are several along K, or zeros. Otherwise they are
 * multiplied into the sums. */
bool scaled_early(const tsr_weight_only_gemm &g)
{
    return g.group != 0 || g.zeros != nullptr;
}

tsr_status encode_maps(const tsr_weight_only_gemm &g, const tiling &by, tile_maps *out, tsr_err *err)
{
    map_encoder to = {g, NULL};
    TSR_TRY(find_encode(&to.encode, err));
    const int columns = by.groups * kGroupColumns, at_once = std::min(columns, kScaleColumns);
    to.weights(&out->weights, {columns * g.bits / 16, 1, CU_TENSOR_MAP_L2_PROMOTION_L2_256B});
    to.tokens(&out->tokens, {by.loaded, 1, CU_TENSOR_MAP_L2_PROMOTION_L2_256B});
    if (by.scale_rows != 0) {
        to.scales(&out->scales, g.scales, at_once, by.scale_rows);
    }
    if (g.zeros != nullptr) {
        to.scales(&out->zeros, g.zeros, at_once, by.scale_rows);
    }
    return to.status(err);
}

int round_up(int bytes)
{
    return (bytes + 1023) / 1024 * 1024; /* the swizzle repeats every 1024 */
}

/* Returns the CTAs per multiprocessor: two if each has half of the warpgroups that registers allow. */
int together(int tokens, int groups)
{
    return groups <= (tokens < 128 ? 2 : 1) ? 2 : 1;
}

/* Returns the estimated time of a launch in multiprocessor clocks. The constants are fitted to times of every cut on an
 * H200 (docs/kernels/weight_only.md). A step takes the longest of: its conversions and products for 256 features,
 * loading its weights at 18 bytes per clock, and its latency with few warps. */
double cost_of(const tsr_weight_only_gemm &g, int tokens, int groups, int splits, int processors)
{
    const int width = groups * kGroupColumns, beside = together(tokens, groups);
    const bool whole = beside == 1 && groups == (tokens < 128 ? 4 : 2); /* all warps that registers allow */
    const int64_t count = (g.n + width - 1) / width * ((g.m + tokens - 1) / tokens) * splits;
    const int64_t places =
        splits <= 4 && beside == 2 ? processors * 2 : host::room_for_clusters(splits, processors) * beside;
    const int64_t last = count % places;
    const int64_t left = (last * beside + places - 1) / places; /* CTAs per multiprocessor in the last round */
    const double compute = (420 + 4.2 * tokens) * width / 256 + 2.5 * tokens;
    const double busy = std::max(compute, width * kStep * g.bits / 8 / 18.0), alone = whole ? busy : 605 + busy / 2;
    const double rounds = (double)(count / places) * std::max(busy * beside, alone) +
                          (left > 0 ? std::max(busy * (double)left, alone) : 0);
    const double ends = 0.33 * width * tokens * (double)(count / places + (left > 0));
    return (double)(g.k / kStep) / splits * rounds + ends + 166.0 * splits;
}

tiling cut_for(const tsr_weight_only_gemm &g, int processors)
{
    tiling best = {};
    double least = 0;
    for (const int tokens : {32, 48, 64, 128}) {
        for (int groups = tokens < 128 ? 4 : 2; groups >= 1; groups /= 2) {
            for (int splits = 1; splits <= kMaxSplits && (splits == 1 || g.k / kStep >= 8 * splits); ++splits) {
                const double cost = cost_of(g, tokens, groups, splits, processors);
                if (best.groups == 0 || cost < least) {
                    least = cost, best.tokens = tokens, best.groups = groups, best.splits = splits;
                }
            }
        }
    }
    const int width = best.groups * kGroupColumns, steps = (int)(g.k / kStep);
    best.steps = steps / best.splits, best.more = steps % best.splits;
    best.token_tiles = (int)((g.m + best.tokens - 1) / best.tokens);
    best.loaded = (int)std::min<int64_t>(g.m, best.tokens), best.last = (int)g.m - best.loaded;
    best.feature_tiles = (int)((g.n + width - 1) / width);
    best.weight_bytes = width * kStep * g.bits / 8;
    best.scale_rows = !scaled_early(g) ? 0 : g.group == 32 ? 2 : 1;
    best.scale_shift = g.group == 32 ? 5 : g.group == 64 ? 6 : g.group == 128 ? 7 : 31;
    best.scale_bytes = best.scale_rows * width * 2;
    best.stage =
        round_up(best.weight_bytes + best.tokens * kStep * 2 + best.scale_bytes * (g.zeros != nullptr ? 2 : 1));
    const int room = (228 * 1024 / together(best.tokens, best.groups) - 1024) / 1024 * 1024;
    /* A step refills the stage of two steps ago; with fewer stages that one would still be in use. */
    best.stages = std::min(kMaxStages, (room - kRingAt) / best.stage);
    return best;
}

} // namespace

tsr_status tsr::weight_only_tiles(const tsr_weight_only_gemm &g, int processors, tsr_stream stream, tsr_err *err)
{
    const tiling by = cut_for(g, processors);
    if (by.stages < kMinStages) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "weight-only product: shared memory is too small for %d stages of %d",
                        by.stages, kMinStages);
    }
    const kernel_fn kernel = g.bits == 8 ? (g.bf16 ? kernel_for<8, true>(by.tokens) : kernel_for<8, false>(by.tokens))
                                         : (g.bf16 ? kernel_for<4, true>(by.tokens) : kernel_for<4, false>(by.tokens));
    const int sums = by.tokens * (by.groups * kGroupColumns + kPitchSpare) * (int)sizeof(float);
    const int shared = kRingAt + std::max(by.stages * by.stage, sums);
    const int64_t count = (int64_t)by.token_tiles * by.feature_tiles * by.splits;
    if (count > INT32_MAX) {
        return tsr_fail(err, TSR_E_SHAPE, "weight-only product: %lld x %lld results exceed one launch", (long long)g.m,
                        (long long)g.n);
    }
    tile_maps from = {};
    TSR_TRY(encode_maps(g, by, &from, err));
    const host::launch_shape shape = {dim3((unsigned)count), by.groups * 128, shared, stream};
    return launch_splits(kernel, shape, by.splits, err, from, g, by);
}
