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

/* Warns of the first member of an object that is not known, and counts the others. Null states nothing. */
static void check(tsr_pairing *p, tsr_json_text object, const char *known, const char *where)
{
    tsr_json_text key, value;
    tsr_json_reader r = tsr_json_members(object);
    while (tsr_next_unknown_member(&r, known, &key, &value)) {
        if (tsr_json_is(value, "null") || p->w->n_warned++ > 0)
            continue;
        p->w->warning =
            tsr_arena_printf(&p->w->arena,
                             "%s: unknown member '%.*s': Tessera ignores it, and if it changes how weights are "
                             "decoded, they are decoded wrongly",
                             where, (int)tsr_min_u64(key.size, 64), key.data);
    }
}

static void check_part(tsr_pairing *p, tsr_json_text group, const char *name, const char *where)
{
    char path[320];
    tsr_json_text part;
    snprintf(path, sizeof path, "%s.%s", where, name);
    if (tsr_json_get(group, name, &part) && part.data[0] == '{')
        check(p, part, TSR_MEMBERS_ARGUMENTS, path);
}

void tsr_warn_of_unknown_members(tsr_pairing *p, tsr_json_text q, const char *known, const char *where)
{
    tsr_json_text groups, name, group;
    if (known != NULL)
        check(p, q, known, where);
    if (!tsr_json_get(q, "config_groups", &groups) || groups.data[0] != '{')
        return;
    tsr_json_reader r = tsr_json_members(groups);
    while (tsr_json_member(&r, &name, &group)) {
        char path[288];
        snprintf(path, sizeof path, "%s.config_groups.%.*s", where, (int)tsr_min_u64(name.size, 64), name.data);
        if (group.data[0] != '{')
            continue;
        check(p, group, TSR_MEMBERS_GROUP, path);
        check_part(p, group, "weights", path);
        check_part(p, group, "input_activations", path);
    }
}
