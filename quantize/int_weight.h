/* Quantizes rows of a matrix to int8 or int4 codes, with a scale per row or group of columns, and zero points.
 *
 * Symmetric: scale = amax / divisor; asymmetric: scale = (max - min) / (2^bits - 1) with min <= 0 <= max, and
 * zero_point = round(clamp(low - min / scale, low, high)). The scale is rounded to its stored dtype before codes are
 * computed with it. A group of zeros has scale 1 (or 0: zero_scale) and zero point 0. code = round(clamp(x / scale +
 * zero, low, high)); readers compute (code - zero_point) * scale. The divisor depends on the target: 127.5 and 7.5 with
 * ties to even for compressed-tensors (quantization/utils/helpers.py), 128 and 8 with ties away from zero for
 * FasterTransformer (cutlass_preprocessors.cc). docs/numerics.md has every corner case. */
#pragma once

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "quantize/block_cells.h"
#include "quantize/quant_stats.h"
#include "quantize/scales/scale_search.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_int_scheme {
    uint32_t bits;  /* 8 or 4 */
    uint64_t group; /* columns that share a scale; 0: the whole row */
    bool asymmetric;
    float divisor;           /* symmetric: amax / divisor */
    bool away;               /* round ties away from zero instead of to even */
    bool in_bf16;            /* BF16 weights, symmetric: compute in the weights' own dtype, like compressed-tensors */
    bool zero_scale;         /* a group of zeros gets scale 0, like FasterTransformer's own quantizer */
    tsr_dtype scale_dtype;   /* F32, BF16 or F16 */
    tsr_scale_search search; /* MSE: 12 scales that clip increasingly; BEST: int4 with BF16 or F16 scales, no in_bf16 */
} tsr_int_scheme;

/* Some whole rows of a weight. */
typedef struct tsr_int_rows {
    const tsr_tensor *tensor; /* the source, [R, C]: BF16, F16 or F32 */
    uint64_t row, rows;
    const void *x;           /* [rows, C], dense */
    int8_t *codes;           /* output [rows, C]: two's complement */
    float *scales;           /* output [rows, groups]: values of scale_dtype */
    int8_t *zero_points;     /* output [rows, groups]; NULL if symmetric */
    const float *importance; /* [C]: weights of the columns in the squared error; NULL: all are 1 */
    void *scratch;           /* tsr_int_scratch bytes */
    tsr_block_notes *notes;  /* NULL: no statistics of single groups */
    uint64_t rows_before;    /* rows of the block statistics before this tensor, if it is a part of a larger one */
} tsr_int_rows;

/* Returns the groups of a row of `cols` columns. */
uint64_t tsr_int_groups(const tsr_int_scheme *scheme, uint64_t cols);

size_t tsr_int_scratch(const tsr_int_scheme *scheme, uint64_t cols);

/* Quantizes the rows and adds their errors to *stats, without the statistics of scales. With stats NULL it does not
 * measure, which takes less than half the time. Thread-safe. TSR_E_VALUE: NaN or Inf, with its position. */
tsr_status tsr_int_quantize(const tsr_int_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_int_rows *rows,
                            tsr_quant_stats *stats, tsr_err *err);

/* Adds to *stats the errors of given codes, scales and zero points against the rows' x, which is finite; otherwise like
 * tsr_int_quantize. */
void tsr_int_measure(const tsr_int_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_int_rows *rows,
                     tsr_quant_stats *stats);
