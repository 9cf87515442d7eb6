/* Writes block maps into the data of the page. */
#ifndef TSR_REPORT_WRITE_PAGE_BLOCKS_H
#define TSR_REPORT_WRITE_PAGE_BLOCKS_H

#include "report/write/page_choice.h"

/* Writes the member `maps` of a result: null without data on blocks; the reason if there are no maps; or maps, codes
 * and large errors of the worst tensors. */
void tsr_page_blocks(tsr_text *text, const tsr_result *result, const tsr_page_choice *choice);

#endif
