/* Index of the members of a JSON document: built in one pass, then searched any number of times.
 *
 * All members of the document and of its nested objects have an entry. Members inside arrays have none. A path costs
 * one hash lookup per key, regardless of the document's size. */
#pragma once

#include "common/status.h"
#include "formats/json/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `(tsr_json_index){0}` is a valid empty index. */
typedef struct tsr_json_index {
    const char *text; /* borrowed */
    /* private */
    struct tsr_json_entry *entries; /* [0] is the document itself; ordered by position */
    size_t count, capacity;
    uint32_t *slots; /* open-addressing hash table of the entries after [0]; 0: empty */
    size_t mask;
} tsr_json_index;

/* Checks that `text` is exactly one JSON object, and indexes its members. TSR_E_FORMAT: it is not, or an object repeats
 * a key, because readers differ in which value they use. `name` is for messages. After a failure there is nothing to
 * free. */
tsr_status tsr_json_index_read(tsr_json_index *index, const char *name, const char *text, size_t size, tsr_err *err);

/* Finds the value at a path of the whole document, like tsr_json_find. */
bool tsr_json_index_find(const tsr_json_index *index, const char *path, tsr_json_text *value);

/* Finds the value at a path of an object of the document, like tsr_json_find. */
bool tsr_json_index_find_in(const tsr_json_index *index, tsr_json_text object, const char *path, tsr_json_text *value);

/* Returns the bytes of memory that it takes. */
size_t tsr_json_index_memory(const tsr_json_index *index);

void tsr_json_index_free(tsr_json_index *index);
