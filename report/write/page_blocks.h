/* Writes block maps into the data of the page. */
#pragma once

#include "report/write/page_choice.h"

/* Writes the member `maps` of a result: null without data on blocks; the reason if there are no maps; or maps, codes
 * and large errors of the worst tensors. */
void tsr_page_blocks(tsr_text *text, const tsr_result *result, const tsr_page_choice *choice);
