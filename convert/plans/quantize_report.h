/* quantization_report.json: what every quantized tensor lost (docs/report.md). */
#ifndef TSR_CONVERT_PLANS_QUANTIZE_REPORT_H
#define TSR_CONVERT_PLANS_QUANTIZE_REPORT_H

#include "convert/engine/plan.h"

/* A tsr_plan.report: one row for each step whose operation has statistics. */
void tsr_quantize_report(const tsr_plan *plan, const tsr_quant_stats *rows, const tsr_plan_blocks *blocks,
                         tsr_text *out);

/* What tensors are ranked by: SQNR sees what most of the energy lost; the worst block sees what an outlier did to its
 * neighbours. */
typedef enum tsr_worst { TSR_WORST_SQNR, TSR_WORST_BLOCK } tsr_worst;

/* The steps with statistics of this kind that lost most, worst first, `most` of them at most; those that lost nothing,
 * all zeros among them, are left out. Returns how many. */
size_t tsr_worst_steps(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_stats_of of, tsr_worst by, size_t *worst,
                       size_t most);

#endif
