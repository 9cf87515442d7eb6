/* AWQ and GPTQ back to floating point: y = (code - zero_point) * scale, one FP32 product, one rounding to the target.
 *
 * Both store a matrix by its inputs, so that decoding turns it: a span is some outputs with all their inputs. AutoAWQ and
 * GPTQ's own kernels multiply in F16, which rounds once more; in FP32 the product of 5 and 11 bits is exact. */
#ifndef TSR_QUANTIZE_AWQ_GPTQ_DECODE_H
#define TSR_QUANTIZE_AWQ_GPTQ_DECODE_H

#include "common/status.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

/* A span begins at a multiple of so many rows. */
enum { TSR_GPTQ_TILE = 64 };

/* Rows [row, row + rows) of a weight, all columns. What is read is cut to these rows and has no gaps. */
typedef struct tsr_gptq_span {
    const tsr_weight *weight;
    uint64_t row, rows;
    const void *codes;       /* AWQ [C, ceil(rows / 8)], GPTQ [words of C, rows] */
    const void *scales;      /* [groups, rows] */
    const void *zero_points; /* [groups, words of rows] */
    const void *group_index; /* [C]; NULL unless weight->reordered */
} tsr_gptq_span;

/* I32 words of zero points, of one group, for so many rows. */
uint64_t tsr_gptq_zero_words(const tsr_weight *weight, uint64_t rows);

/* Bytes of scratch that decoding needs. */
size_t tsr_gptq_decode_scratch(const tsr_weight *weight);

/* Decodes to `dtype` (BF16, F16 or F32), without gaps. Thread-safe.
 * TSR_E_VALUE, with coordinates: a scale is NaN or infinite, a value is beyond the target's range. */
tsr_status tsr_gptq_decode(const tsr_cpu_kernels *kernels, const tsr_gptq_span *span, tsr_dtype dtype, void *out,
                           void *scratch, tsr_err *err) TSR_WARN_UNUSED;

#endif
