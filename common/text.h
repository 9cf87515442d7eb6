/* A growing byte buffer for the text files that Tessera writes: headers, index, config, reports.
 *
 * `tsr_text t = {0};` is a valid empty buffer. Appending returns no error: when memory runs out, the buffer turns
 * `failed` and stays so, and the code that writes it out checks once (tsr_text_status). Not thread-safe. */
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
    /* For formats/json/json_write.h: whether the next value at each depth needs a comma, and the depth of the outermost
     * object or array that stays on one line (0 when there is none). */
    uint64_t json_used;
    unsigned json_depth, json_flat_depth;
    bool json_after_key;
} tsr_text;

void tsr_text_append(tsr_text *text, const void *data, size_t size);
void tsr_text_printf(tsr_text *text, const char *fmt, ...) TSR_PRINTF(2, 3);
void tsr_text_free(tsr_text *text);

/* Appends `size` bytes of text. Control characters, characters that reorder text, and bytes that are not UTF-8 are
 * written as escapes (\n, \u202e, \x1b). Every message that shows a name from a file uses it. */
void tsr_text_visible(tsr_text *text, const char *from, size_t size);

/* The length of the UTF-8 character at `text`, at most `size` bytes, and its code point; 0 when the bytes are no UTF-8.
 */
size_t tsr_utf8_decode(const char *text, size_t size, uint32_t *code);

/* Whether a code point is a control character, a separator of lines, or turns the direction of text around. */
bool tsr_is_hidden(uint32_t code);

/* Whether `text` ends with `suffix` and is longer than it. */
bool tsr_ends_with(const char *text, const char *suffix);

/* The order of two strings by their bytes, for qsort and bsearch over an array of them. */
int tsr_by_text(const void *a, const void *b);

/* TSR_E_NOMEM if any append failed. */
tsr_status tsr_text_status(const tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

#endif
