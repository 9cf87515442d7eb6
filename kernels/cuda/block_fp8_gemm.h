/* Block-FP8 matrix product: D[m,n] = A[m,k] * W[n,k]^T, both operands e4m3 (fn), FP32 scales.
 *
 *   D[i,j] = sum over tiles t of 128 along k of
 *                scale_a[t,i] * scale_w[j/128,t] * (sum over the tile of A[i,x] * W[j,x])
 *
 * This is the algorithm of DeepSeek-V3's inference/kernel.py and of DeepGEMM: each tile's sum leaves the tensor cores,
 * is scaled, and is added in FP32. docs/kernels/block_fp8_gemm.md explains the kernels.
 *
 * Layouts: a [m][lda], w [n][ldw] bytes, k contiguous; scale_a [ceil(k/128)][ld_scale_a], tokens contiguous;
 * scale_w [ceil(n/128)][ceil(k/128)], as the checkpoint stores it; d [m][ldd] elements. Any m, n, k >= 0; leading
 * dimensions are in elements. d must not overlap an operand.
 *
 * The kernels for Hopper need sm_90, a and w 16-byte aligned with lda and ldw multiples of 16, scale_a 16-byte aligned
 * with ld_scale_a a multiple of 4. Otherwise TSR_GEMM_AUTO selects TSR_GEMM_MMA, which needs sm_89 or later and the
 * same alignment of a and w, or else the plain kernel. No workspace. Results have the same bits in every run on one
 * kind of device. The kernels for Hopper are launched as programmatic dependents: they initialize while the previous
 * kernel in the stream ends, and access global memory only after it has ended.
 *
 * Kernel error against the exact value over the same operands, |D - exact| <=
 *     sum over tiles |scale_a * scale_w| * (sum over the tile's 4 steps of 32: 33 * 2^-13 * 1.01 * max(|acc|, max |p|))
 *     + 3 * (tiles + 2) * 2^-24 * sum of |scale_a * scale_w * A * W|,  then the rounding to the output type
 * where acc is the accumulator before the step and p are its 32 products. Derivation: a Hopper tensor core aligns the
 * accumulator and the 32 products of one step to the largest of them and keeps at least 13 bits below it, so each of
 * the 33 loses less than 2^-13 of the largest; 1.01 covers the previous error of the accumulator. The second term
 * bounds the FP32 promotion. The plain kernel, which uses only FP32, is far inside the bound. */
#pragma once

#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tsr_gemm_out { TSR_GEMM_BF16, TSR_GEMM_F16, TSR_GEMM_F32 } tsr_gemm_out;

typedef enum tsr_gemm_kind {
    TSR_GEMM_AUTO,
    TSR_GEMM_PLAIN,  /* the definition: one thread per element */
    TSR_GEMM_FEW,    /* W * A^T, of the grouped product only (block_fp8_grouped.h) */
    TSR_GEMM_WIDE,   /* persistent, tiles of `tokens` by `rows` (128 by 128, 128 by 192, 256 by 128), by single CTAs or,
                      * with `cluster` 2, in pairs that share W or A by multicast */
    TSR_GEMM_NARROW, /* A * W^T in tiles of `tokens` by `rows` (64 by 64, 64 by 128, 128 by 128), k split over a cluster
                      * of `cluster` (1 to 8) */
    TSR_GEMM_MMA,    /* A * W^T in tiles of `tokens` by `rows` (128 by 128, 32 by 64; 0 by 0: chosen by m), for any card
                      * from sm_89 on; `cluster` is ignored */
} tsr_gemm_kind;

typedef struct tsr_gemm_config {
    tsr_gemm_kind kind;
    int tokens, rows; /* rows of A and of W in a tile */
    int cluster;
} tsr_gemm_config;

typedef struct tsr_block_fp8_gemm {
    const uint8_t *a, *w;
    const float *scale_a, *scale_w;
    void *d;
    int64_t m, n, k, lda, ldw, ldd, ld_scale_a;
    int64_t
        group_m; /* tokens that share their scales: 0 or 1; or 64 or 128 as in CUTLASS's grids, where a row of scale_a
                  * has ceil(m / group_m) entries. The kernels for Hopper support only 0 and 1 */
    tsr_gemm_out out;
    tsr_gemm_config config; /* all zeros: chosen by tsr_cuda_block_fp8_gemm_choose */
} tsr_block_fp8_gemm;

/* Returns the fastest kernel and tile for this problem on this device, by a model of an H200. Pure. */
tsr_gemm_config tsr_cuda_block_fp8_gemm_choose(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device);

/* Launches the product. TSR_E_UNSUPPORTED: the requested config does not fit the arguments or the device. */
tsr_status tsr_cuda_block_fp8_gemm(const tsr_block_fp8_gemm *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
