/* The table of fused layers. */
#include "formats/model/fused.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The last two are DeepSeek-V4's: "wkv" is joined with another layer in its attention than in its compressors, and stands
 * alone in its n-gram memory. */
static const tsr_fused kFused[] = {
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}, NULL},
    {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa", NULL}, NULL},
    {"gate_up_proj", {"gate_proj", "up_proj", NULL}, NULL},
    {"w13", {"w1", "w3", NULL}, NULL},
    {"query_key_value", {"query", "key", "value"}, NULL},
    {"in_proj_qkvz", {"in_proj_qkv", "in_proj_z", NULL}, NULL},
    {"in_proj_ba", {"in_proj_b", "in_proj_a", NULL}, NULL},
    {"fused_wqa_wkv", {"wq_a", "wkv", NULL}, "attn"},
    {"fused_wkv_wgate", {"wkv", "wgate", NULL}, "compressor"},
};

/* Whether the component of `module` that ends before `leaf` is `parent`. */
static bool lies_in(const char *module, const char *leaf, const char *parent)
{
    const size_t before = (size_t)(leaf - module), length = strlen(parent);
    if (before < length + 1 || memcmp(leaf - 1 - length, parent, length) != 0)
        return false;
    return before == length + 1 || leaf[-2 - (ptrdiff_t)length] == '.';
}

const tsr_fused *tsr_fused_find(const char *module)
{
    const char *const dot = strrchr(module, '.'), *const leaf = dot == NULL ? module : dot + 1;
    for (size_t i = 0; i < sizeof kFused / sizeof *kFused; i++) {
        if (kFused[i].parent != NULL && !lies_in(module, leaf, kFused[i].parent))
            continue;
        for (size_t k = 0; k < TSR_FUSED_MEMBERS && kFused[i].members[k] != NULL; k++) {
            if (strcmp(leaf, kFused[i].members[k]) == 0)
                return &kFused[i];
        }
    }
    return NULL;
}

size_t tsr_fused_members(const tsr_checkpoint *checkpoint, const tsr_tensor *weight,
                         const tsr_tensor *members[TSR_FUSED_MEMBERS])
{
    static const char kWeight[] = ".weight";
    char name[1200];
    members[0] = weight;
    const size_t length = strlen(weight->name), ending = sizeof kWeight - 1;
    if (length <= ending || length >= sizeof name - 64 || strcmp(weight->name + length - ending, kWeight) != 0)
        return 1;
    snprintf(name, sizeof name, "%.*s", (int)(length - ending), weight->name);
    char *const dot = strrchr(name, '.'), *const leaf = dot == NULL ? name : dot + 1;
    const tsr_fused *const fused = tsr_fused_find(name);
    size_t n = 0;
    for (size_t i = 0; fused != NULL && i < TSR_FUSED_MEMBERS && fused->members[i] != NULL; i++) {
        snprintf(leaf, (size_t)(name + sizeof name - leaf), "%s%s", fused->members[i], kWeight);
        const tsr_tensor *const t = tsr_checkpoint_find(checkpoint, name);
        if (t != NULL)
            members[n++] = t;
    }
    return n == 0 ? 1 : n;
}
