/* The block-FP8 product on the CPU, D = A * W^T: the plain definition, and a model of what a Hopper tensor core makes
 * of it. For verifying, not for serving.
 *
 *   D[i,j] = sum over tiles t of 128 along k of (scale_a * scale_w) * sum over the tile of A[i,x] * W[j,x]
 *
 * a [m][k], w [n][k] bytes; scale_a [ceil(k / block_k)][ld_scale_a], tokens contiguous; scale_w [ceil(n / block_n)]
 * [ceil(k / block_k)]; d [m][ldd] FP32. block_k is a multiple of 128. No code is NaN, scales are finite. Every variant
 * gives the same bits; all are thread-safe.
 *
 * fp8_gemm: each product exact in FP32, added over 16 lanes (x % 16), lanes added as a tree; the tile's sum times the
 * FP32 product of the scales, added in FP32, tiles in order. The algorithm of DeepSeek-V3's inference/kernel.py.
 *
 * fp8_gemm_tensor_core: the tile's sum as the tensor core has it (kernels/cuda/block_fp8_gemm.h derives it): per step
 * of 32 products, these and the accumulator are aligned to the largest magnitude among them; of each the bits from 2^13
 * below that power of two on are kept, the others cut off; what is left is added exactly. The tile's sum leaves the
 * tensor core ("promotion") as above.
 *
 * fp8_gemm_unpromoted: the same without promotion, to show what that is worth: one accumulator for all of k. Each
 * product carries its tile's scales (in FP32), as in a kernel that applies them to its operands.
 * Scaled products below 2^-113 count as zero, one that overflows makes the sum NaN. */
#ifndef TSR_KERNELS_CPU_FP8_GEMM_H
#define TSR_KERNELS_CPU_FP8_GEMM_H

#include <stddef.h>
#include <stdint.h>

enum { TSR_GEMM_TILE = 128, TSR_GEMM_STEP = 32, TSR_GEMM_KEPT_BITS = 13 };

typedef struct tsr_fp8_gemm_args {
    const uint8_t *a, *w;
    const float *scale_a, *scale_w;
    float *d;
    size_t m, n, k, ld_scale_a, ldd, block_n, block_k;
} tsr_fp8_gemm_args;

typedef void tsr_fp8_gemm_fn(const tsr_fp8_gemm_args *args);
typedef tsr_fp8_gemm_fn tsr_fp8_gemm_tensor_core_fn;
typedef tsr_fp8_gemm_fn tsr_fp8_gemm_unpromoted_fn;

#endif
