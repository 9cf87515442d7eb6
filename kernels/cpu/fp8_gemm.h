/* Declares the block FP8 product D = A * W^T: its definition, and a model of a Hopper tensor core.
 *
 * These kernels are for verifying, not for serving.
 *
 *   D[i,j] = sum over tiles t of 128 along k of (scale_a * scale_w) * sum over the tile of A[i,x] * W[j,x]
 *
 * a [m][k] and w [n][k] are bytes; scale_a is [ceil(k / block_k)][ld_scale_a], tokens contiguous; scale_w is [ceil(n
 * / block_n)][ceil(k / block_k)]; d is [m][ldd] FP32. block_k has to be a multiple of 128, codes must not be NaN, and
 * scales have to be finite. Every variant gives the same bits; all are thread-safe.
 *
 * fp8_gemm: each product is exact in FP32. Within a tile products are added over 16 lanes (x % 16), and the lanes as
 * a tree. The tile's sum, times the FP32 product of the scales, is added in FP32, tiles in order. This is the
 * algorithm of DeepSeek-V3's inference/kernel.py.
 *
 * fp8_gemm_tensor_core: a tile's sum as a tensor core makes it (kernels/cuda/block_fp8_gemm.h derives it). In each
 * step, 32 products and the accumulator are aligned to the largest magnitude among them. Of each, the bits down to
 * 2^13 below that power of two are kept and the others are cut off; what is left is added exactly. The tile's sum
 * then leaves the tensor core ("promotion") and is scaled and added as above.
 *
 * fp8_gemm_unpromoted: the same with one accumulator for all of k, to show what promotion is worth. Each product
 * carries its tile's scales (in FP32), as in a kernel that applies them to its operands. Scaled products below 2^-113
 * count as zero, and one that overflows makes the sum NaN. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { TSR_GEMM_TILE = 128, TSR_GEMM_STEP = 32, TSR_GEMM_KEPT_BITS = 13 };

typedef struct tsr_fp8_gemm_args {
    const uint8_t *a, *w;
    const float *scale_a, *scale_w;
    float *d;
    size_t m, n, k, ld_scale_a, ldd, block_n, block_k;
    /* If above 1, so many consecutive tokens have equal scales. Kernels with CUTLASS's grids use this; the functions
     * here do not. */
    size_t group_m;
} tsr_fp8_gemm_args;

typedef void tsr_fp8_gemm_fn(const tsr_fp8_gemm_args *args);
typedef tsr_fp8_gemm_fn tsr_fp8_gemm_tensor_core_fn;
typedef tsr_fp8_gemm_fn tsr_fp8_gemm_unpromoted_fn;
