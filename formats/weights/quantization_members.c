/* Finds members of quantization_config that Tessera does not know. */
#include "formats/weights/quantization_members.h"

#include "common/checked.h"
#include "common/options.h"

#include <stdio.h>

bool tsr_next_unknown_member(tsr_json_reader *r, const char *known, tsr_json_text *key, tsr_json_text *value)
{
    while (tsr_json_member(r, key, value)) {
        char word[64];
        snprintf(word, sizeof word, "%.*s", (int)tsr_min_u64(key->size, sizeof word - 1), key->data);
        if (!tsr_is_listed(known, word))
            return true;
    }
    return false;
}

/* The members that an object may have, and the consequence of another one. */
typedef struct member_list {
    const char *known;
    bool closed; /* its library rejects others */
} member_list;

/* Rejects a member of an object that is not known if the list is closed. Otherwise warns of the first one, and counts
 * the others. Null states nothing. */
static tsr_status check(tsr_pairing *p, tsr_json_text object, member_list list, const char *where)
{
    tsr_json_text key, value;
    tsr_json_reader r = tsr_json_members(object);
    while (tsr_next_unknown_member(&r, list.known, &key, &value)) {
        const int length = (int)tsr_min_u64(key.size, 64);
        if (tsr_json_is(value, "null"))
            continue;
        if (list.closed)
            return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                            "%s: unknown member '%.*s' may change how weights are decoded; remove it if it does not",
                            where, length, key.data);
        if (p->w->n_warned++ > 0)
            continue;
        p->w->warning =
            tsr_arena_printf(&p->w->arena,
                             "%s: unknown member '%.*s': Tessera ignores it, and if it changes how weights are "
                             "decoded, they are decoded wrongly",
                             where, length, key.data);
    }
    return TSR_OK;
}

static tsr_status check_part(tsr_pairing *p, tsr_json_text group, const char *name, bool closed, const char *where)
{
    char path[512];
    tsr_json_text part;
    snprintf(path, sizeof path, "%s.%s", where, name);
    return tsr_json_get(group, name, &part) && part.data[0] == '{'
               ? check(p, part, (member_list){TSR_MEMBERS_ARGUMENTS, closed}, path)
               : TSR_OK;
}

/* Warns of a word for the format of codes or scales that Tessera does not know. The dtypes of the tensors decide. */
static void check_words(tsr_pairing *p, tsr_json_text q, const char *where)
{
    static const struct {
        const char *name, *known;
    } kMembers[] = {{"fmt", "\"e4m3\" \"float8_e4m3fn\""}, {"scale_fmt", "\"ue8m0\" \"f32\" \"float32\""}};
    for (size_t i = 0; i < sizeof kMembers / sizeof *kMembers; i++) {
        tsr_json_text value;
        char word[64];
        if (!tsr_json_get(q, kMembers[i].name, &value))
            continue;
        snprintf(word, sizeof word, "%.*s", (int)tsr_min_u64(value.size, sizeof word - 1), value.data);
        if (!tsr_is_listed(kMembers[i].known, word) && p->w->n_warned++ == 0)
            p->w->warning = tsr_arena_printf(&p->w->arena,
                                             "%s: unknown %s %s: Tessera reads codes and scales by the dtypes of their "
                                             "tensors, but loaders may not",
                                             where, kMembers[i].name, word);
    }
}

tsr_status tsr_check_members(tsr_pairing *p, tsr_json_text q, const char *path)
{
    const bool closed = p->w->dialect == TSR_DIALECT_COMPRESSED_TENSORS;
    tsr_json_text groups, name, group;
    char where[256];
    snprintf(where, sizeof where, "%.160s/" TSR_CONFIG_NAME ": %s", p->c->path, path);
    if (p->members != NULL)
        TSR_TRY(check(p, q, (member_list){p->members, false}, where));
    check_words(p, q, where);
    if (!tsr_json_get(q, "config_groups", &groups) || groups.data[0] != '{')
        return TSR_OK;
    tsr_json_reader r = tsr_json_members(groups);
    while (tsr_json_member(&r, &name, &group)) {
        char at[400];
        snprintf(at, sizeof at, "%s.config_groups.%.*s", where, (int)tsr_min_u64(name.size, 64), name.data);
        if (group.data[0] != '{')
            continue;
        TSR_TRY(check(p, group, (member_list){TSR_MEMBERS_GROUP, closed}, at));
        TSR_TRY(check_part(p, group, "weights", closed, at));
        TSR_TRY(check_part(p, group, "input_activations", closed, at));
    }
    return TSR_OK;
}
