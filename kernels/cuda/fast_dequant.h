/* Converts weights in the interleaved layouts of kernels/cpu/ft_layout.h to fp16 or bf16, word by word. A mixed GEMM
 * does this in its registers; here it is a separate kernel, so that it can be checked code by code and timed.
 *
 * Values are in the order of the layout: out[p] is the value of the code at position p. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_fast_dequant {
    const void *words; /* biased codes of any layout except P and R, k * n * bits / 8 bytes, 16-byte aligned */
    void *out;         /* k * n values of 16 bits, 16-byte aligned */
    int64_t k, n;      /* k * n * bits is a multiple of 128 */
    int bits;          /* 8 or 4 */
    bool bf16;         /* else fp16 */
    bool native;       /* use the conversion instruction; otherwise PRMT, LOP3 and packed arithmetic */
    /* Only with layout T (k and n multiples of 64): NULL, or one scale per column, [n], or per group, [k / group][n],
     * of the type of `out`. Values are then rounded once more, to value * scale. */
    const void *scales;
    int64_t group; /* 0: one scale per column; otherwise a multiple of 32 that divides k */
} tsr_fast_dequant;

/* Launches the conversion. TSR_E_SHAPE: sizes or alignment are not as above. */
tsr_status tsr_cuda_fast_dequant(const tsr_fast_dequant *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
