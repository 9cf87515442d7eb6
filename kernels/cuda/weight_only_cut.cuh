/* Owns how the weight-only product on Hopper is cut over warps, CTAs and stages, and what of it lies where in shared
 * memory. For weight_only_stream.cu and .cuh only. */
#ifndef TSR_KERNELS_CUDA_WEIGHT_ONLY_CUT_CUH
#define TSR_KERNELS_CUDA_WEIGHT_ONLY_CUT_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace
{

constexpr int kMaxWarps = 8, kWarpColumns = 32;
constexpr int kHelpers = 2; /* warps at most after those that multiply: one sums raw ones' tokens, the last copies */
constexpr int kMaxStages = 6;
constexpr int kMaxSplits = 8;   /* of K, the CTAs of a cluster */
constexpr int kTogether = 2;    /* CTAs of a launch on a multiprocessor */
constexpr int kNarrowWarps = 4; /* of CTAs so small that two of the next launch find room beside them */
constexpr int kNarrowEarly = 2; /* of whose stages so many are loaded before tokens may be */

/* What a CTA has of kStep rows of K in shared memory, everything in rows of 128 bytes whose eight pieces of 16 the copy
 * engine places by the row's number (128-byte swizzle), so that eight pieces of a matrix lie in different banks:
 * weights, a row being 64 rows of K of kTurns columns, as in layout T; tokens, 64 of K in a row. Then the groups'
 * scales, not swizzled. Sizes of what each warp has are a warp's. */
template <int kBits, int kGroup, int kTokens> struct stage {
    static constexpr int kChunk = 128 / kBits; /* rows of K in 16 bytes */
    static constexpr int kTurns = 16 / kBits;  /* columns in 128 bytes */
    static constexpr int kStep = 4 * kChunk;
    static constexpr int kLines = kStep / 64;
    static constexpr int kWarpBytes = kWarpColumns / kTurns * 128; /* of a line */
    static constexpr int kWeightBytes = kLines * kWarpBytes;
    static constexpr int kGroups = kGroup == 0 ? 0 : kGroup < kStep ? kStep / kGroup : 1;
    static constexpr int kScaleBytes = kGroups * kWarpColumns * 2;
    static constexpr int kTokenBytes = kTokens * kStep * 2;
};

/* Shared memory: barriers, the tokens' sums of each stage, what other CTAs send, the stages. */
constexpr int kSumsAt = 512, kLandingAt = 1024;
constexpr int shared_bytes(int ctas) /* of each of so many on a multiprocessor */
{
    return (228 * 1024 / ctas - 1024) / 128 * 128;
}
static_assert((3 * kMaxStages + 1) * 8 <= kSumsAt && kSumsAt + kMaxStages * 16 * 4 <= kLandingAt, "they have room");

/* int4 to fp16 as it lies: a nibble in bits 0 to 3 or 4 to 7 is a subnormal number, (code + 8) * 2^-24 or 2^-20. That
 * takes no arithmetic; eight times the tokens' sums come off apart. It pays in CTAs wide enough for the warp that makes
 * these sums, and not with groups of few rows. */
template <int kBits, bool kBf16, int kGroup>
constexpr bool kHasRaw = kBits == 4 && !kBf16 && (kGroup == 0 || kGroup == 128);

/* How a launch cuts the product. */
struct cut {
    int warps;               /* of a CTA, 32 columns each */
    int splits, steps, more; /* the CTAs of a cluster along K; each has `steps`, the first `more` one more */
    int inverse;             /* 256 / splits, rounded up: so divided, numbers below 8 come out right */
    int pairs;               /* of tokens, the most that a CTA adds up: each splits-th pair */
    int stages, ring, stage; /* how many, where in shared memory, bytes of one */
    int early;               /* stages that are loaded before tokens may be */
    int before_end;          /* with this load, counted from the end, the next launch may begin; 0: at once */
};

struct maps {
    CUtensorMap weights, tokens, scales;
};

} // namespace
#endif
