/* In the place of the page where it is not built: libjs-chart.js was not found, or -Dhtml=disabled. */
#include "report/page.h"

const tsr_page_part *tsr_page_parts(void)
{
    return NULL;
}
