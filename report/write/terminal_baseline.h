/* Prints regressions against a baseline on a terminal. */
#ifndef TSR_REPORT_WRITE_TERMINAL_BASELINE_H
#define TSR_REPORT_WRITE_TERMINAL_BASELINE_H

#include "report/read/baseline.h"
#include "report/write/canvas.h"

void tsr_draw_baseline(tsr_text *text, const tsr_style *style, const tsr_baseline *baseline);

#endif
