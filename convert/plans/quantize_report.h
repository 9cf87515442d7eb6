/* Declares quantization_report.json: the error of every quantized tensor (docs/report.md). */
#pragma once

#include "convert/plan/plan.h"

/* Writes the quantization report (tsr_plan.report): one row per step with statistics. */
void tsr_quantize_report(const tsr_plan *plan, const tsr_quant_stats *rows, const tsr_plan_blocks *blocks,
                         tsr_text *out);

/* Ranking of tensors: SQNR reflects most of the energy; the worst block reflects the effect of an outlier on its
 * neighbours. */
typedef enum tsr_worst { TSR_WORST_SQNR, TSR_WORST_BLOCK } tsr_worst;

/* Finds the steps of this kind with the largest errors, worst first, at most `most`. Steps without error are left out.
 * Returns their number. */
size_t tsr_worst_steps(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_stats_of of, tsr_worst by, size_t *worst,
                       size_t most);
