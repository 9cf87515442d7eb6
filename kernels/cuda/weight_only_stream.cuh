/* Weight-only product for few tokens on Hopper: up to 16, for which it reads the weights at memory bandwidth, and up to
 * 32 for int4 in groups of 128. Four to eight warps of a CTA have 32 output features each, one keeps the copy engine
 * busy, and in some kernels one sums the tokens. The CTAs of a cluster share K, send each other their sums and add them
 * in a fixed order. For weight_only_stream.cu only; docs/kernels/weight_only.md has a picture. */
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/weight_only.cuh"
#include "kernels/cuda/weight_only_cut.cuh"

namespace
{

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

static_assert(hopper::ring_is_safe(kMaxStages, 1), "every warp waits for every stage");
constexpr int kTiles = kWarpColumns / 8; /* tiles of eight columns per warp */
constexpr int kStorers = 8;              /* lanes that hold the tokens' sums */
constexpr int kChains = 4;               /* independent chains of products into which a sum of tokens is divided */

/* Loads four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8, and gets, of
 * each matrix, pair l % 4 of row l / 4. */
__device__ __forceinline__ void load_matrices(uint32_t out[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* barriers where others wait until the copying warp has initialized the mbarriers */
constexpr int kWorkersMeet = 1, kHelpersMeet = 2;

struct barriers {
    uint64_t *full, *empty; /* [stages]: a stage has arrived; all warps have finished with it */
    uint64_t *summed;       /* [stages]: the sums of its tokens are complete */
    uint64_t *landed;       /* sums of other CTAs have arrived */
};

/* Role of the copying lane: `count` steps from `first` on. */
template <int kBits, int kGroup, int kTokens> struct copier {
    using S = stage<kBits, kGroup, kTokens>;
    const maps &from;
    uint8_t *ring;
    const barriers &at_hand;
    cut by;
    int n0, first, count;

    __device__ __forceinline__ uint8_t *tokens_of(int at) const
    {
        return ring + at * by.stage + by.warps * S::kWeightBytes;
    }

    /* Loads the weights and scales of step `i` into stage `at`. */
    __device__ __forceinline__ void load_weights(int at, int i) const
    {
        uint64_t *const full = &at_hand.full[at];
        hopper::barrier_expect(full, (uint32_t)(S::kTokenBytes + by.warps * (S::kWeightBytes + S::kScaleBytes)));
        hopper::load_tile_once(ring + at * by.stage, &from.weights, full, 0, n0 / S::kTurns, (first + i) * S::kLines);
        if constexpr (kGroup != 0) {
            hopper::load_tile(tokens_of(at) + S::kTokenBytes, &from.scales, full, n0, (first + i) * S::kStep / kGroup);
        }
    }

    /* Loads the first weights before the previous launch has ended, and initializes the other barriers meanwhile. */
    __device__ __forceinline__ void begin(uint32_t readers, uint32_t landing_bytes) const
    {
        hopper::prefetch_map(&from.weights);
        hopper::prefetch_map(&from.tokens);
        if constexpr (kGroup != 0) {
            hopper::prefetch_map(&from.scales);
        }
        for (int i = 0; i < by.stages; ++i) {
            hopper::barrier_init(&at_hand.full[i], 1);
        }
        hopper::fence_barrier_init();
        for (int i = 0; i < min(count, by.early); ++i) {
            load_weights(i, i);
        }
        for (int i = 0; i < by.stages; ++i) {
            hopper::barrier_init(&at_hand.empty[i], readers);
            hopper::barrier_init(&at_hand.summed[i], kStorers);
        }
        hopper::barrier_init(at_hand.landed, 1);
        hopper::fence_barrier_init();
        hopper::barrier_expect(at_hand.landed, landing_bytes);
    }

    __device__ __forceinline__ void go_on() const
    {
        hopper::wait_for_launch_before();
        for (int i = 0, at = 0, phase = 1; i < count; ++i) {
            hopper::barrier_wait(&at_hand.empty[at], (uint32_t)phase); /* succeeds immediately in the first round */
            if (i >= by.early) {
                load_weights(at, i);
            }
            hopper::load_tile(tokens_of(at), &from.tokens, &at_hand.full[at], 0, 0, (first + i) * S::kLines);
            if (i == max(count - by.before_end, 0)) {
                hopper::let_next_launch_begin();
            }
            if (++at == by.stages) {
                at = 0, phase ^= 1;
            }
        }
    }
};

/* Returns the address of this lane's row in four matrices for load_matrices, each with eight numbers of tokens 8 h to 8
 * h + 7, from k on, a multiple of 32. kApart: the second and third matrix are exchanged. */
template <int kTokens, bool kApart> __device__ __forceinline__ uint32_t tokens_at(uint32_t tokens, int k, int h)
{
    const int row = (int)threadIdx.x % 8, lane = (int)threadIdx.x % 32;
    const int piece = kApart ? lane / 8 % 2 * 2 + lane / 16 : lane / 8;
    return ((tokens + (uint32_t)(row * 8 + (piece ^ row)) * 16) ^ (uint32_t)(k % 64 * 2)) +
           (uint32_t)(k / 64 * kTokens * 128 + h * 1024);
}

/* For raw weights: computes c = -8 * 2^-24 times the sum of each token's numbers in a step, the same in every column,
 * in chains that must still be added. Without groups it is added to the previous c. */
template <int kBits, int kGroup, int kTokens>
__device__ __forceinline__ void sum_tokens(float (&c)[kChains][4], uint32_t tokens)
{
    using S = stage<kBits, kGroup, kTokens>;
    constexpr uint32_t kEights = 0x80088008u;
#pragma unroll
    for (int k = 0; k < S::kStep; k += 32) {
        uint32_t b[2][4] = {};
#pragma unroll
        for (int h = 0; h < kTokens / 8; ++h) {
            load_matrices(b[h], tokens_at<kTokens, false>(tokens, k, h));
        }
#pragma unroll
        for (int p = 0; p < 4; p += 2) {
            const uint32_t fragment[4] = {b[0][p], b[1][p], b[0][p + 1], b[1][p + 1]};
            const int at = k / 16 + p / 2;
            if (kGroup != 0 && at < kChains) {
                tsr::multiply_afresh<false>(c[at % kChains], fragment, kEights, kEights);
            } else {
                tsr::multiply<false>(c[at % kChains], fragment, kEights, kEights);
            }
        }
    }
}

/* Role of the token-summing warp: computes sum_tokens of all steps into `sums`, which has a row of kTokens per stage
 * or, without groups, one row. */
template <int kBits, int kGroup, int kTokens>
__device__ __forceinline__ void sum_steps(const copier<kBits, kGroup, kTokens> &copies, float *sums)
{
    const barriers &at_hand = copies.at_hand;
    const int lane = (int)threadIdx.x % 32;
    float c[kChains][4] = {};
    for (int i = 0, at = 0, phase = 0; i < copies.count; ++i) {
        hopper::barrier_wait(&at_hand.full[at], (uint32_t)phase);
        sum_tokens<kBits, kGroup, kTokens>(c, hopper::shared_address(copies.tokens_of(at)));
        if (lane % (32 / kStorers) == 0 && (kGroup != 0 || i == copies.count - 1)) {
            const int row = kGroup != 0 ? at : 0;
#pragma unroll
            for (int h = 0; h < kTokens / 8; ++h) {
                sums[row * kTokens + h * 8 + lane / 4] = (c[0][2 * h] + c[1][2 * h]) + (c[2][2 * h] + c[3][2 * h]);
            }
            hopper::barrier_arrive(&at_hand.summed[row]);
        }
        __syncwarp();
        if (lane == 0) {
            hopper::barrier_arrive(&at_hand.empty[at]);
        }
        if (++at == copies.by.stages) {
            at = 0, phase ^= 1;
        }
    }
}

/* A warp's sums: [i][h] holds columns 16 i to 16 i + 15 by tokens 8 h to 8 h + 7. */
template <int kTokens> using sums_of = float[kTiles / 2][kTokens / 8][4];

/* c += scale * part. Raw weights have two parts, one for the low and one for the high nibbles of a byte; their sums
 * must still be multiplied by 2^24. */
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

__device__ __forceinline__ uint16_t load_scale(uint32_t at)
{
    uint16_t x;
    asm("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
    return x;
}

/* Multiplies one step, whose stage is at `from`, for this warp's columns. ldmatrix gives lane c of a column the c-th
 * word of its 16 bytes, which has rows 2c, 2c + 1 and those 8, 16, 24 further, as a fragment requires. Without groups
 * all products are added in `part`. With groups, raw products begin with the tokens' sums, which are complete when
 * `summed` says so. */
template <int kBits, bool kBf16, int kGroup, int kTokens, bool kRaw>
__device__ __forceinline__ void multiply_step(sums_of<kTokens> &c, sums_of<kTokens> *part, uint32_t from, uint32_t sums,
                                              uint32_t summed, uint32_t phase, int warps)
{
    using S = stage<kBits, kGroup, kTokens>;
    constexpr int kChunks = 64 / S::kChunk, kPairs = kBits == 8 ? 2 : 4;
    constexpr int kEnd = kGroup != 0 && kGroup < S::kStep ? kGroup : S::kStep;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = lane % 8;
    const int stream = (warp * kTiles + lane / 8) * (8 / S::kTurns) + row / S::kTurns;
    const uint32_t weights = from + (uint32_t)(stream * 8 + (row % S::kTurns * kChunks ^ stream % 8)) * 16;
    const uint32_t tokens = from + (uint32_t)(warps * S::kWeightBytes);
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
                    eights[h] = hopper::load_shared2(sums + (uint32_t)(h * 8 + lane % 4 * 2) * 4);
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
                /* A product uses two pairs: neighbours or, if they are raw, two of the same magnitude. */
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
                const uint32_t scales =
                    tokens + S::kTokenBytes + (uint32_t)((k / kGroup * warps + warp) * kWarpColumns + lane / 4) * 2;
#pragma unroll
                for (int i = 0; i < kTiles / 2; ++i) {
                    const float scale[2] = {tsr::widen(load_scale(scales + (uint32_t)i * 32), kBf16),
                                            tsr::widen(load_scale(scales + (uint32_t)i * 32 + 16), kBf16)};
                    add_group<kRaw, kTokens>(c, part, i, scale);
                }
            }
        }
    }
}

/* Sends this warp's sums to the CTAs that add them, adds the sums that arrive here, and stores the results. A lane
 * holds two columns, eight apart, of two tokens: four sums, which are sent together. */
template <bool kBf16, int kGroup, int kTokens, bool kRaw>
__device__ __forceinline__ void finish(sums_of<kTokens> &c, const tsr_weight_only_gemm &g, const cut &by,
                                       uint8_t *shared, uint32_t summed, uint64_t *landed)
{
    constexpr int kPieces = kWarpColumns / 2; /* pieces of four sums in a pair */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int rank = (int)hopper::cluster_rank();
    const int n0 = ((int)hopper::cluster_id() * by.warps + warp) * kWarpColumns;
    const int piece = lane % kPieces,
              column = n0 + piece / 8 * 16 + piece % 8 / 2 * 2; /* the next column, and those 8 further */
    const bool inside = n0 < (int)g.n;
    uint32_t scales[2] = {};
    if (kGroup == 0 && inside) {
        const uint16_t *const at = static_cast<const uint16_t *>(g.scales) + column;
        scales[0] = *reinterpret_cast<const uint32_t *>(at), scales[1] = *reinterpret_cast<const uint32_t *>(at + 8);
    }
    float4 *const landing = reinterpret_cast<float4 *>(shared + kLandingAt);
    const auto landing_of = [&](int from, int place) {
        return landing + ((from * by.pairs + place) * by.warps + warp) * kPieces;
    };
    if constexpr (kRaw && kGroup == 0) {
        hopper::barrier_wait(summed, 0);
    }
#pragma unroll
    for (int h = 0; h < kTokens / 8; ++h) {
        float2 eights = {};
        if constexpr (kRaw && kGroup == 0) {
            eights =
                hopper::load_shared2(hopper::shared_address(shared) + kSumsAt + (uint32_t)(h * 8 + lane % 4 * 2) * 4);
        }
        constexpr float kUnit = kRaw ? 0x1p24f : 1;
        const int pair = h * 4 + lane % 4, place = pair * by.inverse >> 8, to = pair - place * by.splits;
        const bool wanted = 2 * pair < (int)g.m;
#pragma unroll
        for (int i = 0; i < kTiles / 2; ++i) {
            const float *const x = c[i][h];
            const float4 four = make_float4((x[0] + eights.x) * kUnit, (x[1] + eights.y) * kUnit,
                                            (x[2] + eights.x) * kUnit, (x[3] + eights.y) * kUnit);
            float4 *const there = landing_of(rank, place) + i * 8 + lane / 4;
            if (wanted && by.splits == 1) { /* memcheck reports an error if a cluster of one sends */
                *there = four;
            } else if (wanted) {
                hopper::send(reinterpret_cast<float *>(there), landed, (uint32_t)to, four);
            }
        }
    }
    __syncwarp();
    if (!inside) {
        return;
    }
    hopper::barrier_wait(landed, 0);
    for (int place = 0, first = 2 * rank; first < (int)g.m; place += 2, first += 4 * by.splits) {
        const int token = first + lane / kPieces * 2 * by.splits;
        float4 sum = {};
        const float4 *at = landing_of(0, place + lane / kPieces) + piece;
        const int splits = token < (int)g.m ? by.splits : 0;
#pragma unroll
        for (int s = 0; s < kMaxSplits; ++s) {
            const float4 x = s < splits ? *at : float4();
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
            at += by.pairs * by.warps * kPieces;
        }
        /* Neighbouring lanes exchange two sums, so that each has two adjacent columns of one token. */
        const bool odd = lane % 2 != 0;
        const float low = __shfl_xor_sync(0xFFFFFFFFu, odd ? sum.x : sum.y, 1),
                    high = __shfl_xor_sync(0xFFFFFFFFu, odd ? sum.z : sum.w, 1);
        const float out[2][2] = {{odd ? low : sum.x, odd ? sum.y : low}, {odd ? high : sum.z, odd ? sum.w : high}};
        if (token + odd < (int)g.m) {
            uint16_t *const to = static_cast<uint16_t *>(g.d) + (token + odd) * g.ldd + column;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float scale[2] = {kGroup == 0 ? tsr::widen((uint16_t)scales[i], kBf16) : 1,
                                        kGroup == 0 ? tsr::widen((uint16_t)(scales[i] >> 16), kBf16) : 1};
                *reinterpret_cast<uint32_t *>(to + i * 8) =
                    tsr::narrow(out[i][0] * scale[0], kBf16) | (uint32_t)tsr::narrow(out[i][1] * scale[1], kBf16) << 16;
            }
        }
    }
}

#endif

template <int kBits, bool kBf16, int kGroup, int kTokens, bool kRaw>
__global__ void __launch_bounds__((kMostWarps<kTokens> + kMostHelpers<kTokens>)*32, kTogether)
    stream_kernel(const __grid_constant__ maps from, const tsr_weight_only_gemm g, const cut by)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) uint8_t shared[];
    uint64_t *const first_barrier = reinterpret_cast<uint64_t *>(shared);
    const barriers at_hand = {first_barrier, first_barrier + kMaxStages, first_barrier + 2 * kMaxStages,
                              first_barrier + 3 * kMaxStages};
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int rank = (int)hopper::cluster_rank(), count = by.steps + (rank < by.more);
    if (by.before_end == 0) {
        hopper::let_next_launch_begin();
    }
    if (warp >= by.warps) {
        const int n0 = (int)hopper::cluster_id() * by.warps * kWarpColumns;
        const copier<kBits, kGroup, kTokens> copies = {
            from, shared + by.ring, at_hand, by, n0, rank * by.steps + min(rank, by.more), count};
        const bool copying = warp == by.warps + kRaw, i_copy = copying && hopper::elect();
        if (i_copy) {
            uint32_t pairs = 0;
            for (int pair = rank; 2 * pair < (int)g.m && by.splits > 1; pair += by.splits) {
                ++pairs;
            }
            copies.begin((uint32_t)by.warps + kRaw, (uint32_t)(by.splits * by.warps * kWarpColumns) * pairs * 8);
        }
        __syncwarp();
        if (!copying) {
            hopper::meet(kHelpersMeet, kHelpers * 32);
        } else {
            hopper::meet_arrive(kWorkersMeet, (by.warps + 1) * 32);
            if constexpr (kRaw) {
                hopper::meet_arrive(kHelpersMeet, kHelpers * 32);
            }
        }
        hopper::cluster_arrive();
        if (i_copy) {
            copies.go_on();
        } else if (kRaw && !copying) {
            sum_steps<kBits, kGroup, kTokens>(copies, reinterpret_cast<float *>(shared + kSumsAt));
        }
        __syncwarp();
        hopper::cluster_wait();
        return;
    }
    hopper::meet(kWorkersMeet, (by.warps + 1) * 32);
    hopper::cluster_arrive(); /* sums may be sent here */
    hopper::cluster_wait();
    uint32_t shared_at = hopper::shared_address(shared);
    asm volatile("" : "+r"(shared_at)); /* otherwise the compiler computes it again at every step */
    const uint32_t empty_at = shared_at + kMaxStages * 8, summed_at = empty_at + kMaxStages * 8;
    sums_of<kTokens> c = {}, part[kRaw ? 2 : 1] = {};
#pragma unroll 1
    for (int left = count, at = 0, phase = 0; left > 0; --left) {
        hopper::barrier_wait(shared_at + (uint32_t)at * 8, (uint32_t)phase);
        multiply_step<kBits, kBf16, kGroup, kTokens, kRaw>(c, part, shared_at + (uint32_t)(by.ring + at * by.stage),
                                                           shared_at + (uint32_t)(kSumsAt + at * kTokens * 4),
                                                           summed_at + (uint32_t)at * 8, (uint32_t)phase, by.warps);
        __syncwarp();
        if (lane == 0) {
            hopper::barrier_arrive(empty_at + (uint32_t)at * 8);
        }
        if (++at == by.stages) {
            at = 0, phase ^= 1;
        }
    }
    if constexpr (kGroup == 0) {
        const float one[2] = {1, 1};
#pragma unroll
        for (int i = 0; i < kTiles / 2; ++i) {
            add_group<kRaw, kTokens>(c, part, i, one);
        }
    }
    finish<kBf16, kGroup, kTokens, kRaw>(c, g, by, shared, summed_at, at_hand.landed);
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

} // namespace
