/* Launches the weight-only product for few tokens on Hopper: chooses the kernel, and how the product is divided. */
#include "kernels/cuda/weight_only_stream.cuh"

#include <algorithm>

#include "kernels/cuda/weight_only_launch.cuh"

namespace
{

using kernel_fn = void (*)(const maps, const tsr_weight_only_gemm, const cut);

struct choice {
    kernel_fn converting, raw;                                 /* `raw` may be NULL */
    int tokens, lines, turns, groups, warp_bytes, token_bytes; /* the byte sizes are those of a stage */
    int warps;                                                 /* most warps of a CTA */
};

template <int kBits, bool kBf16, int kGroup, int kTokens> choice chosen()
{
    using S = stage<kBits, kGroup, kTokens>;
    choice with = {stream_kernel<kBits, kBf16, kGroup, kTokens, false>,
                   NULL,
                   kTokens,
                   S::kLines,
                   S::kTurns,
                   S::kGroups,
                   S::kWeightBytes + S::kScaleBytes,
                   S::kTokenBytes,
                   kMostWarps<kTokens>};
    if constexpr (kHasRaw<kBits, kBf16, kGroup> && kTokens <= 16) {
        with.raw = stream_kernel<kBits, kBf16, kGroup, kTokens, true>;
    }
    return with;
}

template <int kBits, bool kBf16, int kGroup> choice choose(int64_t m)
{
    if constexpr (kBits == 4 && kGroup == 128) {
        if (m > 16) {
            return m <= 24 ? chosen<kBits, kBf16, kGroup, 24>() : chosen<kBits, kBf16, kGroup, 32>();
        }
    }
    return m <= 8 ? chosen<kBits, kBf16, kGroup, 8>() : chosen<kBits, kBf16, kGroup, 16>();
}

template <int kBits, bool kBf16> choice choose(int64_t group, int64_t m)
{
    return group == 0    ? choose<kBits, kBf16, 0>(m)
           : group == 32 ? choose<kBits, kBf16, 32>(m)
           : group == 64 ? choose<kBits, kBf16, 64>(m)
                         : choose<kBits, kBf16, 128>(m);
}

tsr_status encode_maps(const tsr_weight_only_gemm &g, const choice &with, int columns, maps *out, tsr_err *err)
{
    map_encoder to = {g, NULL};
    TSR_TRY(find_encode(&to.encode, err));
    to.weights(&out->weights, {columns / with.turns, with.lines, CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
    to.tokens(&out->tokens, {with.tokens, with.lines, CU_TENSOR_MAP_L2_PROMOTION_L2_256B});
    if (g.group != 0) {
        to.scales(&out->scales, g.scales, columns, with.groups);
    }
    return to.status(err);
}

int shared_for(const cut &by)
{
    return shared_bytes(by.before_end == 0 ? kTogether : 2 * kTogether);
}

/* Chooses warps and splits: as many CTAs as can run at a time, with at least eight steps if they share K, and among
 * these divisions the one with the widest CTAs. Clusters of up to four fit everywhere, larger ones do not.
 *
 * With more than 16 tokens, products take longer than loads. A quarter of a multiprocessor has every fourth warp of its
 * CTAs; the best cut gives each quarter the fewest steps; of equal cuts, the one with the most warps. Clusters of more
 * than two CTAs place two CTAs on one multiprocessor and none on another, even if there are few. Returns the number of
 * CTAs. */
int64_t spread(const tsr_weight_only_gemm &g, const choice &with, int processors, int steps, cut *best)
{
    const int64_t places = (int64_t)kTogether * processors;
    int64_t most = 0, least = INT64_MAX;
    best->warps = with.warps, best->splits = 1;
    for (int warps = with.warps; warps >= kNarrowWarps; --warps) {
        for (int splits = 1; splits <= kMaxSplits && (splits == 1 || steps >= 8 * splits); ++splits) {
            const int64_t columns = warps * kWarpColumns, count = (g.n + columns - 1) / columns * splits;
            const int64_t fit = splits > 4 ? places * 17 / 20 : splits == 3 ? places * 19 / 20 : places;
            if (count > fit) {
                continue;
            }
            const int64_t in_turn = (int64_t)(count > processors || splits > 2 ? kTogether : 1) * ((warps + 3) / 4) *
                                    ((steps + splits - 1) / splits);
            if (with.tokens > 16 ? in_turn < least || (in_turn == least && count * warps > most * best->warps)
                                 : count > most) {
                most = count, least = in_turn;
                best->warps = warps, best->splits = splits;
            }
        }
    }
    return most;
}

/* Chooses how to divide the product.
 *
 * The number of stages is limited by memory, and to a third of the steps, since nothing is multiplied while a launch
 * begins. With 16 tokens in groups, products take longer than loads, and four stages suffice.
 *
 * Stages that are loaded before the launch ahead has ended are also ahead of the tokens. With int4 and 16 tokens that
 * costs more than it gains, so only half of the stages are loaded then.
 *
 * Narrow CTAs that fill all slots allow the next launch to begin with their third last load, because then its CTAs are
 * spread evenly. Earlier, its loads compete with theirs; later, some slots are free, and some multiprocessors get three
 * of its CTAs. Few tokens take less time, so it is the fourth last load then. */
cut cut_for(const tsr_weight_only_gemm &g, const choice &with, int processors)
{
    const int64_t places = (int64_t)kTogether * processors;
    const int steps = (int)(g.k / 64 + with.lines - 1) / with.lines;
    const bool heavy = g.bits == 4 && with.tokens > 8;
    cut best = {};
    const int64_t most = spread(g, with, processors, steps, &best);
    best.steps = steps / best.splits, best.more = steps % best.splits;
    best.inverse = (256 + best.splits - 1) / best.splits;
    best.pairs = ((int)(g.m + 1) / 2 + best.splits - 1) / best.splits;
    const auto round_up = [](int bytes) { return (bytes + 1023) / 1024 * 1024; }; /* the swizzle repeats every 1024 */
    best.ring = round_up(kLandingAt + best.splits * best.pairs * best.warps * kWarpColumns * 8);
    best.stage = round_up(best.warps * with.warp_bytes + with.token_bytes);
    const bool narrow = with.tokens <= 16 && best.warps == kNarrowWarps && most * 20 >= places * 19;
    best.before_end = narrow ? (heavy ? 3 : 4) : 0;
    best.stages = std::min({heavy && g.group != 0 ? 4 : kMaxStages, std::max(4, best.steps / 3),
                            (shared_for(best) - best.ring) / best.stage});
    best.early = narrow ? kNarrowEarly : heavy ? best.stages / 2 : best.stages;
    return best;
}

} // namespace

tsr_status tsr::weight_only_stream(const tsr_weight_only_gemm &g, int processors, tsr_stream stream, tsr_err *err)
{
    const choice with = g.bits == 8 ? (g.bf16 ? choose<8, true>(g.group, g.m) : choose<8, false>(g.group, g.m))
                                    : (g.bf16 ? choose<4, true>(g.group, g.m) : choose<4, false>(g.group, g.m));
    maps from = {};
    const cut by = cut_for(g, with, processors);
    const int columns = by.warps * kWarpColumns, shared = shared_for(by);
    const kernel_fn kernel = with.raw && by.before_end == 0 ? with.raw : with.converting;
    TSR_TRY(encode_maps(g, with, columns, &from, err));
    const int64_t tiles = (g.n + columns - 1) / columns;
    const host::launch_shape shape = {dim3((unsigned)(tiles * by.splits)),
                                      (by.warps + (kernel == with.raw ? kHelpers : 1)) * 32, shared, stream};
    return launch_splits(kernel, shape, by.splits, err, from, g, by);
}
