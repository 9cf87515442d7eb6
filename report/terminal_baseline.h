/* What got worse against an earlier result, on a terminal. */
#ifndef TSR_REPORT_TERMINAL_BASELINE_H
#define TSR_REPORT_TERMINAL_BASELINE_H

#include "report/baseline.h"
#include "report/canvas.h"

void tsr_draw_baseline(tsr_text *text, const tsr_style *style, const tsr_baseline *baseline);

#endif
