/* Replaces the page in builds without it: libjs-chart.js was not found, or -Dhtml=disabled. */
#include "report/write/page.h"

const tsr_page_part *tsr_page_parts(void)
{
    return NULL;
}
