/* The product of 16-bit activations with int8 or int4 weights in layout T (kernels/cpu/ft_layout.h; sm75 to sm89), for
 * any number of tokens:
 *
 *   D[i,n] = sum over k of A[i,k] * code(k,n) * scale[n], or, with groups or zeros,
 *            sum over k of A[i,k] * W(k,n),  W(k,n) = code(k,n) * scale[k / group, n] + zero[k / group, n]
 *
 * Weights are never stored in 16 bits: they become fragments of mma.m16n8k16 or wgmma in registers. On sm_90, ldmatrix
 * distributes the 16 bytes of a column word by word, which is the order of the fragments. Elsewhere lane c of a column
 * loads its c-th 16 bytes and the matching activations, since the terms of a dot product may have any order that both
 * operands share. docs/kernels/weight_only.md explains the kernels.
 *
 * Kernel error against the exact value over the same operands, |D - exact| <=
 *     (k / 16 + 64) * 2^-22 * sum of |A| * size * |scale|     FP32 sums; no step loses more than 2^-22
 *                                                             (the plain kernel, one by one: k * 2^-24)
 *     + u * sum of |A * W|, with groups or zeros              W rounded once to the type of A before the product
 *     + u * |D|, the rounding to the output                   u = 2^-11 (fp16) or 2^-8 (bf16)
 * size is |code| (with zeros, sum of |A| * |W|). On sm_90 up to 16 tokens without zeros have W not rounded, and with
 * int4 and fp16 size is code + 16, because A * (code + 8) and A * -8 may be added there. Results have the same bits in
 * every run on one kind of device.
 *
 * a [m][lda], d [m][ldd] of 16 bits; w k * n * bits / 8 bytes; scales, and zeros if there are any, [n] or [k /
 * group][n] of the type of a. k and n are multiples of 64, lda and ldd of 8, all pointers 16-byte aligned; group is 0,
 * 32, 64 or 128, and divides k.
 *
 * On sm_90, w, scales and zeros may be read while the previous launch in the stream still runs, if that launch allows
 * an early start of the next one (programmatic dependent launch). Such a launch may write a, but not w, scales and
 * zeros. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tsr_weight_only_kind {
    TSR_WEIGHT_ONLY_AUTO,  /* on sm_90 the kernels for Hopper, chosen by m and zeros; otherwise TSR_WEIGHT_ONLY_MMA */
    TSR_WEIGHT_ONLY_PLAIN, /* the definition: one thread per element, W not rounded */
    TSR_WEIGHT_ONLY_MMA,   /* for GPUs before Hopper; reads the weights once per 16 tokens */
    TSR_WEIGHT_ONLY_TILES, /* only on sm_90: the kernel for more than 16 tokens, which converts weights once per 128
                            * tokens */
} tsr_weight_only_kind;

typedef struct tsr_weight_only_gemm {
    const void *a, *w, *scales, *zeros; /* zeros may be NULL */
    void *d;
    int64_t m, n, k, lda, ldd, group;
    int bits;
    bool bf16; /* else fp16 */
    tsr_weight_only_kind kind;
} tsr_weight_only_gemm;

/* Launches the product. TSR_E_SHAPE: sizes or alignment are not as above. */
tsr_status tsr_cuda_weight_only_gemm(const tsr_weight_only_gemm *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
