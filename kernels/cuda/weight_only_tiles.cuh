/* Weight-only product for any number of tokens on Hopper, with groups and zero points. Each warpgroup has 128 output
 * features: it converts their codes to operands of wgmma in registers, once per tile of up to 128 tokens, which it
 * reads from shared memory. The CTAs of a cluster share K; each adds the sums of all CTAs for its share of the tokens,
 * in a fixed order. For weight_only_tiles.cu only; docs/kernels/weight_only.md has a picture. */
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/weight_only.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace
{

constexpr int kStep = 64;                     /* rows of K in a stage */
constexpr int kGroupColumns = 128;            /* output features per warpgroup: two blocks of 64 */
constexpr int kScaleColumns = 256;            /* most columns of one copy of scales */
constexpr int kMinStages = 3, kMaxStages = 8; /* the launcher chooses in this range */
static_assert(hopper::ring_is_safe(kMinStages, 1), "every warp waits for every stage");
constexpr int kMaxSplits = 8;  /* parts of K, the CTAs of a cluster */
constexpr int kBand = 8;       /* tiles of tokens that are processed for all features before the next ones */
constexpr int kEarly = 2;      /* stages whose weights are loaded before the previous launch has ended */
constexpr int kRingAt = 1024;  /* offset in shared memory; the barriers precede it */
constexpr int kPitchSpare = 4; /* padding in floats between rows of the sums, so that lanes of a warp write to all
                                * banks */

/* Most warpgroups of a CTA, of four warps each. With few tokens, registers allow this many, or two CTAs of half the
 * size. */
template <int kTokens> constexpr int kMaxGroups = kTokens < 128 ? 4 : 2;

/* How a launch divides the product. */
struct tiling {
    int tokens, groups;      /* tokens of a tile; warpgroups of a CTA */
    int splits, steps, more; /* the CTAs of a cluster share K: each has `steps` steps, the first `more` CTAs one more */
    int token_tiles, feature_tiles;
    int loaded, last;  /* tokens that a tile loads; the first one of the last tile. No tile reaches beyond the tokens,
                       * because the copy engine is slow there; results of two tiles get the same bits from both */
    int stages, stage; /* number of stages, and the bytes of one */
    int weight_bytes, scale_bytes; /* bytes in a stage; scale_bytes does not include zeros */
    int scale_rows;                /* per stage: 0 if scales are applied at the end, otherwise 1, or 2 for groups of
                                    * 32 */
    int scale_shift;               /* row of the first scale of a step: k >> scale_shift */
};

struct tile_maps {
    CUtensorMap weights, tokens, scales, zeros;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#define TSR_MMA_CODES(type, width, registers, outs, x0, x1, x2, x3, y, add)                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" width "k16.f32." type "." type " {" registers "}, {" x0 ", " x1 \
                 ", " x2 ", " x3 "}, " y ", p, 1, 1, 0;\n}"                                                          \
                 : outs                                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

/* d[64 x N] (+)= A[64 x 16] * B[N x 16]^T, A in registers. */
template <bool kBf16, int N>
__device__ __forceinline__ void multiply_tile(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate)
{
    if constexpr (N == 32 && kBf16) {
        TSR_MMA_CODES("bf16", "32", TSR_N16, TSR_D16(0), "%16", "%17", "%18", "%19", "%20", "%21");
    } else if constexpr (N == 32) {
        TSR_MMA_CODES("f16", "32", TSR_N16, TSR_D16(0), "%16", "%17", "%18", "%19", "%20", "%21");
    } else if constexpr (N == 48 && kBf16) {
        TSR_MMA_CODES("bf16", "48", TSR_N24, TSR_D24, "%24", "%25", "%26", "%27", "%28", "%29");
    } else if constexpr (N == 48) {
        TSR_MMA_CODES("f16", "48", TSR_N24, TSR_D24, "%24", "%25", "%26", "%27", "%28", "%29");
    } else if constexpr (N == 64 && kBf16) {
        TSR_MMA_CODES("bf16", "64", TSR_N32, TSR_D32(0), "%32", "%33", "%34", "%35", "%36", "%37");
    } else if constexpr (N == 64) {
        TSR_MMA_CODES("f16", "64", TSR_N32, TSR_D32(0), "%32", "%33", "%34", "%35", "%36", "%37");
    } else if constexpr (kBf16) {
        TSR_MMA_CODES("bf16", "128", TSR_N64, TSR_D64, "%64", "%65", "%66", "%67", "%68", "%69");
    } else {
        static_assert(N == 128, "no such width");
        TSR_MMA_CODES("f16", "128", TSR_N64, TSR_D64, "%64", "%65", "%66", "%67", "%68", "%69");
    }
}

/* Portion of the product that a CTA computes: features from n0 on, tokens from m0 on, `count` steps of K from `first`
 * on. */
struct portion {
    int n0, m0, first, count, rank;
};

template <int kTokens> __device__ __forceinline__ portion my_portion(const tiling &by)
{
    const int rank = (int)hopper::cluster_rank(), tile = (int)blockIdx.x / by.splits;
    const int in_band = kBand * by.feature_tiles, band = tile / in_band, at = tile % in_band;
    const int width = min(kBand, by.token_tiles - band * kBand); /* width of the band; the last one may be narrower */
    return {at / width * by.groups * kGroupColumns, min((band * kBand + at % width) * kTokens, by.last),
            rank * by.steps + min(rank, by.more), by.steps + (rank < by.more), rank};
}

/* Role of the copying lane. */
template <int kBits, int kTokens> struct tile_copier {
    const tile_maps &from;
    const tiling &by;
    const portion &mine;
    uint8_t *ring;
    uint64_t *full, *empty;
    bool zeros;

    /* Requests the data of a step except its tokens. Weights that no other tile of tokens needs are not kept in L2. */
    __device__ __forceinline__ void load_weights(int at, int i) const
    {
        uint8_t *const to = ring + at * by.stage, *const scales = to + by.weight_bytes + kTokens * kStep * 2;
        const int step = mine.first + i, row = step * kStep >> by.scale_shift;
        hopper::barrier_expect(&full[at],
                               (uint32_t)(by.weight_bytes + by.loaded * kStep * 2 + by.scale_bytes * (zeros ? 2 : 1)));
        if (by.token_tiles == 1) {
            hopper::load_tile_once(to, &from.weights, &full[at], 0, mine.n0 * kBits / 16, step);
        } else {
            hopper::load_tile(to, &from.weights, &full[at], 0, mine.n0 * kBits / 16, step);
        }
        const int columns = min(by.groups * kGroupColumns, kScaleColumns);
        for (int column = 0; by.scale_rows != 0 && column < by.groups * kGroupColumns; column += columns) {
            uint8_t *const piece = scales + column * by.scale_rows * 2;
            hopper::load_tile(piece, &from.scales, &full[at], mine.n0 + column, row);
            if (zeros) {
                hopper::load_tile(piece + by.scale_bytes, &from.zeros, &full[at], mine.n0 + column, row);
            }
        }
    }

    __device__ __forceinline__ void load_tokens(int at, int i) const
    {
        hopper::load_tile(ring + at * by.stage + by.weight_bytes, &from.tokens, &full[at], 0, mine.m0, mine.first + i);
    }

    /* Fills the ring. The first weights are loaded before the previous launch has ended, which must not write them;
     * loading more of them would delay the first tokens. */
    __device__ __forceinline__ void begin() const
    {
        const int filled = min(mine.count, by.stages), early = min(filled, kEarly);
        for (int i = 0; i < early; ++i) {
            load_weights(i, i);
        }
        hopper::wait_for_launch_before();
#pragma unroll 1
        for (int i = 0; i < filled; ++i) {
            if (i >= early) {
                load_weights(i, i);
            }
            load_tokens(i, i);
        }
    }

    /* Loads step `i` once all warps have finished with the previous contents of its stage. Different warps refill a
     * stage in turn. The refilling warp has waited for the previous step in that stage, so the barrier is at most one
     * phase behind it. */
    __device__ __forceinline__ void refill(int at, int i, int phase) const
    {
        hopper::barrier_wait(&empty[at], (uint32_t)phase);
        load_weights(at, i);
        load_tokens(at, i);
    }
};

__device__ __forceinline__ void load_codes(uint32_t (&out)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* Loads one of the 16-bit numbers at `at`, twice. */
__device__ __forceinline__ uint32_t load_twice(uint32_t at)
{
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at) : "memory");
    return __byte_perm(x, 0, 0x1010);
}

/* Scales and zeros of a lane's rows: [block of 64 features][row lane / 4, or 8 further]. */
struct row_scales {
    uint32_t scale[2][2], zero[2][2];

    template <bool kBf16> __device__ __forceinline__ void begin()
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scale[i / 2][i % 2] = kBf16 ? 0x3F803F80u : 0x3C003C00u; /* 1 */
            zero[i / 2][i % 2] = 0x80008000u;                        /* -0: only the product */
        }
    }

    __device__ __forceinline__ void load(uint32_t at, int scale_bytes, bool zeros)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scale[i / 2][i % 2] = load_twice(at + (uint32_t)(i / 2 * 128 + i % 2 * 16));
        }
        if (zeros) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                zero[i / 2][i % 2] = load_twice(at + (uint32_t)(scale_bytes + i / 2 * 128 + i % 2 * 16));
            }
        }
    }
};

/* The operands of 32 rows of K: [block][16 rows of K]. ldmatrix gives lane c of a column the c-th word of its 16 bytes,
 * which has rows 2c, 2c + 1 and those 8 (int4: 8, 16, 24) further, as a fragment requires. */
using fragments = uint32_t[2][2][4];

template <int kBits, bool kBf16>
__device__ __forceinline__ void convert_half(fragments &out, uint32_t weights, int half, const row_scales &by)
{
    constexpr int kPairs = kBits == 8 ? 2 : 4,
                  kLoads = kBits == 8 ? 2 : 1; /* pairs and loads in 16 bytes of a column */
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
        uint32_t word[4]; /* rows lane / 4 and lane / 4 + 8, in the first block, then in the second */
        load_codes(word, weights ^ (uint32_t)((half * kLoads + load) * 16));
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            uint32_t pair[kPairs];
            tsr::convert_fast<kBits, kBf16>(word[t], pair);
#pragma unroll
            for (int p = 0; p < kPairs; ++p) {
                const uint32_t scale = by.scale[t / 2][t % 2], zero = by.zero[t / 2][t % 2];
                out[t / 2][kBits == 8 ? load : p / 2][p % 2 * 2 + t % 2] =
                    tsr::scaled_onto<kBf16>(pair[p], scale, zero);
            }
        }
    }
}

/* Prevents the compiler from computing operands later than here, while products are in progress. */
__device__ __forceinline__ void hold(fragments &x)
{
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        asm volatile("" : "+r"(x[i / 8][i / 4 % 2][i % 4])::"memory");
    }
}

/* Computes the portion of a warpgroup. While the tensor cores multiply one half of a step, the next half is converted.
 * A stage is released when the products of the step are done. In each step another warp refills the stage of two steps
 * ago, which the others have released by then. */
template <int kBits, bool kBf16, int kTokens>
__device__ __forceinline__ void multiply_all(float (&sums)[2][kTokens / 2], const tile_copier<kBits, kTokens> &copies,
                                             uint32_t shared_at)
{
    constexpr int kTurns = 16 / kBits, kChunks = kBits / 2; /* columns in 128 bytes; pieces of 16 bytes of a column */
    const tiling &by = copies.by;
    const int lane = (int)threadIdx.x % 32, row = lane % 8, tile = lane / 8;
    const int warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0);
    const int column = warp / 4 * kGroupColumns + warp % 4 * 16; /* and 64 further */
    const int line = (column + tile / 2 * 64 + tile % 2 * 8 + row) / kTurns;
    const uint32_t mine = (uint32_t)(line * 8 + (row % kTurns * kChunks ^ line % 8)) * 16;
    const uint32_t full_at = shared_at, empty_at = shared_at + kMaxStages * 8;
    const int scales_at = column / kScaleColumns * by.scale_rows * kScaleColumns + column % kScaleColumns + lane / 4;
    fragments operands[2];
    row_scales scales;
    scales.begin<kBf16>();
    int turns = warp; /* steps until this warp refills a stage */
#pragma unroll 1
    for (int i = 0, at = 0, before = 0, phase = 0, free = 0, free_phase = 0; i < copies.mine.count; ++i) {
        const uint32_t stage = shared_at + (uint32_t)(kRingAt + at * by.stage);
        const uint32_t tokens = stage + (uint32_t)by.weight_bytes;
        hopper::barrier_wait(full_at + (uint32_t)at * 8, (uint32_t)phase);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half < by.scale_rows) {
                const int place = scales_at + half * min(by.groups * kGroupColumns, kScaleColumns);
                scales.load(tokens + (uint32_t)(kTokens * kStep + place) * 2, by.scale_bytes, copies.zeros);
            }
            convert_half<kBits, kBf16>(operands[half], stage + mine, half, scales);
            hold(operands[half]);
            hopper::mma_fence();
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const uint64_t b = hopper::operand_of_low(hopper::operand_low(tokens) + 4 * half + 2 * k);
#pragma unroll
                for (int block = 0; block < 2; ++block) {
                    multiply_tile<kBf16, kTokens>(sums[block], operands[half][block][k], b, (i | half | k) != 0);
                }
            }
            hopper::mma_commit();
            hopper::mma_wait_but<1>(); /* the other operands are no longer in use */
            if (half == 0 && i > 0 && lane == 0) {
                hopper::barrier_arrive(empty_at + (uint32_t)before * 8);
            }
        }
        if (i >= 2) {
            const int next = i - 2 + by.stages;
            if (turns == 0 && next < copies.mine.count) {
                if (hopper::elect()) {
                    copies.refill(free, next, free_phase);
                }
                __syncwarp();
            }
            turns = turns == 0 ? by.groups * 4 - 1 : turns - 1;
            if (++free == by.stages) {
                free = 0, free_phase ^= 1;
            }
        }
        before = at;
        if (++at == by.stages) {
            at = 0, phase ^= 1;
        }
    }
    hopper::mma_wait<0>(sums[0]);
    hopper::hold(sums[1]);
}

/* Stores a warpgroup's sums in the memory of the ring, one row of floats per token. */
template <int kTokens>
__device__ __forceinline__ void put_sums(const float (&sums)[2][kTokens / 2], float *to, int pitch)
{
    const int lane = (int)threadIdx.x % 32;
    const int column = (int)threadIdx.x / 128 * kGroupColumns + (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) {
            const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
            to[token * pitch + column + block * 64 + i / 2 % 2 * 8] = sums[block][i];
        }
    }
}

/* Synchronizes with the other CTAs of the cluster, so that each may read the others' shared memory. This weaker
 * ordering needs no wait for the whole GPU, but nvcc before 12.8 has no instruction for it. */
__device__ __forceinline__ void publish_sums()
{
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
    hopper::cluster_meet();
    asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
#else
    hopper::cluster_sync();
#endif
}

/* Adds the sums of all CTAs of the cluster for this CTA's tokens and stores them. A lane has four features. */
template <bool kBf16>
__device__ __forceinline__ void finish_tile(const tsr_weight_only_gemm &g, const tiling &by, const portion &mine,
                                            const float *sums, int pitch, int tokens)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int column = warp % by.groups * kGroupColumns + lane * 4, n = mine.n0 + column;
    const bool late = by.scale_rows == 0;
    if (n >= (int)g.n) {
        return;
    }
    uint2 scales = {};
    if (late) {
        scales = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(g.scales) + n);
    }
    for (int token = warp / by.groups * by.splits + mine.rank; token < tokens; token += 4 * by.splits) {
        const float *const at = sums + token * pitch + column;
        float4 sum = {};
#pragma unroll
        for (int s = 0; s < kMaxSplits; ++s) {
            if (s < by.splits) {
                const float4 x =
                    by.splits == 1 ? *reinterpret_cast<const float4 *>(at) : hopper::load_remote(at, (uint32_t)s);
                sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
            }
        }
        if (late) {
            sum.x *= tsr::widen((uint16_t)scales.x, kBf16), sum.y *= tsr::widen((uint16_t)(scales.x >> 16), kBf16);
            sum.z *= tsr::widen((uint16_t)scales.y, kBf16), sum.w *= tsr::widen((uint16_t)(scales.y >> 16), kBf16);
        }
        const uint2 out = {tsr::narrow(sum.x, kBf16) | (uint32_t)tsr::narrow(sum.y, kBf16) << 16,
                           tsr::narrow(sum.z, kBf16) | (uint32_t)tsr::narrow(sum.w, kBf16) << 16};
        *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(g.d) + (int64_t)(mine.m0 + token) * g.ldd + n) = out;
    }
}

#endif

template <int kBits, bool kBf16, int kTokens>
__global__ void __launch_bounds__(kMaxGroups<kTokens> * 128, 1)
    tiles_kernel(const __grid_constant__ tile_maps from, const tsr_weight_only_gemm g, const tiling by)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) uint8_t shared[];
    uint64_t *const full = reinterpret_cast<uint64_t *>(shared), *const empty = full + kMaxStages;
    float *const landing = reinterpret_cast<float *>(shared + kRingAt);
    const portion mine = my_portion<kTokens>(by);
    const int pitch = by.groups * kGroupColumns + kPitchSpare;
    const tile_copier<kBits, kTokens> copies = {from, by, mine, shared + kRingAt, full, empty, g.zeros != nullptr};
    hopper::let_next_launch_begin();
    if (threadIdx.x == 0) {
        hopper::prefetch_map(&from.weights);
        hopper::prefetch_map(&from.tokens);
        if (by.scale_rows != 0) {
            hopper::prefetch_map(&from.scales);
        }
        if (g.zeros != nullptr) {
            hopper::prefetch_map(&from.zeros);
        }
        for (int i = 0; i < by.stages; ++i) {
            hopper::barrier_init(&full[i], 1);
            hopper::barrier_init(&empty[i], (uint32_t)by.groups * 4);
        }
        hopper::fence_barrier_init();
        copies.begin();
    }
    __syncthreads();
    float sums[2][kTokens / 2];
    uint32_t shared_at = hopper::shared_address(shared);
    asm volatile("" : "+r"(shared_at)); /* otherwise the compiler computes it again at every step */
    multiply_all<kBits, kBf16, kTokens>(sums, copies, shared_at);
    __syncthreads(); /* all have finished with the ring */
    put_sums<kTokens>(sums, landing, pitch);
    if (by.splits == 1) {
        __syncthreads();
    } else {
        publish_sums();
    }
    finish_tile<kBf16>(g, by, mine, landing, pitch, by.loaded);
    if (by.splits != 1) {
        hopper::cluster_meet(); /* others may still read here; the data that this CTA has read has been added */
    }
#else
    __trap(); /* the launcher requires sm_90 */
#endif
}

} // namespace
