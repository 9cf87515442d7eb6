/* Groups of tensors on a terminal: bars where there are few of them, a chart of columns where there are many. */
#ifndef TSR_REPORT_TERMINAL_GROUPS_H
#define TSR_REPORT_TERMINAL_GROUPS_H

#include "report/canvas.h"
#include "report/overview.h"

/* Draws all groupings of the charted series that have anything to show. */
void tsr_draw_groups(tsr_text *text, const tsr_style *style, const tsr_overview *overview);

#endif
