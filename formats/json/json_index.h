/* Where the members of a document stand: found in one pass, then looked up any number of times.
 *
 * All members of the document and of the objects in it have an entry; what stands in arrays has none. A path costs a
 * look into a hash table for each of its keys, however large the document is. */
#ifndef TSR_FORMATS_JSON_JSON_INDEX_H
#define TSR_FORMATS_JSON_JSON_INDEX_H

#include "common/status.h"
#include "formats/json/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `(tsr_json_index){0}` is a valid index in which nothing is found. */
typedef struct tsr_json_index {
    const char *text; /* borrowed */
    /* private */
    struct tsr_json_entry *entries; /* [0] is the document itself; in the order of their places */
    size_t count, capacity;
    uint32_t *slots; /* open-addressing hash table of the entries behind [0]; 0: empty */
    size_t mask;
} tsr_json_index;

/* Checks that `text` is one JSON object and nothing else, and notes where its members stand. TSR_E_FORMAT: it is not, or
 * a key stands twice in one object: readers do not agree on which of the two counts. `name` is for messages. After a
 * failure there is nothing to free. */
tsr_status tsr_json_index_read(tsr_json_index *index, const char *name, const char *text, size_t size,
                               tsr_err *err) TSR_WARN_UNUSED;

/* As tsr_json_find, in the whole document. */
bool tsr_json_index_find(const tsr_json_index *index, const char *path, tsr_json_text *value);

/* As tsr_json_find, in an object that was found in the document. */
bool tsr_json_index_find_in(const tsr_json_index *index, tsr_json_text object, const char *path, tsr_json_text *value);

/* Bytes that it holds. */
size_t tsr_json_index_memory(const tsr_json_index *index);

void tsr_json_index_free(tsr_json_index *index);

#endif
