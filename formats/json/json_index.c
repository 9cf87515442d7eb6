/* Builds the index in two passes: one over the text for the entries, one over the entries for the hash table. */
#include "formats/json/json_index.h"

#include "common/grow.h"

#include <stdlib.h>
#include <string.h>

/* Only 24 bytes, because a hostile document can have a member per five bytes of text. */
typedef struct tsr_json_entry {
    uint32_t key, key_size, value, value_size; /* positions in the text */
    uint32_t parent;                           /* entry of the object that contains the member */
    bool key_escaped, value_escaped;
} entry;

static tsr_json_text key_of(const tsr_json_index *index, const entry *e)
{
    return (tsr_json_text){.data = index->text + e->key, .size = e->key_size, .escaped = e->key_escaped};
}

static tsr_json_text value_of(const tsr_json_index *index, const entry *e)
{
    return (tsr_json_text){.data = index->text + e->value, .size = e->value_size, .escaped = e->value_escaped};
}

/* ---- first pass: the text ---- */

static tsr_status add_entry(tsr_json_index *index, uint32_t parent, tsr_json_text key, tsr_err *err)
{
    if (!tsr_grow(&index->entries, index->count, &index->capacity, sizeof *index->entries))
        return tsr_out_of_memory(err, "for the members of a JSON document");
    index->entries[index->count++] = (entry){.key = (uint32_t)(key.data - index->text),
                                             .key_size = (uint32_t)key.size,
                                             .key_escaped = key.escaped,
                                             .parent = parent};
    return TSR_OK;
}

/* Called when the reader is past the value of `e`, which is an object. */
static void end_object(tsr_json_index *index, entry *e, size_t pos)
{
    e->value_size = (uint32_t)(pos - e->value);
    index->entries[e->parent].value_escaped |= e->key_escaped || e->value_escaped;
}

static tsr_status read_value(tsr_json_index *index, tsr_json_reader *r, uint32_t at, bool *object, tsr_err *err)
{
    tsr_json_kind kind;
    tsr_json_text value;
    entry *const e = &index->entries[at];
    TSR_TRY(tsr_json_peek(r, &kind, err));
    *object = kind == TSR_JSON_OBJECT;
    e->value = (uint32_t)r->pos;
    if (*object)
        return tsr_json_enter_object(r, err);
    TSR_TRY(tsr_json_skip(r, &value, err));
    e->value_size = (uint32_t)value.size;
    e->value_escaped = value.escaped;
    index->entries[e->parent].value_escaped |= e->key_escaped || e->value_escaped;
    return TSR_OK;
}

static tsr_status read_entries(tsr_json_index *index, tsr_json_reader *r, tsr_err *err)
{
    uint32_t open[TSR_JSON_MAX_DEPTH]; /* the objects that are open */
    size_t depth = 0;
    bool object, more;
    TSR_TRY(add_entry(index, 0, (tsr_json_text){.data = r->text}, err));
    TSR_TRY(read_value(index, r, 0, &object, err));
    if (!object)
        return tsr_fail(err, TSR_E_FORMAT, "%s: not a JSON object", r->name);
    for (open[depth++] = 0; depth > 0;) {
        tsr_json_text key;
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more) {
            end_object(index, &index->entries[open[--depth]], r->pos);
            continue;
        }
        const uint32_t at = (uint32_t)index->count;
        TSR_TRY(add_entry(index, open[depth - 1], key, err));
        TSR_TRY(read_value(index, r, at, &object, err));
        if (object)
            open[depth++] = at;
    }
    return tsr_json_finish(r, err);
}

/* ---- second pass: the hash table ---- */

/* Returns the slot of the key in the object, or the free slot for it. */
static size_t slot_of(const tsr_json_index *index, uint32_t parent, tsr_json_text key)
{
    size_t slot = (tsr_json_hash(key) + parent * UINT64_C(0x9E3779B97F4A7C15)) & index->mask;
    for (; index->slots[slot] != 0; slot = (slot + 1) & index->mask) {
        const entry *const e = &index->entries[index->slots[slot]];
        if (e->parent == parent && tsr_json_same(key_of(index, e), key))
            break;
    }
    return slot;
}

static tsr_status make_table(tsr_json_index *index, const char *name, tsr_err *err)
{
    size_t slots = 16;
    while (slots < 2 * index->count)
        slots *= 2;
    index->mask = slots - 1;
    index->slots = calloc(slots, sizeof *index->slots);
    if (index->slots == NULL)
        return tsr_out_of_memory(err, "for the members of a JSON document");
    for (uint32_t i = 1; i < index->count; i++) {
        const tsr_json_text key = key_of(index, &index->entries[i]);
        const size_t slot = slot_of(index, index->entries[i].parent, key);
        if (index->slots[slot] != 0)
            return tsr_fail(err, TSR_E_FORMAT,
                            "%s: duplicate key '%.*s' in one object, the second at byte %u; readers disagree on which "
                            "one counts, so remove one",
                            name, (int)(key.size > 200 ? 200 : key.size), key.data, index->entries[i].key - 1);
        index->slots[slot] = i;
    }
    return TSR_OK;
}

tsr_status tsr_json_index_read(tsr_json_index *index, const char *name, const char *text, size_t size, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open(name, text, size);
    *index = (tsr_json_index){.text = text};
    if (size > UINT32_MAX)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: larger than 4 GiB", name);
    tsr_status status = read_entries(index, &r, err);
    if (status == TSR_OK)
        status = make_table(index, name, err);
    if (status != TSR_OK)
        tsr_json_index_free(index);
    return status;
}

/* ---- asking ---- */

static bool find_from(const tsr_json_index *index, uint32_t at, const char *path, tsr_json_text *value)
{
    for (;;) {
        const char *const dot = strchrnul(path, '.');
        at = index->slots[slot_of(index, at, (tsr_json_text){.data = path, .size = (size_t)(dot - path)})];
        if (at == 0)
            return false;
        if (*dot == '\0')
            break;
        path = dot + 1;
    }
    *value = value_of(index, &index->entries[at]);
    return true;
}

bool tsr_json_index_find(const tsr_json_index *index, const char *path, tsr_json_text *value)
{
    return index->count > 0 && find_from(index, 0, path, value);
}

static int compare_place(const void *place, const void *other)
{
    const uint32_t a = *(const uint32_t *)place, b = ((const entry *)other)->value;
    return (a > b) - (a < b);
}

bool tsr_json_index_find_in(const tsr_json_index *index, tsr_json_text object, const char *path, tsr_json_text *value)
{
    const size_t size = index->count == 0 ? 0 : index->entries[0].value + (size_t)index->entries[0].value_size;
    if (object.data >= index->text && object.data < index->text + size) {
        const uint32_t place = (uint32_t)(object.data - index->text);
        const entry *const e = bsearch(&place, index->entries, index->count, sizeof *e, compare_place);
        if (e != NULL)
            return find_from(index, (uint32_t)(e - index->entries), path, value);
    }
    return tsr_json_find(object.data, object.size, path, value); /* an object in an array, or of another text */
}

size_t tsr_json_index_memory(const tsr_json_index *index)
{
    return index->capacity * sizeof *index->entries +
           (index->slots == NULL ? 0 : index->mask + 1) * sizeof *index->slots;
}

void tsr_json_index_free(tsr_json_index *index)
{
    free(index->entries);
    free(index->slots);
    *index = (tsr_json_index){0};
}
