/* A writer of JSON: values and members in order, appended to a text buffer.
 *
 * The writer adds commas and indents by two spaces. Nesting is limited to 60 levels. Strings are escaped: control
 * characters and characters that reorder text become \uXXXX, and bytes that are not UTF-8 become U+FFFD. A `flat`
 * object or array is written on one line, with all its contents.
 *
 *     tsr_text out = {0};
 *     tsr_json_begin_object(&out, false);
 *     tsr_json_key(&out, "codes");
 *     tsr_json_u64(&out, 3);
 *     tsr_json_end_object(&out); */
#pragma once

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
void tsr_json_string_part(tsr_text *text, const char *value, size_t size);
void tsr_json_u64(tsr_text *text, uint64_t value);
void tsr_json_bool(tsr_text *text, bool value);
void tsr_json_null(tsr_text *text);
/* Writes the shortest of %.6g, %.9g and %.17g that reads back as the same number; null if it is not finite. */
void tsr_json_number(tsr_text *text, double value);
/* Writes a key with its value; a NULL string becomes null. */
void tsr_json_member_string(tsr_text *text, const char *key, const char *value);
void tsr_json_member_u64(tsr_text *text, const char *key, uint64_t value);
void tsr_json_member_bool(tsr_text *text, const char *key, bool value);
void tsr_json_member_number(tsr_text *text, const char *key, double value);
/* Writes a key with an array of integers on one line. */
void tsr_json_member_u64s(tsr_text *text, const char *key, const uint64_t *values, size_t n);
/* Write a key, and the begin of its object or array. */
void tsr_json_member_object(tsr_text *text, const char *key, bool flat);
void tsr_json_member_array(tsr_text *text, const char *key, bool flat);
/* Begins a document that is an object with the members `schema` and `version`, that of Tessera; ends a document with a
 * line feed. */
void tsr_json_begin_document(tsr_text *text, const char *schema);
void tsr_json_end_document(tsr_text *text);
/* Write a key with an array of strings (several strings on a line each), and a key with {}. */
void tsr_json_member_strings(tsr_text *text, const char *key, const char *const *values, size_t n);
void tsr_json_member_empty(tsr_text *text, const char *key);
/* Appends a quoted, escaped string without a comma or indentation, for text composed by the caller. */
void tsr_json_quoted(tsr_text *text, const char *value);
void tsr_json_quoted_part(tsr_text *text, const char *value, size_t size);
/* Appends text that is already JSON. */
void tsr_json_raw(tsr_text *text, const char *json, size_t size);
