/* Converts integers of AWQ (4 bits) and GPTQ (4 or 8) to compressed-tensors' pack-quantized form, and restores int4
 * from its own BF16 values. Codes are moved, never quantized again.
 *
 * pack-quantized: words of 32 bits, the first code in the lowest bits. Codes [R, C / 8] are packed along the inputs,
 * zero points [ceil(R / 8), C / group] along the outputs; both with 8 added, so that readers compute (code -
 * zero_point) * scale from the stored nibbles. (R outputs, C inputs.)
 *
 *   AWQ     qweight [C, R / 8], qzeros [C / group, R / 8]: along the outputs, nibble k of a word is output 8j +
 *           (0, 2, 4, 6, 1, 3, 5, 7)[k]
 *   GPTQ    qweight [C / 8, R], packed along the inputs; qzeros [C / group, R / 8], with 1 subtracted (v1) or not (v2)
 *   both    scales [C / group, R]
 *
 * (AutoAWQ utils/packing_utils.py, AutoGPTQ qlinear_cuda_old.py; compressors/pack_quantized/helpers.py) */
#pragma once

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix of R outputs and C inputs, both multiples of 8, in groups of `group` inputs, with 4-bit or 8-bit codes. */
typedef struct tsr_int4_shape {
    uint64_t outputs, inputs, group;
    unsigned bits;
} tsr_int4_shape;

/* Converts codes. `words` is [R, C / 8], for 8 bits [R, C / 4]. */
void tsr_awq_codes(const tsr_int4_shape *shape, const uint32_t *qweight, uint32_t *words);
void tsr_gptq_codes(const tsr_int4_shape *shape, const uint32_t *qweight, uint32_t *words);

/* Converts zero points. `words` is [R / 8, C / group], for 8 bits [R / 4, C / group]. *symmetric is set if all are 8
 * (128), so that they can be left out. GPTQ adds `less` (1 in v1, 0 in v2) to the stored value. TSR_E_VALUE: 15 + 1
 * (255 + 1), which has no code; the message names `tensor`, whose outputs begin at `first`. */
void tsr_awq_zero_points(const tsr_int4_shape *shape, const uint32_t *qzeros, uint32_t *words, bool *symmetric);
tsr_status tsr_gptq_zero_points(const tsr_int4_shape *shape, const tsr_tensor *tensor, uint64_t first,
                                const uint32_t *qzeros, unsigned less, uint32_t *words, bool *symmetric, tsr_err *err);

/* Transposes 16-bit scales, [C / group, R] to [R, C / group]. */
void tsr_int4_scales(const tsr_int4_shape *shape, const uint16_t *scales, uint16_t *out);

/* Restores the codes of rows of BF16 values that were decoded as (code - zero point) * scale and rounded to BF16. The
 * scales are kept. */
typedef struct tsr_int4_restoring {
    const tsr_tensor *tensor;   /* the values' tensor, for messages */
    uint64_t row, rows, cols;   /* row is only for messages */
    uint64_t group;             /* columns that share a scale */
    const uint16_t *values;     /* [rows, cols] BF16 */
    const float *scales;        /* [rows, ceil(cols / group)] */
    const uint8_t *zero_points; /* same shape, as stored: 0 to 15; NULL: 8 */
    const uint32_t *order;      /* [cols]: the group of each; NULL: col / group */
    uint32_t *words;            /* output [rows, ceil(cols / 8)] */
} tsr_int4_restoring;

/* TSR_E_VALUE, with its position: no code decodes to a value with its scale. */
tsr_status tsr_int4_restore_codes(const tsr_int4_restoring *rows, tsr_err *err);
