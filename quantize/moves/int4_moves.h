/* Integers of AWQ (4 bits) and GPTQ (4 or 8) to compressed-tensors' pack-quantized form, and int4 made again from its own BF16
 * values: codes are moved, never made anew.
 *
 * pack-quantized: words of 32 bits, the first code in the lowest bits. Codes [R, C / 8] are packed along the inputs,
 * zero points [ceil(R / 8), C / group] along the outputs; both with 8 added, so that a reader finds (code - zero_point)
 * * scale with either's stored nibbles. (R outputs, C inputs.)
 *
 *   AWQ     qweight [C, R / 8], qzeros [C / group, R / 8]: along the outputs, nibble k of a word is output 8j +
 *           (0, 2, 4, 6, 1, 3, 5, 7)[k]
 *   GPTQ    qweight [C / 8, R], packed along the inputs; qzeros [C / group, R / 8], with 1 subtracted (v1) or not (v2)
 *   both    scales [C / group, R]
 *
 * (AutoAWQ utils/packing_utils.py, AutoGPTQ qlinear_cuda_old.py; compressors/pack_quantized/helpers.py) */
#ifndef TSR_QUANTIZE_MOVES_INT4_MOVES_H
#define TSR_QUANTIZE_MOVES_INT4_MOVES_H

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix of R outputs and C inputs, both multiples of 8, in groups of `group` inputs, in codes of 4 or 8 bits. */
typedef struct tsr_int4_shape {
    uint64_t outputs, inputs, group;
    unsigned bits;
} tsr_int4_shape;

/* Codes. `words` is [R, C / 8], of 8 bits [R, C / 4]. */
void tsr_awq_codes(const tsr_int4_shape *shape, const uint32_t *qweight, uint32_t *words);
void tsr_gptq_codes(const tsr_int4_shape *shape, const uint32_t *qweight, uint32_t *words);

/* Zero points. `words` is [R / 8, C / group], of 8 bits [R / 4, C / group]; *symmetric says whether all are 8 (128), so
 * that they can be left out. GPTQ adds `less` (1 in v1, 0 in v2) to what is stored. TSR_E_VALUE, naming `tensor`, of which
 * these are outputs from `first` on: 15 + 1 (255 + 1), which has no code. */
void tsr_awq_zero_points(const tsr_int4_shape *shape, const uint32_t *qzeros, uint32_t *words, bool *symmetric);
tsr_status tsr_gptq_zero_points(const tsr_int4_shape *shape, const tsr_tensor *tensor, uint64_t first,
                                const uint32_t *qzeros, unsigned less, uint32_t *words, bool *symmetric,
                                tsr_err *err) TSR_WARN_UNUSED;

/* Scales of 16 bits, [C / group, R] to [R, C / group]. */
void tsr_int4_scales(const tsr_int4_shape *shape, const uint16_t *scales, uint16_t *out);

/* Rows of BF16 values that were (code - zero point) * scale, rounded to BF16, to those very codes, with the scales kept. */
typedef struct tsr_int4_restoring {
    const tsr_tensor *tensor;   /* the values' tensor, for messages */
    uint64_t row, rows, cols;   /* row is for messages only */
    uint64_t group;             /* columns that share a scale */
    const uint16_t *values;     /* [rows, cols] BF16 */
    const float *scales;        /* [rows, ceil(cols / group)] */
    const uint8_t *zero_points; /* of the same shape, as they are stored: 0 to 15; NULL: 8 */
    const uint32_t *order;      /* [cols]: the group of each; NULL: col / group */
    uint32_t *words;            /* [rows, ceil(cols / 8)], out */
} tsr_int4_restoring;

/* TSR_E_VALUE, with the place: a value is not what any code gives with its scale. */
tsr_status tsr_int4_restore_codes(const tsr_int4_restoring *rows, tsr_err *err) TSR_WARN_UNUSED;

#endif
