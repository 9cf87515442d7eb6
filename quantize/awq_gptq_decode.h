/* Decodes AWQ and GPTQ: y = (code - zero_point) * scale, one FP32 product, rounded once to the target.
 *
 * Both store a matrix by its inputs, so decoding transposes it. A span is some outputs with all their inputs. AutoAWQ's
 * and GPTQ's own kernels multiply in F16, which rounds once more; in FP32 the product of 5 and 11 bits is exact. */
#pragma once

#include "common/status.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

/* A span begins at a multiple of this many rows. */
enum { TSR_GPTQ_TILE = 64 };

/* Rows [row, row + rows) of a weight, all columns. Buffers contain only these rows, without gaps. */
typedef struct tsr_gptq_span {
    const tsr_weight *weight;
    uint64_t row, rows;
    const void *codes;       /* AWQ [C, ceil(rows / 8)], GPTQ [words of C, rows] */
    const void *scales;      /* [groups, rows] */
    const void *zero_points; /* [groups, words of rows] */
    const void *group_index; /* [C]; NULL unless weight->reordered */
} tsr_gptq_span;

/* Returns the I32 words of one group's zero points for this many rows. */
uint64_t tsr_gptq_zero_words(const tsr_weight *weight, uint64_t rows);

/* Returns the bytes of scratch that decoding needs. */
size_t tsr_gptq_decode_scratch(const tsr_weight *weight);

/* Decodes to `dtype` (BF16, F16 or F32), without gaps. Thread-safe.
 * TSR_E_VALUE, with its position: a scale is NaN or infinite, or a value exceeds the target's range. */
tsr_status tsr_gptq_decode(const tsr_cpu_kernels *kernels, const tsr_gptq_span *span, tsr_dtype dtype, void *out,
                           void *scratch, tsr_err *err);
