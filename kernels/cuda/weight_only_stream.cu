/* Owns the weight-only product for up to 16 tokens on Hopper, which reads the weights at the memory's speed: one warp
 * of a CTA keeps the copy engine busy, four to eight have 32 output features each; the CTAs of a cluster share K, send
 * each other their sums and add them in a fixed order. */
#include <algorithm>

#include <cuda_runtime.h>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/weight_only.cuh"

namespace
{

constexpr int kMaxWarps = 8, kWarpColumns = 32, kMaxColumns = kMaxWarps * kWarpColumns;
constexpr int kHelpers = 2; /* warps 0 and 1, which copy and sum the tokens */
constexpr int kMaxStages = 4;
constexpr int kMaxSplits = 8; /* of K, the CTAs of a cluster */
constexpr int kTogether = 2;  /* CTAs on a multiprocessor */

/* What a CTA has of kStep rows of K in shared memory, everything in rows of 128 bytes whose eight pieces of 16 the copy
 * engine places by the row's number (128-byte swizzle), so that eight pieces of a matrix lie in different banks:
 * weights, a row being 64 rows of K of kTurns columns, as in layout T; tokens, 64 of K in a row. Then the groups'
 * scales, not swizzled. */
template <int kBits, int kGroup, int kTokens> struct stage {
    static constexpr int kChunk = 128 / kBits; /* rows of K in 16 bytes */
    static constexpr int kTurns = 16 / kBits;  /* columns in 128 bytes */
    static constexpr int kStep = 4 * kChunk;
    static constexpr int kLines = kStep / 64;
    static constexpr int kWarpBytes = kWarpColumns / kTurns * 128; /* of a line */
    static constexpr int kGroups = kGroup == 0 ? 0 : kGroup < kStep ? kStep / kGroup : 1;
    static constexpr int kTokenBytes = kTokens * kStep * 2, kWeightBytes = kLines * kMaxWarps * kWarpBytes;
    static constexpr int kBytes = (kWeightBytes + kTokenBytes + kGroups * kMaxColumns * 2 + 1023) / 1024 *
                                  1024; /* the swizzle repeats every 1024 */
    static constexpr int kSumsAt = kMaxStages * kBytes, kLandingAt = kSumsAt + kMaxStages * kTokens * 4;
    static constexpr int kMostLanded = kTokens + 6; /* rows: 3 or 2 from each of seven CTAs */
    static constexpr int kBarriersAt = kLandingAt + kMostLanded * kMaxColumns * 4;
    static constexpr int kShared = std::max(kBarriersAt + (3 * kMaxStages + 1) * 8, 80 << 10); /* no third CTA */
};

/* int4 to fp16 as it lies: a nibble in bits 0 to 3 or 4 to 7 is a subnormal number, (code + 8) * 2^-24 or 2^-20. That
 * takes no arithmetic, whose pipes the products need; eight times the tokens' sums come off apart. It does not pay
 * with groups of few rows. */
template <int kBits, bool kBf16, int kGroup>
constexpr bool kIsRaw = kBits == 4 && !kBf16 && (kGroup == 0 || kGroup == 128);

/* How a launch cuts the product: `warps` of 32 columns a CTA, `splits` CTAs of a cluster along K; `stages` of a CTA. */
struct cut {
    int warps, splits, stages;
};

struct maps {
    CUtensorMap weights, tokens, scales;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kCopier = 0, kSummer = 1;  /* warps */
constexpr int kTiles = kWarpColumns / 8; /* of eight columns, of a warp */
constexpr int kStorers = 8;              /* lanes that have the tokens' sums */
constexpr int kChains = 2;               /* of products, into which a sum of tokens is cut */

/* Four 8 x 8 matrices of 16-bit elements: lane l names row l % 8 of matrix l / 8, and gets of each the l % 4-th pair of
 * row l / 4. */
__device__ __forceinline__ void load_matrices(uint32_t out[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* A CTA's place: the rank-th of a cluster, whose outputs begin at n0. */
struct place {
    int rank, n0;
};

__device__ __forceinline__ place place_of(const cut &by, int block)
{
    return {block % by.splits, block / by.splits * by.warps * kWarpColumns};
}

/* The copying lane's part. */
template <int kBits, int kGroup, int kTokens> struct copier {
    using S = stage<kBits, kGroup, kTokens>;
    const maps &from;
    uint8_t *ring;
    uint64_t *full, *empty;
    cut by;
    int n0, first, count;

    __device__ __forceinline__ void load_weights(int at, int step) const
    {
        hopper::barrier_expect(&full[at], (uint32_t)(S::kTokenBytes + by.warps * (S::kLines * S::kWarpBytes +
                                                                                  S::kGroups * kWarpColumns * 2)));
        hopper::load_tile_once(ring + at * S::kBytes, &from.weights, &full[at], 0, n0 / S::kTurns, step * S::kLines);
    }

    __device__ __forceinline__ void load_rest(int at, int step) const
    {
        uint8_t *const to = ring + at * S::kBytes + S::kWeightBytes;
#pragma unroll
        for (int half = 0; half < S::kLines; ++half) {
            hopper::load_tile(to + half * kTokens * 128, &from.tokens, &full[at], step * S::kStep + half * 64, 0);
        }
        if constexpr (kGroup != 0) {
            hopper::load_tile(to + S::kTokenBytes, &from.scales, &full[at], n0, step * S::kStep / kGroup);
        }
    }

    /* Weights, before the launch ahead has ended. */
    __device__ __forceinline__ void begin() const
    {
        for (int i = 0; i < min(count, by.stages); ++i) {
            load_weights(i, first + i);
        }
    }

    __device__ __forceinline__ void go_on() const
    {
        hopper::wait_for_launch_before();
        for (int i = 0; i < min(count, by.stages); ++i) {
            load_rest(i, first + i);
        }
#pragma unroll 1
        for (int i = by.stages, at = 0, phase = 0; i < count; ++i) {
            hopper::barrier_wait(&empty[at], (uint32_t)phase);
            load_weights(at, first + i);
            load_rest(at, first + i);
            if (++at == by.stages) {
                at = 0, phase ^= 1;
            }
        }
    }
};

/* Where this lane's row is of four matrices of eight numbers of tokens 8 h to 8 h + 7 each, from k on, a multiple of
 * 32. kApart: the second and third matrix change places. */
template <int kTokens, bool kApart> __device__ __forceinline__ uint32_t tokens_at(uint32_t tokens, int k, int h)
{
    const int row = (int)threadIdx.x % 8, lane = (int)threadIdx.x % 32;
    const int piece = kApart ? lane / 8 % 2 * 2 + lane / 16 : lane / 8;
    return ((tokens + (uint32_t)(row * 8 + (piece ^ row)) * 16) ^ (uint32_t)(k % 64 * 2)) +
           (uint32_t)(k / 64 * kTokens * 128 + h * 1024);
}

/* A warp's work where the weights are raw: sums[token] = -8 * 2^-24 times the sum of the token's numbers in a step or,
 * without groups, in all. */
template <int kBits, int kGroup, int kTokens>
__device__ __forceinline__ void sum_tokens(uint8_t *ring, uint64_t *full, uint64_t *empty, uint64_t *summed, int stages,
                                           int count)
{
    using S = stage<kBits, kGroup, kTokens>;
    const int lane = (int)threadIdx.x % 32;
    constexpr uint32_t kEights = 0x80088008u;
    float c[kChains][4] = {};
    const bool i_store = lane % (32 / kStorers) == 0; /* all columns of the product are the same */
    const auto store = [&](int at) {
        float *const sums = reinterpret_cast<float *>(ring + S::kSumsAt) + at * kTokens;
#pragma unroll
        for (int h = 0; h < kTokens / 8; ++h) {
            sums[h * 8 + lane / 4] = c[0][2 * h] + c[1][2 * h];
        }
    };
    for (int i = 0, at = 0, phase = 0; i < count; ++i) {
        hopper::barrier_wait(&full[at], (uint32_t)phase);
        const uint32_t tokens = hopper::shared_address(ring + at * S::kBytes) + S::kWeightBytes;
#pragma unroll
        for (int k = 0; k < S::kStep; k += 32) {
            uint32_t b[2][4] = {};
#pragma unroll
            for (int h = 0; h < kTokens / 8; ++h) {
                load_matrices(b[h], tokens_at<kTokens, false>(tokens, k, h));
            }
#pragma unroll
            for (int half = 0; half < kChains; ++half) {
                const uint32_t fragment[4] = {b[0][2 * half], b[1][2 * half], b[0][2 * half + 1], b[1][2 * half + 1]};
                if (kGroup != 0 && k == 0) {
                    tsr::multiply_afresh<false>(c[half], fragment, kEights, kEights);
                } else {
                    tsr::multiply<false>(c[half], fragment, kEights, kEights);
                }
            }
        }
        if (kGroup != 0 && i_store) {
            store(at);
            hopper::barrier_arrive(&summed[at]);
        }
        __syncwarp();
        if (lane == 0) {
            hopper::barrier_arrive(&empty[at]);
        }
        if (++at == stages) {
            at = 0, phase ^= 1;
        }
    }
    if (kGroup == 0 && i_store) {
        store(0);
    }
    __syncwarp();
}

/* What a warp has of its columns: [i][h] are columns 16 i to 16 i + 15 by tokens 8 h to 8 h + 7. */
template <int kTokens> using sums_of = float[kTiles / 2][kTokens / 8][4];

/* c += scale * part. Of raw weights there are two parts, that of the low and that of the high nibbles of a byte, and
 * the sums are in units of 2^24. */
template <bool kRaw, int kTokens>
__device__ __forceinline__ void add_group(sums_of<kTokens> &c, const sums_of<kTokens> *part, int i,
                                          const float scale[2])
{
#pragma unroll
    for (int h = 0; h < kTokens / 8; ++h) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if constexpr (kRaw) {
                c[i][h][e] = part[0][i][h][e] * scale[e / 2] + c[i][h][e];
                c[i][h][e] = part[1][i][h][e] * (scale[e / 2] * 0x1p-4f) + c[i][h][e];
            } else {
                c[i][h][e] += part[0][i][h][e] * scale[e / 2];
            }
        }
    }
}

/* A step of this warp's columns. ldmatrix gives lane c of a column the c-th word of its 16 bytes, which has rows 2c,
 * 2c + 1 and those 8, 16, 24 further: as a fragment has them. Without groups all adds up in `part`. */
template <int kBits, bool kBf16, int kGroup, int kTokens>
__device__ __forceinline__ void multiply_step(sums_of<kTokens> &c, sums_of<kTokens> *part, const uint8_t *from,
                                              const float *sums, uint64_t *summed, uint32_t phase, int warps)
{
    using S = stage<kBits, kGroup, kTokens>;
    constexpr bool kRaw = kIsRaw<kBits, kBf16, kGroup>;
    constexpr int kChunks = 64 / S::kChunk, kPairs = kBits == 8 ? 2 : 4;
    constexpr int kEnd = kGroup != 0 && kGroup < S::kStep ? kGroup : S::kStep;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 - kHelpers, row = lane % 8;
    const int stream = (warp * kTiles + lane / 8) * (8 / S::kTurns) + row / S::kTurns;
    const uint32_t weights =
        hopper::shared_address(from) + (uint32_t)(stream * 8 + (row % S::kTurns * kChunks ^ stream % 8)) * 16;
    const uint32_t tokens = hopper::shared_address(from) + S::kWeightBytes;
    uint32_t word[kTiles], b[kTokens / 8][4];
    float2 eights[kTokens / 8];
#pragma unroll
    for (int k = 0; k < S::kStep; k += S::kChunk) {
        const int chunk = k / S::kChunk;
        load_matrices(word, (weights ^ (uint32_t)(chunk % kChunks * 16)) +
                                (uint32_t)(chunk / kChunks * warps * S::kWarpBytes));
        if (k % 32 == 0) {
#pragma unroll
            for (int h = 0; h < kTokens / 8; ++h) {
                load_matrices(b[h], tokens_at<kTokens, kRaw>(tokens, k, h));
            }
        }
        if constexpr (kRaw && kGroup != 0) {
            if (k == 0) {
                hopper::barrier_wait(summed, phase);
#pragma unroll
                for (int h = 0; h < kTokens / 8; ++h) {
                    eights[h] = *reinterpret_cast<const float2 *>(sums + h * 8 + lane % 4 * 2);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kTiles / 2; ++i) {
            uint32_t a[2][kPairs];
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const uint32_t w = word[2 * i + t];
                if constexpr (kRaw) {
                    a[t][0] = w & 0x000F000Fu, a[t][1] = w & 0x00F000F0u;
                    a[t][2] = w >> 8 & 0x000F000Fu, a[t][3] = w >> 8 & 0x00F000F0u;
                } else {
                    tsr::convert_fast<kBits, kBf16>(w, a[t]);
                }
            }
#pragma unroll
            for (int p = 0; p < kPairs / 2; ++p) {
                /* A product takes two pairs: neighbours or, of raw ones, those of one size. */
                const int x = kRaw ? p : 2 * p, y = kRaw ? p + 2 : 2 * p + 1, at = k % 32 / 8 + 2 * p;
                const uint32_t fragment[4] = {a[0][x], a[1][x], a[0][y], a[1][y]};
                const bool begins = kGroup != 0 && k % kEnd == 0 && (kRaw || p == 0);
#pragma unroll
                for (int h = 0; h < kTokens / 8; ++h) {
                    float *const to = part[kRaw ? p : 0][i][h];
                    if (begins && kRaw && p == 0) {
                        tsr::multiply_add<kBf16>(to, fragment, b[h][at], b[h][at + 1], eights[h].x, eights[h].y,
                                                 eights[h].x, eights[h].y);
                    } else if (begins) {
                        tsr::multiply_afresh<kBf16>(to, fragment, b[h][at], b[h][at + 1]);
                    } else {
                        tsr::multiply<kBf16>(to, fragment, b[h][at], b[h][at + 1]);
                    }
                }
            }
        }
        if constexpr (kGroup != 0) {
            if ((k + S::kChunk) % kEnd == 0) {
                const uint16_t *const scales =
                    reinterpret_cast<const uint16_t *>(from + S::kWeightBytes + S::kTokenBytes) +
                    (k / kGroup * warps + warp) * kWarpColumns + lane / 4;
#pragma unroll
                for (int i = 0; i < kTiles / 2; ++i) {
                    const float scale[2] = {tsr::widen(scales[i * 16], kBf16), tsr::widen(scales[i * 16 + 8], kBf16)};
                    add_group<kRaw, kTokens>(c, part, i, scale);
                }
            }
        }
    }
}

#endif

template <int kBits, bool kBf16, int kGroup, int kTokens>
__global__ void __launch_bounds__((kMaxWarps + kHelpers) * 32, kTogether)
    stream_kernel(const __grid_constant__ maps from, const tsr_weight_only_gemm g, const cut by)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = stage<kBits, kGroup, kTokens>;
    constexpr bool kRaw = kIsRaw<kBits, kBf16, kGroup>;
    extern __shared__ __align__(1024) uint8_t ring[];
    uint64_t *const full = reinterpret_cast<uint64_t *>(ring + S::kBarriersAt), *const empty = full + kMaxStages,
                    *const summed = empty + kMaxStages, *const landed = summed + kMaxStages;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int splits = by.splits;
    const place here = place_of(by, (int)blockIdx.x);
    const int steps = ((int)g.k + S::kStep - 1) / S::kStep;
    const int first = (int)((int64_t)steps * here.rank / splits),
              count = (int)((int64_t)steps * (here.rank + 1) / splits) - first;
    /* The CTA adds up each splits-th token; how many those are. */
    const auto count_rows = [&](int of) { return ((int)g.m + splits - 1 - of) / splits; };
    hopper::let_next_launch_begin();
    const copier<kBits, kGroup, kTokens> copies = {from, ring, full, empty, by, here.n0, first, count};
    const bool i_copy = warp == kCopier && hopper::elect();
    if (i_copy) {
        for (int i = 0; i < by.stages; ++i) {
            hopper::barrier_init(&full[i], 1);
            hopper::barrier_init(&empty[i], (uint32_t)by.warps + kRaw);
            hopper::barrier_init(&summed[i], kStorers);
        }
        hopper::barrier_init(landed, 1);
        hopper::fence_barrier_init();
        hopper::barrier_expect(
            landed, splits == 1 ? 0 : (uint32_t)(splits * count_rows(here.rank) * by.warps * kWarpColumns * 4));
        copies.begin();
    }
    __syncthreads();
    hopper::cluster_arrive(); /* sums may be sent here */

    constexpr int kPitch = kMaxColumns + 4;
    const int meeting = (by.warps + (kRaw ? 1 : 0)) * 32;
    static_assert(kTokens * kPitch * 4 <= kMaxStages * S::kBytes, "the sums fit where the stages were");
    float *const sums = reinterpret_cast<float *>(ring);
    if (warp == kCopier) {
        if (i_copy) {
            copies.go_on();
        }
        __syncwarp();
    } else if (warp == kSummer) {
        if constexpr (kRaw) {
            sum_tokens<kBits, kGroup, kTokens>(ring, full, empty, summed, by.stages, count);
            hopper::meet_arrive(1, meeting);
        }
    } else {
        const float *const token_sums = reinterpret_cast<const float *>(ring + S::kSumsAt);
        sums_of<kTokens> c = {}, part[kRaw ? 2 : 1] = {};
#pragma unroll 1
        for (int left = count, at = 0, phase = 0; left > 0; --left) {
            hopper::barrier_wait(&full[at], (uint32_t)phase);
            multiply_step<kBits, kBf16, kGroup, kTokens>(c, part, ring + at * S::kBytes, token_sums + at * kTokens,
                                                         &summed[at], (uint32_t)phase, by.warps);
            __syncwarp();
            if (lane == 0) {
                hopper::barrier_arrive(&empty[at]);
            }
            if (++at == by.stages) {
                at = 0, phase ^= 1;
            }
        }
        hopper::meet(1, meeting); /* nobody reads a stage any more */
        const float one[2] = {1, 1};
#pragma unroll
        for (int i = 0; i < kTiles / 2; ++i) {
            if constexpr (kGroup == 0) {
                add_group<kRaw, kTokens>(c, part, i, one);
            }
#pragma unroll
            for (int h = 0; h < kTokens / 8; ++h) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if constexpr (kRaw) {
                        const float eights = kGroup == 0 ? token_sums[h * 8 + lane % 4 * 2 + e % 2] : 0.0f;
                        c[i][h][e] = (c[i][h][e] + eights) * 0x1p24f;
                    }
                    sums[(h * 8 + lane % 4 * 2 + e % 2) * kPitch + (warp - kHelpers) * kWarpColumns + i * 16 +
                         e / 2 * 8 + lane / 4] = c[i][h][e];
                }
            }
        }
        __syncwarp();
    }
    hopper::cluster_wait();
    if (warp < kHelpers) {
        return;
    }
    float *const landing = reinterpret_cast<float *>(ring + S::kLandingAt);
    const int columns = by.warps * kWarpColumns, column = (warp - kHelpers) * kWarpColumns + lane % 8 * 4;
    int block = (int)blockIdx.x;
    asm volatile("" : "+r"(block)); /* the place is found again, for no registers are left to hold it until here */
    const auto [rank, n0] = place_of(by, block);
    const int rows = count_rows(rank), most_rows = count_rows(0);
    for (int row = lane / 8; row < (int)g.m; row += 4) {
        const float4 x = *reinterpret_cast<const float4 *>(sums + row * kPitch + column);
        float *const to = landing + (rank * most_rows + row / splits) * columns + column;
        if (splits == 1) { /* a cluster of one does not send, memcheck holds */
            *reinterpret_cast<float4 *>(to) = x;
        } else {
            hopper::send(to, landed, (uint32_t)(row % splits), x);
        }
    }
    __syncwarp();
    hopper::wait_for_launch_before();
    if (n0 + column >= (int)g.n) {
        return;
    }
    hopper::barrier_wait(landed, 0);
    for (int row = lane / 8; row < rows; row += 4) {
        float sum[4] = {};
#pragma unroll
        for (int s = 0; s < kMaxSplits; ++s) {
            if (s < splits) {
                const float4 x = *reinterpret_cast<const float4 *>(landing + (s * most_rows + row) * columns + column);
                sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
            }
        }
        uint32_t out[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if constexpr (kGroup == 0) {
                sum[e] *= tsr::widen(static_cast<const uint16_t *>(g.scales)[n0 + column + e], kBf16);
            }
            out[e] = tsr::narrow(sum[e], kBf16);
        }
        *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(g.d) + (rank + row * splits) * g.ldd + n0 + column) =
            make_uint2(out[0] | out[1] << 16, out[2] | out[3] << 16);
    }
#endif
}

using kernel_fn = void (*)(const maps, const tsr_weight_only_gemm, const cut);

struct choice {
    kernel_fn kernel;
    int shared, tokens, lines, turns, groups;
};

template <int kBits, bool kBf16, int kGroup, int kTokens> choice chosen()
{
    using S = stage<kBits, kGroup, kTokens>;
    return {stream_kernel<kBits, kBf16, kGroup, kTokens>, S::kShared, kTokens, S::kLines, S::kTurns, S::kGroups};
}

template <int kBits, bool kBf16, int kGroup> choice choose(bool few)
{
    return few ? chosen<kBits, kBf16, kGroup, 8>() : chosen<kBits, kBf16, kGroup, 16>();
}

template <int kBits, bool kBf16> choice choose(int64_t group, bool few)
{
    return group == 0    ? choose<kBits, kBf16, 0>(few)
           : group == 32 ? choose<kBits, kBf16, 32>(few)
           : group == 64 ? choose<kBits, kBf16, 64>(few)
                         : choose<kBits, kBf16, 128>(few);
}

tsr_status encode_maps(const tsr_weight_only_gemm &g, const choice &with, int columns, maps *out, tsr_err *err)
{
    encode_fn encode = NULL;
    TSR_TRY(find_encode(&encode, err));
    const cuuint32_t steps[3] = {1, 1, 1};
    const cuuint64_t dims[3] = {128, (cuuint64_t)(g.n * g.bits / 16), (cuuint64_t)(g.k / 64)};
    const cuuint64_t pitches[2] = {(cuuint64_t)g.k * 2, 128};
    const cuuint32_t box[3] = {128, (cuuint32_t)(columns / with.turns), (cuuint32_t)with.lines};
    CUresult code = encode(&out->weights, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void *>(g.w), dims, pitches, box,
                           steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    const auto encode_plane = [&](CUtensorMap *map, const void *at, int64_t columns, int64_t rows, int64_t pitch,
                                  int box_columns, int box_rows, CUtensorMapSwizzle swizzle) {
        const cuuint64_t plane[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch_bytes[1] = {(cuuint64_t)pitch * 2};
        const cuuint32_t plane_box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows};
        return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void *>(at), plane, pitch_bytes, plane_box,
                      steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    if (code == CUDA_SUCCESS) {
        code = encode_plane(&out->tokens, g.a, g.k, g.m, g.lda, 64, with.tokens, CU_TENSOR_MAP_SWIZZLE_128B);
    }
    if (code == CUDA_SUCCESS && g.group != 0) {
        code = encode_plane(&out->scales, g.scales, g.n, g.k / g.group, g.n, columns, with.groups,
                            CU_TENSOR_MAP_SWIZZLE_NONE);
    }
    return code == CUDA_SUCCESS ? TSR_OK
                                : tsr_fail(err, TSR_E_DEVICE,
                                           "weight-only product: the driver refused a tensor map: error %d", (int)code);
}

/* As many CTAs as run at once, of eight steps or more where they share K, and of these the widest. Clusters of four fit
 * every place, larger ones do not. Few stages, since the last ones are multiplied while nothing is loaded. Where the
 * products take longer than the loads the four schedulers of a multiprocessor get as many warps each. */
cut cut_for(int64_t n, int64_t steps, bool heavy, int processors)
{
    const int64_t places = (int64_t)kTogether * processors;
    int64_t most = 0;
    cut best = {kMaxWarps, 1, 3};
    for (int warps = kMaxWarps; warps >= kMaxWarps / 2; warps -= heavy ? kMaxWarps / 2 : 1) {
        for (int splits = 1; splits <= kMaxSplits && (splits == 1 || steps >= 8 * splits); ++splits) {
            const int64_t columns = warps * kWarpColumns, count = (n + columns - 1) / columns * splits;
            const int64_t fit = splits > 4 ? places * 17 / 20 : splits == 3 ? places * 19 / 20 : places;
            if (count <= fit && count > most) {
                most = count;
                best = {warps, splits, warps > kMaxWarps / 2 ? 3 : kMaxStages};
            }
        }
    }
    return best;
}

} // namespace

tsr_status tsr::weight_only_stream(const tsr_weight_only_gemm &g, int processors, tsr_stream stream, tsr_err *err)
{
    const bool few = g.m <= 8;
    const choice with = g.bits == 8 ? (g.bf16 ? choose<8, true>(g.group, few) : choose<8, false>(g.group, few))
                                    : (g.bf16 ? choose<4, true>(g.group, few) : choose<4, false>(g.group, few));
    maps from = {};
    const cut by = cut_for(g.n, g.k / 64 / with.lines, g.bits == 4 && g.group != 0 && !few, processors);
    const int columns = by.warps * kWarpColumns;
    TSR_TRY(encode_maps(g, with, columns, &from, err));
    const int64_t tiles = (g.n + columns - 1) / columns;
    cudaLaunchAttribute attributes[3] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)by.splits;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    attributes[2].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    attributes[2].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(tiles * by.splits));
    config.blockDim = dim3((unsigned)(by.warps + kHelpers) * 32);
    config.dynamicSmemBytes = (size_t)with.shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 3;
    cudaError_t code = cudaFuncSetAttribute(with.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, with.shared);
    if (code == cudaSuccess) {
        code = cudaLaunchKernelEx(&config, with.kernel, from, g, by);
    }
    (void)cudaGetLastError();
    return code == cudaSuccess ? TSR_OK
                               : tsr_fail(err, TSR_E_DEVICE, "weight-only product: %s", cudaGetErrorString(code));
}
