/* Figures of blocks in the data of the page. */
#ifndef TSR_REPORT_PAGE_BLOCKS_H
#define TSR_REPORT_PAGE_BLOCKS_H

#include "report/page_choice.h"

/* The member `maps` of a result: null where nothing is said of them, else why there are none, or maps, codes and large
 * errors of the worst tensors. */
void tsr_page_blocks(tsr_text *text, const tsr_result *result, const tsr_page_choice *choice);

#endif
