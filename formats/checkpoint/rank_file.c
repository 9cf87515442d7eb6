/* Finds the two files and reads the members that describe an output. */
#include "formats/checkpoint/rank_file.h"

#include "formats/json/json.h"
#include "formats/json/json_write.h"

#include <string.h>

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
    tsr_side_text f;
    tsr_json_text weights;
    *m = (tsr_rank_file){.ranks = 0};
    TSR_TRY(tsr_checkpoint_side_json(c, TSR_RANK_NAME, arena, &f, err));
    if (f.text != NULL && (!tsr_json_find_u64(f.text, f.size, "rank", &m->rank) ||
                           !tsr_json_find_u64(f.text, f.size, "ranks", &m->ranks) || m->rank >= m->ranks))
        return tsr_fail(err, TSR_E_FORMAT, "%s: the rank or the number of ranks is missing", f.path);
    TSR_TRY(tsr_checkpoint_side_json(c, TSR_LAYOUT_NAME, arena, &f, err));
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
