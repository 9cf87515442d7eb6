/* Declares the parts of the page of `tessera report --html`.
 *
 * The parts are HTML, style, scripts and the chart library, joined when Tessera is built (report/page/embed.py). The
 * data of a report is written between them. */
#pragma once

#include <stddef.h>

typedef struct tsr_page_part {
    const unsigned char *html;
    size_t size;
    const char *then; /* data after the part: "title", "verdict", "reason", "version" or "data"; NULL: the page ends */
} tsr_page_part;

/* Returns the parts in order. NULL: Tessera was built without the chart library, and has no page. Static storage. */
const tsr_page_part *tsr_page_parts(void);
