/* Finds the two files and reads the members that describe an output. */
#include "formats/checkpoint/rank_file.h"

#include "formats/json/json.h"
#include "formats/json/json_write.h"

#include <string.h>

typedef struct found {
    const char *path, *text; /* NULL: there is no such file */
    size_t size;
} found;

static tsr_status find(const tsr_checkpoint *c, const char *name, tsr_arena *arena, found *f, tsr_err *err)
{
    *f = (found){.text = NULL};
    for (size_t i = 0; i < c->n_side_files; i++) {
        const tsr_tensor file = tsr_checkpoint_side_file(c, i);
        if (strcmp(file.name, name) != 0)
            continue;
        char *const text = tsr_arena_alloc(arena, file.bytes + 1);
        if (text == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", c->files[file.file].path);
        TSR_TRY(tsr_checkpoint_read(c, &file, 0, text, file.bytes, err));
        *f = (found){c->files[file.file].path, text, file.bytes};
        tsr_json_reader r = tsr_json_open(f->path, text, file.bytes);
        TSR_TRY(tsr_json_skip(&r, NULL, err));
        return tsr_json_finish(&r, err);
    }
    return TSR_OK;
}

static uint64_t count(tsr_json_text array)
{
    tsr_json_reader r = tsr_json_open("", array.data, array.size);
    tsr_json_text item;
    uint64_t n = 0;
    bool more = false;
    if (tsr_json_enter_array(&r, NULL) != TSR_OK)
        return 0;
    while (tsr_json_next_element(&r, &more, NULL) == TSR_OK && more && tsr_json_skip(&r, &item, NULL) == TSR_OK)
        n++;
    return n;
}

tsr_status tsr_rank_file_read(tsr_rank_file *m, const tsr_checkpoint *c, tsr_arena *arena, tsr_err *err)
{
    found f;
    tsr_json_text weights;
    *m = (tsr_rank_file){.ranks = 0};
    TSR_TRY(find(c, TSR_RANK_NAME, arena, &f, err));
    if (f.text != NULL && (!tsr_json_find_u64(f.text, f.size, "rank", &m->rank) ||
                           !tsr_json_find_u64(f.text, f.size, "ranks", &m->ranks) || m->rank >= m->ranks))
        return tsr_fail(err, TSR_E_FORMAT, "%s: the rank or the number of ranks is missing", f.path);
    TSR_TRY(find(c, TSR_LAYOUT_NAME, arena, &f, err));
    if (f.text == NULL)
        return TSR_OK;
    m->target = tsr_json_find_string(f.text, f.size, "target", arena);
    m->producer = tsr_json_find_string(f.text, f.size, "producer", arena);
    m->scale_dtype = tsr_json_find_string(f.text, f.size, "scale_dtype", arena);
    if (m->target == NULL || m->producer == NULL || m->scale_dtype == NULL ||
        !tsr_json_find_u64(f.text, f.size, "arch", &m->arch) || !tsr_json_find_u64(f.text, f.size, "bits", &m->bits) ||
        !tsr_json_find_u64(f.text, f.size, "group_size", &m->group) ||
        !tsr_json_find(f.text, f.size, "weights", &weights))
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: target, producer, arch, bits, group_size, scale_dtype or weights is missing; all are "
                        "required to read the layout",
                        f.path);
    m->weights = count(weights);
    return TSR_OK;
}

void tsr_rank_file_write(tsr_text *t, const char *key, const tsr_rank_file *m)
{
    tsr_json_key(t, key);
    if (m->ranks == 0) {
        tsr_json_null(t);
        return;
    }
    tsr_json_begin_object(t, true);
    tsr_json_member_u64(t, "rank", m->rank);
    tsr_json_member_u64(t, "ranks", m->ranks);
    tsr_json_end_object(t);
}
