/* Common code of the dense and the grouped block-FP8 kernel for many tokens, for these two files only: the shape of a
 * tile, and how it is multiplied. */
#pragma once

#include "kernels/cuda/block_fp8_parts.cuh"
#include "kernels/cuda/product_wide.cuh"

namespace block_fp8
{

template <int TOKENS, int WIDTH> struct wide_shape {
    using problem = block_fp8::problem;
    static constexpr int kTokens = TOKENS, kWidth = WIDTH;
    static constexpr int kSubs = TOKENS / 128; /* number of 64-token tiles per warpgroup */
    static constexpr int kABytes = TOKENS * kBlock, kWBytes = WIDTH * kBlock, kScaleBytes = TOKENS * 4;
    static constexpr int kStages = TOKENS == 128 && WIDTH == 128 ? 5 : 4, kTurns = 1, kUsers = 8;
    static constexpr int kAAt = 0, kWAt = kStages * kABytes;
    /* columns that a warpgroup stages at once, in whole boxes */
    static constexpr int kOut = kSubs == 1 ? (WIDTH + kStaged - 1) / kStaged * kStaged : kStaged;
    static constexpr int kGroupBytes = 64 * kOut * 2, kStagedBytes = 2 * kGroupBytes;
    static constexpr int kRing = kStages * (kABytes + kWBytes + kScaleBytes);
    static constexpr int kBytes = kStagedBytes + kRing + kStages * 16;
    /* A tile begins at a multiple of kStep columns within a block of scales, at most at kLatest. */
    static constexpr int kStep = WIDTH % 128 == 0 ? 128 : WIDTH % 64 == 0 ? 64 : 32;
    static constexpr int kLatest = kBlock - kStep;
    /* most blocks of scales that a tile touches */
    static constexpr int kBlocks = (WIDTH + kLatest + kBlock - 1) / kBlock;
    /* the halves of a k tile's columns are multiplied one after the other */
    static constexpr bool kHalves = TOKENS == 128 && WIDTH == 128;
    static_assert(WIDTH % kStep == 0 && kBytes <= kSharedMax, "shared memory of one CTA");
};

/* The scales of one k tile for a thread's two rows, by blocks of 128 columns. */
template <typename SHAPE> struct wide_scales {
    float low[SHAPE::kBlocks], high[SHAPE::kBlocks];

    /* Computes sum += tile * scale over groups FIRST .. FIRST + COUNT - 1 of eight columns. `offset` is where the tile
     * begins in a block of 128 columns. */
    template <int FIRST, int COUNT>
    __device__ __forceinline__ void add(float *sum, const float (&tile)[COUNT * 4], int offset) const
    {
#pragma unroll
        for (int g = 0; g < COUNT; ++g) {
            const int column = (FIRST + g) * 8, least = column / kBlock, most = (column + SHAPE::kLatest) / kBlock;
            float by_low = low[least], by_high = high[least];
            if (most > least) {
                const bool later = offset + column / SHAPE::kStep * SHAPE::kStep >= most * kBlock;
                by_low = later ? low[most] : by_low;
                by_high = later ? high[most] : by_high;
            }
            float *const at = sum + column / 2;
            at[0] = fmaf(tile[4 * g], by_low, at[0]);
            at[1] = fmaf(tile[4 * g + 1], by_low, at[1]);
            at[2] = fmaf(tile[4 * g + 2], by_high, at[2]);
            at[3] = fmaf(tile[4 * g + 3], by_high, at[3]);
        }
    }
};

/* Returns a function that sets a thread's results of group g of eight columns (product_wide.cuh): its sums. */
template <int COUNT> __device__ __forceinline__ auto results_in(const float (&sum)[COUNT])
{
    return [&sum](int g, float *results) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            results[e] = sum[4 * g + e];
        }
    };
}

template <int TOKENS, int WIDTH> using wide_reader = tile_reader<wide_shape<TOKENS, WIDTH>>;

/* Multiplies one k tile: sum += scale_a * scale_w * (A * W^T), by a warpgroup for its kSubs tiles of 64 tokens. `row`
 * is a thread's first row of the CTA's tokens, `offset` where the tile begins in a block of 128 columns. */
template <int TOKENS, int WIDTH>
__device__ __forceinline__ void multiply_tile(const wide_reader<TOKENS, WIDTH> &ring,
                                              const float (&by_w)[wide_shape<TOKENS, WIDTH>::kBlocks], int row,
                                              int offset, int lane, int ctas,
                                              float (&sum)[wide_shape<TOKENS, WIDTH>::kSubs][WIDTH / 2])
{
    using shape = wide_shape<TOKENS, WIDTH>;
    const uint32_t a = ring.a(), w = ring.w(), scale_a = ring.scale(ring.stage) + (uint32_t)(row * 4);
#pragma unroll
    for (int sub = 0; sub < shape::kSubs; ++sub) {
        const float low = hopper::load_shared(scale_a + 256 * sub),
                    high = hopper::load_shared(scale_a + 256 * sub + 32);
        wide_scales<shape> scales;
#pragma unroll
        for (int b = 0; b < shape::kBlocks; ++b) {
            scales.low[b] = low * by_w[b];
            scales.high[b] = high * by_w[b];
        }
        /* Placed here because the compiler would otherwise load them among the products and wait for shared memory
         * there. */
        hopper::hold(scales.low);
        hopper::hold(scales.high);
        const auto release = [&] {
            __syncwarp(); /* all lanes have read the scales */
            if (lane < ctas) {
                hopper::barrier_arrive(ring.empty(ring.stage), (uint32_t)lane);
            }
        };
        if constexpr (shape::kHalves) {
            /* So that one half is added while the tensor cores compute the other. */
            constexpr int kHalf = WIDTH / 2;
            float left[kHalf / 2], right[kHalf / 2];
            hopper::mma_128<kHalf>(left, a, w);
            hopper::mma_128<kHalf>(right, a, w + kHalf * kBlock / 16);
            hopper::mma_wait<1>(left);
            scales.template add<0, kHalf / 8>(sum[0], left, offset);
            hopper::mma_wait<0>(right);
            release();
            scales.template add<kHalf / 8, kHalf / 8>(sum[0], right, offset);
        } else {
            float tile[WIDTH / 2];
            hopper::mma_128<WIDTH>(tile, a + sub * 64 * kBlock / 16, w);
            hopper::mma_wait<0>(tile);
            if (sub == shape::kSubs - 1) {
                release();
            }
            scales.template add<0, WIDTH / 8>(sum[sub], tile, offset);
        }
    }
}

/* Multiplies all k tiles of a unit. `fetch(t)` requests the weights' scales from k tile t on or, after the last one,
 * the first ones of the next unit. */
template <int TOKENS, int WIDTH, typename FETCH>
__device__ __forceinline__ void multiply_unit(wide_reader<TOKENS, WIDTH> &ring,
                                              held_scales<wide_shape<TOKENS, WIDTH>::kBlocks> &scales_w,
                                              const FETCH &fetch, int tiles, int row, int offset, int lane, int ctas,
                                              float (&sum)[wide_shape<TOKENS, WIDTH>::kSubs][WIDTH / 2])
{
    using shape = wide_shape<TOKENS, WIDTH>;
    for (int t0 = 0; t0 < tiles; t0 += 32) {
        scales_w.take();
        fetch(t0 + 32);
        const int count = min(32, tiles - t0);
        const auto multiply = [&](int t) {
            ring.wait();
            float by_w[shape::kBlocks];
#pragma unroll
            for (int b = 0; b < shape::kBlocks; ++b) {
                by_w[b] = __shfl_sync(0xFFFFFFFFu, scales_w.now[b], t);
            }
            multiply_tile<TOKENS, WIDTH>(ring, by_w, row, offset, lane, ctas, sum);
        };
        int t = 0;
        if (ring.stage == 0) { /* the whole ring at once, so that the compiler knows the stages' addresses */
            for (; t + shape::kStages <= count; t += shape::kStages) {
#pragma unroll
                for (int s = 0; s < shape::kStages; ++s) {
                    ring.stage = s;
                    multiply(t + s);
                }
                ring.stage = 0;
                ring.phase ^= 1;
            }
        }
#pragma unroll 1
        for (; t < count; ++t) {
            multiply(t);
            ring.step();
        }
    }
}

} // namespace block_fp8
