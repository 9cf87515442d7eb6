/* Quantizes rows of a matrix to MXFP4, MXFP8 or NVFP4: codes, and a scale per group of columns.
 *
 * For each group: amax over its columns, the scale from amax, then code = element(clamp(x / t)) with t as readers
 * compute it (quantize/scales/mx_format.h). A rule (tsr_mx_rule) derives an E8M0 scale from amax. Each producer has a
 * default rule, with which Tessera writes the same bytes. docs/numerics.md has the formulas and every corner case. */
#pragma once

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "quantize/block_cells.h"
#include "quantize/quant_stats.h"
#include "quantize/scales/mx_format.h"
#include "quantize/scales/scale_search.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rule for the exponent of an E8M0 scale. 2^emax is the power of two of the largest element (emax = 2 or 8). */
typedef enum tsr_mx_rule {
    TSR_MX_FLOOR, /* floor(log2 amax) - emax: the rule of OCP MX 1.0; clips */
    TSR_MX_EVEN,  /* the same, plus one from a mantissa of 1.75 on (compressed-tensors, llm-compressor); clips less */
    TSR_MX_RCEIL, /* ceil(log2(amax / 6 or 448)): the smallest that does not clip (ModelOpt, DeepSeek's ue8m0) */
    TSR_MX_CEIL,  /* ceil(log2 amax) - emax: never clips, but is often one binade too coarse */
} tsr_mx_rule;

typedef enum tsr_mx_kind { TSR_MXFP4, TSR_MXFP8, TSR_NVFP4 } tsr_mx_kind;

typedef struct tsr_mx_scheme {
    tsr_mx_element element;
    uint32_t group; /* columns that share a scale: 32 or 16 */
    tsr_mx_scale scale;
    tsr_mx_rule rule; /* E8M0 only */
    bool ties_down;   /* E2M1 with E8M0 scales: ties toward zero, as in ModelOpt; otherwise to even */
    tsr_scale_search search;
} tsr_mx_scheme;

/* Returns the arithmetic of ModelOpt, or that of compressed-tensors. */
tsr_mx_scheme tsr_mx_scheme_of(tsr_mx_kind kind, bool modelopt);

/* Returns the name: "floor", "even", "rceil", "ceil". */
const char *tsr_mx_rule_name(tsr_mx_rule rule);

/* Computes NVFP4's global scale for a tensor, or for several that loaders fuse (q, k, v; gate, up; if necessary all of
 * one expert set), from amax of each. `source` is the dtype of the weights. All members must be quantized with it.
 *   compressed-tensors: bf16(bf16(1 / amax) * 2688) for BF16 weights, in FP32 for others: a divisor
 *   ModelOpt:           amax / 2688: a factor
 * With TSR_SCALES_FOUR_SIX 1536 takes the place of 2688.
 * amax is the largest one; the result is 1 if it is 0 or too small for a finite divisor. (llm-compressor uses the
 * smallest divisor, which is the same unless a member is nearly zero; such a member is ignored here.) */
float tsr_nvfp4_global(const tsr_mx_scheme *scheme, tsr_dtype source, const float *amax, size_t members);

/* Some whole rows of a weight. */
typedef struct tsr_mx_rows {
    const tsr_tensor *tensor; /* the source: BF16, F16 or F32, [R, C] or [M, R, C] */
    uint64_t row, rows;       /* numbered through all matrices */
    const void *x;            /* [rows, C], dense */
    float global;             /* E4M3 scales: the result of tsr_nvfp4_global; finite, positive */
    float amax;               /* FOUR_SIX of ModelOpt: the largest amax that `global` was computed from */
    uint8_t *codes;           /* [rows, tsr_mx_code_bytes(C)], out */
    uint8_t *scales;          /* output [rows, C / group] */
    float *scale_values; /* output [rows, C / group]: t, but 1 for a group of zeros (tsr_quant_stats_scales); or NULL */
    const float *importance; /* [C]: weights of the columns in the squared error; NULL: all are 1 */
    void *scratch;           /* tsr_mx_scratch bytes */
    tsr_block_notes *notes;  /* NULL: no statistics of single groups */
} tsr_mx_rows;

size_t tsr_mx_scratch(const tsr_mx_scheme *scheme, uint64_t cols);

/* Raises *amax to the largest |x| of the rows. Codes, scales and global are unused. Thread-safe. TSR_E_VALUE: NaN or
 * Inf, with its position. */
tsr_status tsr_mx_amax(const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows, float *amax, tsr_err *err);

/* Quantizes the rows and adds their errors to *stats, without the statistics of scales. With stats NULL it does not
 * measure, which takes less than half the time. Thread-safe. TSR_E_VALUE, with its position: NaN or Inf, or a weight so
 * large that readers would decode its code to infinity. TSR_E_SHAPE: rows are not whole groups. */
tsr_status tsr_mx_quantize(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows,
                           tsr_quant_stats *stats, tsr_err *err);

/* Adds to *stats the errors of given codes and scales against the rows' x; otherwise like tsr_mx_quantize. */
tsr_status tsr_mx_measure(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows,
                          tsr_quant_stats *stats, tsr_err *err);
