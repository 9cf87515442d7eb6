/* Declares the quantization of BF16 activations in small groups, as in servers: one scale per group of a token.
 *
 *   MXFP4, MXFP8   the least power of two under which the group's largest value is not clipped (the rule rceil)
 *   NVFP4          e4m3 of amax / 6 over the layer's global scale, in the arithmetic of scale_nvfp4 (mx_codes.h)
 *
 * Codes are rounded to nearest, ties to even, with the scale as readers decode it. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/mx_gemm.h"

/* Quantizes x [m][k], which is finite, with k a multiple of the group. to->form is not BF16, and to->global is set
 * for NVFP4. codes and scales are the memory of to->codes and to->scales. Allocates nothing, cannot fail, is
 * thread-safe. */
void tsr_quantize_tokens_mx(const tsr_cpu_kernels *kernels, const uint16_t *x, size_t m, size_t k,
                            const tsr_mx_matrix *to, uint8_t *codes, uint8_t *scales);
