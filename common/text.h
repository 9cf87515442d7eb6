/* A growing byte buffer for the text files that Tessera writes: headers, index, config, reports.
 *
 * `tsr_text t = {0};` is a valid empty buffer. Appending returns no error. When memory is exhausted, the buffer becomes
 * `failed` and stays so; the code that writes it out checks once (tsr_text_status). Not thread-safe. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_text {
    char *data; /* NUL-terminated after the first append */
    size_t size, capacity;
    bool failed;
    /* For formats/json/json_write.h: whether the next value at each depth needs a comma, and the depth of the outermost
     * object or array that stays on one line (0: none). */
    uint64_t json_used;
    unsigned json_depth, json_flat_depth;
    bool json_after_key;
} tsr_text;

void tsr_text_append(tsr_text *text, const void *data, size_t size);
void tsr_text_printf(tsr_text *text, const char *fmt, ...) TSR_PRINTF(2, 3);
void tsr_text_u64(tsr_text *text, uint64_t value); /* in decimal */
void tsr_text_free(tsr_text *text);

/* Appends `size` bytes of text. Control characters, characters that reorder text, and invalid UTF-8 are written as
 * escapes (\n, \u202e, \x1b). Every message with a name from a file uses it. */
void tsr_text_visible(tsr_text *text, const char *from, size_t size);

/* Returns the length of the UTF-8 character at `text`, at most `size` bytes, and its code point; 0 for invalid
 * UTF-8. */
size_t tsr_utf8_decode(const char *text, size_t size, uint32_t *code);

/* Returns the number of leading bytes that are printable ASCII, and neither '"' nor '\\'. */
size_t tsr_plain_size(const char *text, size_t size);

/* Returns true if a code point is a control character, a line separator or a bidirectional control. */
bool tsr_is_hidden(uint32_t code);

/* Returns true if `text` ends with `suffix` and is longer than it. */
bool tsr_ends_with(const char *text, const char *suffix);

/* Returns true if the last parts of a dotted name are `parts`, and others precede them. */
bool tsr_ends_in_parts(const char *name, const char *parts);

/* Returns true if a text has no ASCII control character. Lists of one text a line require it. */
bool tsr_is_printable(const char *text);

/* Reads a 64-bit decimal number at *text and advances past it. Returns false if there is a sign, a blank, a superfluous
 * leading zero or no digit, or if it is too large. */
bool tsr_take_decimal(const char **text, uint64_t *value);

/* The same for a whole text: no text may follow the number. */
bool tsr_parse_decimal(const char *text, uint64_t *value);

/* Reads a finite decimal number with or without sign, fraction and exponent, and advances past it. Returns false if
 * there is none; blanks, hexadecimal digits and words such as "inf" are not accepted. */
bool tsr_take_real(const char **text, double *value);

/* Returns the plural ending of a noun after a number: "" for 1, otherwise "s". */
const char *tsr_plural(uint64_t n);

/* Compare two strings by their bytes, and two doubles by their values, for qsort and bsearch over an array of them. */
int tsr_by_text(const void *a, const void *b);
int tsr_by_number(const void *a, const void *b);

/* Returns TSR_E_NOMEM if any append failed. */
tsr_status tsr_text_status(const tsr_text *text, tsr_err *err);

/* Writes "1.31 TB" or "512 MB" into `text`, at least 32 bytes. Returns text. */
const char *tsr_bytes_text(double bytes, char *text);
