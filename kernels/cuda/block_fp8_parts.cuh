/* Common declarations of the block-FP8 product, for its files only: the problem, its definition, the scales of W, and
 * the entry points of its kernels and of the choice between them. */
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/product_parts.cuh"

namespace block_fp8
{

using namespace product;

constexpr char kWhat[] = "block-FP8 product";
constexpr int kBlock = 128; /* granularity of the scales along k and n */

struct problem : matrices {
    using number = float;
    static constexpr const char *kName = kWhat;
    static constexpr bool kScaled = true; /* A's scales are copied with its k tiles */

    /* The sums are the results. */
    template <int WIDTH> struct finisher {
        __device__ __forceinline__ finisher(const problem &, int, int, int)
        {
        }

        template <int COUNT> __device__ __forceinline__ void finish(int, const float *sums, int, float *results) const
        {
#pragma unroll
            for (int e = 0; e < COUNT * 4; ++e) {
                results[e] = sums[e];
            }
        }
    };

    const float *scale_a, *scale_w;
    int64_t ld_scale_a;
    uint8_t group_shift; /* log2 of the tokens that share their scales; not 0 only for the plain and the mma kernel */
};

__device__ __forceinline__ float e4m3(uint8_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

/* Returns element [i, j] of the product by its definition, for a whole weight matrix or one group's matrix. */
__device__ __forceinline__ float defined(const problem &p, int64_t i, const uint8_t *w, const float *scale_w, int64_t j)
{
    const int64_t tiles = (p.k + kBlock - 1) / kBlock;
    float sum = 0.0f;
    for (int64_t t = 0; t < tiles; ++t) {
        const int64_t end = min((t + 1) * kBlock, (int64_t)p.k);
        float tile = 0.0f;
        for (int64_t x = t * kBlock; x < end; ++x) {
            tile = fmaf(e4m3(p.a[i * p.lda + x]), e4m3(w[j * p.ldw + x]), tile);
        }
        sum = fmaf(p.scale_a[t * p.ld_scale_a + (i >> p.group_shift)] * scale_w[j / kBlock * tiles + t], tile, sum);
    }
    return sum;
}

/* The weights' scales of a tile with BLOCKS blocks of rows: a lane holds those of one k tile out of 32, and has already
 * requested those of one out of the next 32. */
template <int BLOCKS> struct held_scales {
    float now[BLOCKS], ahead[BLOCKS];

    /* Requests the scales from k tile t on. `row` is the tile's first row in the grid of scales, `last` the last row of
     * its matrix. */
    __device__ __forceinline__ void fetch(const float *scale_w, int row, int last, int t, int tiles, int lane)
    {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            ahead[b] = __ldg(scale_w + (int64_t)min(row + b, last) * tiles + min(t + lane, tiles - 1));
        }
    }

    __device__ __forceinline__ void take()
    {
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
            now[b] = ahead[b];
        }
    }
};

/* Returns true if the Hopper kernels (fast_fits), or the mma.m16n8k32 kernel, take these arguments on this device. */
bool fast_fits(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device);
bool mma_fits(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device);

/* Fills in `p` for the kernels. TSR_E_SHAPE: invalid sizes. TSR_E_UNSUPPORTED: unknown result type. */
tsr_status problem_of(const tsr_block_fp8_gemm *args, problem *p, tsr_err *err);

/* Launch the kernel of this tile on `p`. TSR_E_UNSUPPORTED: there is no such kernel. */
tsr_status run_narrow(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream,
                      tsr_err *err);
tsr_status run_wide(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, int processors,
                    tsr_stream stream, tsr_err *err);
tsr_status run_mma(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream, tsr_err *err);

/* Returns the mma tile for m tokens. */
tsr_gemm_config mma_for(int64_t m);

/* Returns the fastest tile of all kernels, by a model of an H200. */
tsr_gemm_config fastest(int64_t m, int64_t n, int64_t k, int64_t processors);

} // namespace block_fp8
