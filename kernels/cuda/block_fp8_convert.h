/* Converts BF16 activations to e4m3 with a scale per token and 128 channels, and block-FP8 weights to BF16.
 *
 * Quantizing: amax over the group's real elements, scale = amax / 448 (1 when amax is 0), code = e4m3 of the IEEE FP32
 * quotient x / scale, round to nearest even, clamped to +-448. Inf and NaN give undefined codes and scales.
 * Dequantizing: bf16(float(code) * scale[row/128, column/128]). */
#pragma once

#include <stdint.h>

#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x [m][ldx] BF16 -> codes [m][ldc], scales [ceil(k/128)][ld_scale], tokens contiguous. x and codes on 16 bytes, ldx
 * and ldc multiples of 16, ld_scale >= m; columns beyond k are not written. TSR_E_SHAPE otherwise. */
tsr_status tsr_cuda_quantize_tokens(const uint16_t *x, int64_t m, int64_t k, int64_t ldx, uint8_t *codes, int64_t ldc,
                                    float *scales, int64_t ld_scale, tsr_stream stream, tsr_err *err);

/* codes [n][ldc], scales [ceil(n/128)][ceil(k/128)] -> w [n][ldw] BF16. codes and w on 16 bytes, ldc and ldw multiples
 * of 16; columns beyond k are not written. TSR_E_SHAPE otherwise. */
tsr_status tsr_cuda_dequantize_blocks(const uint8_t *codes, const float *scales, int64_t n, int64_t k, int64_t ldc,
                                      uint16_t *w, int64_t ldw, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
