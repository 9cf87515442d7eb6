/* The page that `tessera report --html` fills: HTML, style, scripts and the library of charts, put together when Tessera is
 * built (report/page/embed.py). Between its parts stands what belongs to one report. */
#ifndef TSR_REPORT_PAGE_H
#define TSR_REPORT_PAGE_H

#include <stddef.h>

typedef struct tsr_page_part {
    const unsigned char *html;
    size_t size;
    const char *then; /* what follows it: "title", "verdict", "reason", "version" or "data"; NULL: the page ends */
} tsr_page_part;

/* The parts in their order; NULL: Tessera was built without the library, and there is no page. Static storage. */
const tsr_page_part *tsr_page_parts(void);

#endif
