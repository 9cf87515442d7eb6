/* A pull reader for JSON from untrusted files: headers, indexes and configurations of checkpoints.
 *
 * It allocates only decoded strings, limits nesting, reads integers exactly (without floating point) and checks UTF-8.
 * It reports the byte span of every value, so that a configuration can be edited without changing its other bytes.
 *
 *     tsr_json_reader r = tsr_json_open("config.json", text, size);
 *     bool more;
 *     TSR_TRY(tsr_json_enter_object(&r, err));
 *     for (;;) {
 *         tsr_json_text key;
 *         TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
 *         if (!more) break;
 *         ...read or tsr_json_skip exactly one value...
 *     }
 *     TSR_TRY(tsr_json_finish(&r, err));
 *
 * Every error is TSR_E_FORMAT and names the file and the byte offset. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_JSON_MAX_DEPTH = 64 };

typedef enum tsr_json_kind {
    TSR_JSON_OBJECT,
    TSR_JSON_ARRAY,
    TSR_JSON_STRING,
    TSR_JSON_NUMBER,
    TSR_JSON_TRUE,
    TSR_JSON_FALSE,
    TSR_JSON_NULL,
    TSR_JSON_NOT_FINITE /* Infinity, -Infinity, NaN: no JSON, but Python writes them into config.json */
} tsr_json_kind;

typedef struct tsr_json_reader {
    const char *name; /* name of the file, for messages; borrowed */
    const char *text; /* borrowed; need not be NUL-terminated */
    size_t size, pos;
    unsigned depth;
    bool fresh; /* no member of the innermost object or array has been returned yet */
} tsr_json_reader;

/* The raw bytes of a string between its quotes (escapes not decoded), or of any value. Borrowed from the text. */
typedef struct tsr_json_text {
    const char *data;
    size_t size;
    bool escaped;
} tsr_json_text;

tsr_json_reader tsr_json_open(const char *name, const char *text, size_t size);

/* Sets *kind to the kind of the next value, from its first byte. */
tsr_status tsr_json_peek(tsr_json_reader *r, tsr_json_kind *kind, tsr_err *err);

tsr_status tsr_json_enter_object(tsr_json_reader *r, tsr_err *err);
tsr_status tsr_json_enter_array(tsr_json_reader *r, tsr_err *err);

/* Reads the next member's key and stops at its value. Sets *more to false at the end of the object, which is then
 * closed. */
tsr_status tsr_json_next_member(tsr_json_reader *r, tsr_json_text *key, bool *more, tsr_err *err);
tsr_status tsr_json_next_element(tsr_json_reader *r, bool *more, tsr_err *err);

/* Reads an array: calls `element` for each value, which must read or skip exactly that value. */
typedef tsr_status tsr_json_element_fn(void *context, tsr_err *err);
tsr_status tsr_json_read_array(tsr_json_reader *r, tsr_json_element_fn *element, void *context, tsr_err *err);

tsr_status tsr_json_read_string(tsr_json_reader *r, tsr_json_text *value, tsr_err *err);
/* Reads a non-negative integer below 2^64, written without fraction or exponent. */
tsr_status tsr_json_read_u64(tsr_json_reader *r, uint64_t *value, tsr_err *err);

/* Checks and skips one value of any kind. *span (may be NULL) receives its text. */
tsr_status tsr_json_skip(tsr_json_reader *r, tsr_json_text *span, tsr_err *err);

/* Checks that only white space follows the top-level value. */
tsr_status tsr_json_finish(tsr_json_reader *r, tsr_err *err);

/* Decodes a string into the arena, NUL-terminated: resolves escapes and surrogate pairs. Rejects a string that contains
 * U+0000, which no name may. */
tsr_status tsr_json_decode(const tsr_json_reader *r, tsr_json_text text, tsr_arena *arena, const char **out,
                           tsr_err *err);

/* Reads a string value and decodes it into the arena. */
tsr_status tsr_json_read_text(tsr_json_reader *r, tsr_arena *arena, const char **out, tsr_err *err);

/* Returns true if an undecoded string, or the text of a value with its quotes, is `literal` when its escapes are
 * resolved. */
bool tsr_json_is(tsr_json_text text, const char *literal);

/* Returns true if two undecoded strings decode to the same text; tsr_json_hash hashes the decoded text. */
bool tsr_json_same(tsr_json_text a, tsr_json_text b);
uint64_t tsr_json_hash(tsr_json_text text);

/* Returns the value, decoded into the arena, if it is a string; else NULL. */
const char *tsr_json_string_of(tsr_json_text value, tsr_arena *arena);

/* Reads the value if it is a non-negative integer below 2^64; else returns false. */
bool tsr_json_u64_of(tsr_json_text value, uint64_t *number);

/* Finds the value at a dotted path of object keys ("quantization_config.quant_method") in a valid document. Returns
 * false if it is absent. The span includes a string's quotes. */
bool tsr_json_find(const char *text, size_t size, const char *path, tsr_json_text *value);

/* Returns the string at a path, decoded into the arena; NULL: it is absent or not a string. */
const char *tsr_json_find_string(const char *text, size_t size, const char *path, tsr_arena *arena);

/* Finds the non-negative integer at a path. */
bool tsr_json_find_u64(const char *text, size_t size, const char *path, uint64_t *value);

/* Finds the value at a path of an object, which may be absent itself (.data NULL). Also returns false for null, which
 * in configurations means the same as an absent value. */
bool tsr_json_get(tsr_json_text object, const char *path, tsr_json_text *value);

/* Iterates over the members of an object in a valid document. Any other value has none.
 *
 *     tsr_json_reader r = tsr_json_members(object);
 *     while (tsr_json_member(&r, &key, &value)) ... */
tsr_json_reader tsr_json_members(tsr_json_text object);
bool tsr_json_member(tsr_json_reader *r, tsr_json_text *key, tsr_json_text *value);

/* Returns true if the value at a path of an object equals the literal, as tsr_json_is compares them. */
bool tsr_json_says(tsr_json_text object, const char *path, const char *literal);
