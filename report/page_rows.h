/* The rows of a result as the page has them: by columns, each a JSON array, so that 90,000 rows are a few megabytes.
 *
 * Texts are visible as tsr_text_visible makes them, and hold no character that ends a script. */
#ifndef TSR_REPORT_PAGE_ROWS_H
#define TSR_REPORT_PAGE_ROWS_H

#include "report/page_choice.h"

/* A quoted text as a value of JSON in a page; NULL: null. */
void tsr_page_string(tsr_text *text, const char *value);
void tsr_page_member(tsr_text *text, const char *key, const char *value);

/* A number in 7 digits, which is more than anybody reads, and counts as they are. Unknown: null; infinite: "inf", "-inf". */
void tsr_page_number(tsr_text *text, double value);
void tsr_page_member_number(tsr_text *text, const char *key, double value);

/* An object of columns of the chosen rows. One that no row has is left out. `losses`: of each row against the baseline; NULL: there is
 * none. */
void tsr_page_rows(tsr_text *text, const tsr_overview *overview, const tsr_page_choice *choice, const double *losses);

#endif
