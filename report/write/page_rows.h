/* Writes the rows and the block maps of a result for the page.
 *
 * Rows are columns, each a JSON array: in this form 90,000 rows take a few megabytes. Texts are escaped by
 * tsr_text_visible, and contain no character that ends a script. */
#pragma once

#include "report/write/page_choice.h"

/* Writes a quoted text as a value of JSON in a page; NULL: null. */
void tsr_page_string(tsr_text *text, const char *value);
void tsr_page_member(tsr_text *text, const char *key, const char *value);

/* Writes a number with 7 digits, or an integer in full. Unknown: null; infinite: "inf", "-inf". */
void tsr_page_number(tsr_text *text, double value);
void tsr_page_member_number(tsr_text *text, const char *key, double value);

/* Writes an object of columns of the chosen rows. Empty columns are left out. `losses` has one value per row against
 * the baseline; NULL: none. */
void tsr_page_rows(tsr_text *text, const tsr_overview *overview, const tsr_page_choice *choice, const double *losses);

/* Writes the member `maps` of a result: null without data on blocks; the reason if there are no maps; or maps, codes
 * and large errors of the worst tensors. */
void tsr_page_blocks(tsr_text *text, const tsr_result *result, const tsr_page_choice *choice);
