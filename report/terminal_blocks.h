/* The map of the worst tensor on a terminal. */
#ifndef TSR_REPORT_TERMINAL_BLOCKS_H
#define TSR_REPORT_TERMINAL_BLOCKS_H

#include "report/canvas.h"
#include "report/model.h"
#include "report/overview.h"

/* A small map of block errors of the tensor with the worst block, its worst cell, and its largest errors; or why there is
 * none. Nothing where the result says nothing of blocks. */
void tsr_draw_blocks(tsr_text *text, const tsr_style *style, const tsr_overview *overview);

#endif
