/* A writer of JSON: values and members in order, appended to a text buffer.
 *
 * Commas and two-space indentation are supplied; nesting goes 60 levels deep at most. Strings are escaped: controls and
 * what reorders text become \uXXXX, and bytes that are no UTF-8 become U+FFFD. `flat` objects and arrays stay on one
 * line, with everything that they hold.
 *
 *     tsr_text out = {0};
 *     tsr_json_begin_object(&out, false);
 *     tsr_json_key(&out, "codes");
 *     tsr_json_u64(&out, 3);
 *     tsr_json_end_object(&out); */
#ifndef TSR_FORMATS_JSON_JSON_WRITE_H
#define TSR_FORMATS_JSON_JSON_WRITE_H

#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void tsr_json_begin_object(tsr_text *text, bool flat);
void tsr_json_end_object(tsr_text *text);
void tsr_json_begin_array(tsr_text *text, bool flat);
void tsr_json_end_array(tsr_text *text);
void tsr_json_key(tsr_text *text, const char *key);
void tsr_json_string(tsr_text *text, const char *value);
void tsr_json_u64(tsr_text *text, uint64_t value);
void tsr_json_bool(tsr_text *text, bool value);
void tsr_json_null(tsr_text *text);
/* The shortest of %.6g, %.9g and %.17g that reads back as the same number; null when not finite. */
void tsr_json_number(tsr_text *text, double value);
/* A quoted, escaped string alone, without separators: for text composed by hand. */
void tsr_json_quoted(tsr_text *text, const char *value);
/* Text that is JSON already. */
void tsr_json_raw(tsr_text *text, const char *json, size_t size);

#endif
