/* Decodes integers: y = (code - zero_point) * scale, one FP32 product, rounded once to the target.
 *
 * Equal to compressed-tensors' dequantize (quantization/lifecycle/forward_helpers.py). With BF16 scales its arithmetic
 * in BF16 gives the same bits, since differences of codes below 256 are exact there. */
#pragma once

#include "common/status.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

/* Whole rows of a weight of integers, as read from the file. */
typedef struct tsr_int_span {
    const tsr_weight *weight;
    uint64_t row, rows;      /* with packed zero points, row is a multiple of 8 */
    const void *codes;       /* these rows of weight->data */
    const void *scales;      /* these rows of weight->scale, or all of it if it has only one */
    const void *zero_points; /* from `row` on; if packed, from the word that contains `row`; NULL if there are none */
    const void *group_index; /* [C]; NULL unless weight->reordered */
} tsr_int_span;

/* Returns the bytes of scratch that decoding needs. */
size_t tsr_int_decode_scratch(const tsr_weight *weight);

/* Decodes to `dtype` (BF16, F16 or F32), without gaps. Thread-safe.
 * TSR_E_VALUE, with its position: a scale is NaN, infinite or negative, or a value exceeds the target's range. */
tsr_status tsr_int_decode(const tsr_cpu_kernels *kernels, const tsr_int_span *span, tsr_dtype dtype, void *out,
                          void *scratch, tsr_err *err);

/* Unpacks the same rows to two's complement codes, one byte each: [rows, cols]. Cannot fail. */
void tsr_int_unpack(const tsr_cpu_kernels *kernels, const tsr_int_span *span, int8_t *codes);

/* Decodes a row of packed int4, (code - zero) * scale by groups. The last group may have fewer columns than `group`, an
 * even number. `zeros` is NULL if all are 0. No value may exceed the range of `dtype`. */
void tsr_int4_values(const tsr_cpu_kernels *kernels, const uint8_t *packed, uint64_t cols, uint64_t group,
                     const float *scales, const float *zeros, tsr_dtype dtype, void *out);

/* Inverse of tsr_int_unpack: packs n codes of `bits` bits (8 or 4; n * bits must be whole bytes), with 2^(bits-1)
 * added, the first in the lowest bits. */
void tsr_int_pack(const tsr_cpu_kernels *kernels, unsigned bits, const int8_t *codes, uint64_t n, uint8_t *words);
