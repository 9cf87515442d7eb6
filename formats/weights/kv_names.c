/* Parses names of KV-cache scales, and builds alternative names. */
#include "formats/weights/kv_names.h"

#include <stdio.h>
#include <string.h>

/* Removes the ending, if the name has it and is longer. */
static bool strip(const char *name, int *length, const char *ending)
{
    const int n = (int)strlen(ending);
    if (*length <= n || strncmp(name + *length - n, ending, (size_t)n) != 0)
        return false;
    *length -= n;
    return true;
}

bool tsr_kv_name_read(const char *name, tsr_kv_name *read)
{
    int length = (int)strlen(name);
    const bool both = strip(name, &length, ".kv_scale");
    const bool keys = both || strip(name, &length, ".k_scale"), values = both || strip(name, &length, ".v_scale");
    if (!keys && !values)
        return false;
    (void)(strip(name, &length, ".k_proj") || strip(name, &length, ".v_proj") || strip(name, &length, ".qkv_proj"));
    *read = (tsr_kv_name){.keys = keys, .values = values, .attention = length};
    return true;
}

const tsr_weight *tsr_weights_find_same(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *name)
{
    static const char *const kSpellings[][4] = {
        {".k_scale", ".k_proj.k_scale", ".qkv_proj.k_scale", ".kv_scale"},
        {".v_scale", ".v_proj.v_scale", ".qkv_proj.v_scale", ".kv_scale"},
    };
    const tsr_weight *found = tsr_weights_find(weights, checkpoint, name);
    tsr_kv_name kv;
    if (found != NULL || !tsr_kv_name_read(name, &kv))
        return found;
    for (size_t i = 0; found == NULL && i < 4; i++) {
        char text[1200];
        snprintf(text, sizeof text, "%.*s%s", kv.attention, name, kSpellings[kv.keys ? 0 : 1][i]);
        found = tsr_weights_find(weights, checkpoint, text);
    }
    return found;
}
