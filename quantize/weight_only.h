/* Weight-only int8 and int4: one FP32 scale per output column, symmetric, as the mixed GEMMs of FasterTransformer and
 * TensorRT-LLM read them (symmetric_quantize in cutlass_preprocessors.cc). Where the codes then go:
 * kernels/cpu/interleave.h.
 *
 * With b bits, in FP32, per column:
 *   scale = amax * 2^-(b-1)          amax / 128 or amax / 8, not / 127 or / 7: readers compute code * scale
 *   code  = clamp(round(w / scale), -2^(b-1), 2^(b-1) - 1)    round: to nearest, half away from zero
 * So -amax is exact, and +amax loses one step to the clamp. A file may store the scale in 16 bits; the codes are made
 * with the FP32 one. A column whose scale is 0 has codes 0, as TensorRT-LLM has it since April 2024; before, and in
 * FasterTransformer, such a column's codes come from 0/0. */
#ifndef TSR_QUANTIZE_WEIGHT_ONLY_H
#define TSR_QUANTIZE_WEIGHT_ONLY_H

#include <stddef.h>
#include <stdint.h>

/* Element (k, n) of the K x N matrix is at k * step_k + n * step_n. A PyTorch Linear, [N, K], has step_k = 1. */
typedef struct tsr_weight_only_matrix {
    size_t k, n;
    size_t step_k, step_n;
} tsr_weight_only_matrix;

/* bits: 8 or 4. w: finite. codes: as w, a byte each (int4: -8..7). scales: [n]. Pure but for these; thread-safe. */
void tsr_weight_only_quantize(const tsr_weight_only_matrix *matrix, int bits, const float *w, int8_t *codes,
                              float *scales);

#endif
