/* Prints groups of tensors on a terminal: bars for few groups, a chart of columns for many. */
#ifndef TSR_REPORT_WRITE_TERMINAL_GROUPS_H
#define TSR_REPORT_WRITE_TERMINAL_GROUPS_H

#include "report/model/overview.h"
#include "report/write/canvas.h"

/* Draws all groupings of the charted series that are not empty. */
void tsr_draw_groups(tsr_text *text, const tsr_style *style, const tsr_overview *overview);

#endif
