/* How the weight-only product on Hopper is divided over warps, CTAs and stages, and the layout of its shared memory.
 * For weight_only_stream.cu and .cuh only. */
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace
{

constexpr int kMaxWarps = 8, kWarpColumns = 32;
template <int kTokens> constexpr int kMostWarps = kTokens > 16 ? 7 : kMaxWarps; /* registers allow no more */
constexpr int kHelpers = 2; /* at most, besides the multiplying warps: one sums tokens for raw weights, one copies */
template <int kTokens>
constexpr int kMostHelpers = kTokens > 16 ? 1 : kHelpers; /* no raw weights, because of the number of registers */
constexpr int kMaxStages = 6;
constexpr int kMaxSplits = 8;   /* parts of K, the CTAs of a cluster */
constexpr int kTogether = 2;    /* CTAs of a launch on a multiprocessor */
constexpr int kNarrowWarps = 4; /* a CTA with this many warps leaves room for two CTAs of the next launch */
constexpr int kNarrowEarly = 2; /* stages that such a CTA loads before tokens may be loaded */

/* A stage: the data of kStep rows of K in a CTA's shared memory. First the weights, in lines of 128 bytes that hold 64
 * rows of K of kTurns columns, as in layout T. Then the tokens, in lines of 128 bytes that hold 64 values along K. The
 * copy engine permutes the eight 16-byte pieces of a line by the line's number (128-byte swizzle), so that the eight
 * pieces of a matrix are in different banks. Last come the groups' scales, which are not swizzled. The sizes of weights
 * and scales are those of one warp. */
template <int kBits, int kGroup, int kTokens> struct stage {
    static constexpr int kChunk = 128 / kBits; /* rows of K in 16 bytes */
    static constexpr int kTurns = 16 / kBits;  /* columns in 128 bytes */
    static constexpr int kStep = 4 * kChunk;
    static constexpr int kLines = kStep / 64;
    static constexpr int kWarpBytes = kWarpColumns / kTurns * 128; /* bytes of a line */
    static constexpr int kWeightBytes = kLines * kWarpBytes;
    static constexpr int kGroups = kGroup == 0 ? 0 : kGroup < kStep ? kStep / kGroup : 1;
    static constexpr int kScaleBytes = kGroups * kWarpColumns * 2;
    static constexpr int kTokenBytes = kTokens * kStep * 2;
};

/* Shared memory: barriers, the tokens' sums of each stage, sums from other CTAs, the stages. */
constexpr int kSumsAt = 512, kLandingAt = 1024;

/* Returns the shared memory of a CTA, with this many CTAs on a multiprocessor. */
constexpr int shared_bytes(int ctas)
{
    return (228 * 1024 / ctas - 1024) / 128 * 128;
}
static_assert((3 * kMaxStages + 1) * 8 <= kSumsAt && kSumsAt + kMaxStages * 16 * 4 <= kLandingAt, "they have room");

/* Returns true if weights of up to 16 tokens can be multiplied without conversion: as fp16, a nibble in bits 0 to 3 or
 * 4 to 7 is a subnormal number, (code + 8) * 2^-24 or (code + 8) * 2^-20. This takes no arithmetic, but eight times the
 * sum of the tokens must be subtracted, which a separate warp computes. This pays in CTAs that are wide enough for that
 * warp, but not with small groups. */
template <int kBits, bool kBf16, int kGroup>
constexpr bool kHasRaw = kBits == 4 && !kBf16 && (kGroup == 0 || kGroup == 128);

/* How a launch divides the product. */
struct cut {
    int warps;               /* warps of a CTA, 32 columns each */
    int splits, steps, more; /* the CTAs of a cluster share K: each has `steps` steps, the first `more` CTAs one more */
    int inverse;             /* 256 / splits, rounded up: x * inverse >> 8 is x / splits for x below 8 */
    int pairs;               /* most pairs of tokens that a CTA adds: every splits-th pair */
    int stages, ring, stage; /* number of stages, their start in shared memory, bytes of one */
    int early;               /* stages whose weights are loaded before tokens may be loaded */
    int before_end;          /* the next launch may begin with this load, counted from the end; 0: immediately */
};

struct maps {
    CUtensorMap weights, tokens, scales;
};

} // namespace
