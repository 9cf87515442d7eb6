/* Prints the block map of the worst tensor on a terminal. */
#ifndef TSR_REPORT_WRITE_TERMINAL_BLOCKS_H
#define TSR_REPORT_WRITE_TERMINAL_BLOCKS_H

#include "report/model/overview.h"
#include "report/model/result.h"
#include "report/write/canvas.h"

/* Prints a small map of block errors of the tensor with the worst block, its worst cell, and its largest errors, or
 * the reason why there is none. Prints nothing without data on blocks. */
void tsr_draw_blocks(tsr_text *text, const tsr_style *style, const tsr_overview *overview);

#endif
