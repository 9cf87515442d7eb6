/* MXFP4, MXFP8 and NVFP4 weights: rows of a matrix to codes with a scale for each group of columns.
 *
 * For each group, amax over its columns, then the scale from amax, then code = element(clamp(x / t)) with the t that
 * readers will find (quantize/mx_format.h). How an E8M0 scale follows from amax is a rule of its own; each producer has a
 * default, and with it Tessera writes the bytes of that producer. docs/numerics.md has the formulas and every corner
 * case. */
#ifndef TSR_QUANTIZE_MX_WEIGHT_H
#define TSR_QUANTIZE_MX_WEIGHT_H

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "quantize/block_cells.h"
#include "quantize/mx_format.h"
#include "quantize/quant_stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The exponent of an E8M0 scale, where 2^emax is the largest element's power of two (emax = 2 or 8). */
typedef enum tsr_mx_rule {
    TSR_MX_FLOOR, /* floor(log2 amax) - emax: the rule of OCP MX 1.0; clips */
    TSR_MX_EVEN,  /* the same, one more from a mantissa of 1.75 on (compressed-tensors, llm-compressor); clips less */
    TSR_MX_RCEIL, /* ceil(log2(amax / 6 or 448)): the smallest that does not clip (ModelOpt, DeepSeek's ue8m0) */
    TSR_MX_CEIL,  /* ceil(log2 amax) - emax: never clips, often one binade coarser than need be */
} tsr_mx_rule;

typedef enum tsr_mx_kind { TSR_MXFP4, TSR_MXFP8, TSR_NVFP4 } tsr_mx_kind;

typedef struct tsr_mx_scheme {
    tsr_mx_element element;
    uint32_t group; /* columns that share a scale: 32 or 16 */
    tsr_mx_scale scale;
    tsr_mx_rule rule; /* E8M0 only */
    bool ties_down;   /* E2M1 under E8M0 scales: ties go toward zero, as in ModelOpt, else to even */
    bool search;      /* take the scale of least squared error out of the neighbours: slower, never worse */
} tsr_mx_scheme;

/* Returns the arithmetic of ModelOpt, or that of compressed-tensors. */
tsr_mx_scheme tsr_mx_scheme_of(tsr_mx_kind kind, bool modelopt);

/* "floor", "even", "rceil", "ceil". */
const char *tsr_mx_rule_name(tsr_mx_rule rule);

/* NVFP4's global scale for a tensor, or for several that loaders join (q, k, v; gate, up; all of one expert set, if
 * need be), from amax of each; `source` is the dtype of the weights. All members are to be quantized with it.
 *   compressed-tensors: bf16(bf16(1 / amax) * 2688) for BF16 weights, in FP32 for others: a divisor
 *   ModelOpt:           amax / 2688: a factor
 * of the largest amax, and 1 where that is 0 or too small for a finite divisor. (llm-compressor takes the smallest divisor,
 * which is the same unless a member is all but zero: such a one does not count here.) */
float tsr_nvfp4_global(const tsr_mx_scheme *scheme, tsr_dtype source, const float *amax, size_t members);

/* Some whole rows of a weight. */
typedef struct tsr_mx_rows {
    const tsr_tensor *tensor; /* the source: BF16, F16 or F32, [R, C] or [M, R, C] */
    uint64_t row, rows;       /* counted over all matrices */
    const void *x;            /* [rows, C], dense */
    float global;             /* of E4M3 scales: tsr_nvfp4_global's; finite, positive */
    uint8_t *codes;           /* [rows, tsr_mx_code_bytes(C)], out */
    uint8_t *scales;          /* [rows, C / group], out */
    float *scale_values; /* [rows, C / group], out: t, but 1 for a group of zeros (tsr_quant_stats_scales); or NULL */
    void *scratch;       /* tsr_mx_scratch bytes */
    tsr_block_notes *notes; /* NULL: figures of single groups are not wanted */
} tsr_mx_rows;

size_t tsr_mx_scratch(const tsr_mx_scheme *scheme, uint64_t cols);

/* Raises *amax to the largest |x| of the rows; their codes, scales and global are not looked at. Thread-safe.
 * TSR_E_VALUE, with coordinates, when it meets NaN or Inf. */
tsr_status tsr_mx_amax(const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows, float *amax,
                       tsr_err *err) TSR_WARN_UNUSED;

/* Quantizes the rows and adds their errors to *stats, without the scale figures. With stats NULL it does not measure,
 * which takes less than half the time. Thread-safe. TSR_E_VALUE, with coordinates: NaN or Inf; a weight so large that
 * readers would find infinity in its code. TSR_E_SHAPE: rows are not whole groups. */
tsr_status tsr_mx_quantize(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows,
                           tsr_quant_stats *stats, tsr_err *err) TSR_WARN_UNUSED;

/* Adds to *stats the errors of given codes and scales against the rows' x; otherwise like tsr_mx_quantize. */
tsr_status tsr_mx_measure(const tsr_mx_scheme *scheme, const tsr_cpu_kernels *kernels, const tsr_mx_rows *rows,
                          tsr_quant_stats *stats, tsr_err *err) TSR_WARN_UNUSED;

#endif
