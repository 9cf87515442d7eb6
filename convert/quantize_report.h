/* quantization_report.json: what every quantized tensor lost (docs/report.md). */
#ifndef TSR_CONVERT_QUANTIZE_REPORT_H
#define TSR_CONVERT_QUANTIZE_REPORT_H

#include "convert/plan.h"

/* A tsr_plan.report: one row for each step whose operation has statistics. */
void tsr_quantize_report(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *out);

#endif
