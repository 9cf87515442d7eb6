/* Converts codes in small groups to BF16, in their order: MXFP4, MXFP8 and NVFP4 of both dialects.
 *
 * The bits are those of kernels/cpu/mx_values.h: the FP32 product of code and scale, rounded once more. A NaN code of
 * e4m3 gives 0x7FC0 with its sign; scales must not be NaN or negative. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/mx_gemm.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_mx_dequant {
    tsr_mx_matrix matrix; /* in device memory, codes 16-byte aligned; not BF16 */
    uint16_t *out;        /* [rows][k], 16-byte aligned */
    int64_t rows, k;      /* k is a multiple of the group */
    bool plain;           /* one thread per value; otherwise 16 bytes of results at a time */
} tsr_mx_dequant;

/* Launches the conversion. TSR_E_SHAPE: form, sizes or alignment are not as above. */
tsr_status tsr_cuda_mx_dequant(const tsr_mx_dequant *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
