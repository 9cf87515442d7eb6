/* A growing byte buffer for the text files that Tessera writes: headers, index, config, reports.
 *
 * `tsr_text t = {0};` is a valid empty buffer. Appending cannot fail visibly: when memory runs out the buffer turns
 * `failed` and stays so, and whoever writes it out checks once (tsr_text_status). Not thread-safe. */
#ifndef TSR_COMMON_TEXT_H
#define TSR_COMMON_TEXT_H

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_text {
    char *data; /* NUL-terminated once anything was appended */
    size_t size, capacity;
    bool failed;
    /* JSON state: whether the next value at this nesting depth needs a comma, and the indentation in force. */
    uint64_t json_used;
    unsigned json_depth, json_flat_depth; /* json_flat_depth: the depth of the outermost flat level, 0 when none */
    bool json_after_key;
} tsr_text;

void tsr_text_append(tsr_text *text, const void *data, size_t size);
void tsr_text_printf(tsr_text *text, const char *fmt, ...) TSR_PRINTF(2, 3);
void tsr_text_free(tsr_text *text);

/* Appends `size` bytes of text with control characters, what reorders text, and bytes that are no UTF-8 spelled out:
 * \n, \x1b, \u202e. For all that shows names from files. */
void tsr_text_visible(tsr_text *text, const char *from, size_t size);

/* Whether `text` ends with `suffix` and is longer than it. */
bool tsr_ends_with(const char *text, const char *suffix);

/* TSR_E_NOMEM if any append failed. */
tsr_status tsr_text_status(const tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

/* Writing JSON: values and members in order, commas and two-space indentation supplied; at most 60 levels deep.
 * Strings are escaped, controls and what reorders text as \uXXXX; bytes that are no UTF-8 become U+FFFD. `flat` objects
 * and arrays stay on one line, with what they hold. */
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
