/* The table of fused layers. */
#include "formats/names/fused.h"

#include "formats/names/coding.h"

#include <stddef.h>
#include <string.h>

/* The last two are for DeepSeek-V4: "wkv" is fused with one layer in attention, with another in the compressors, and
 * with none in the n-gram memory. */
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

/* Returns true if the component of `module` that ends before `leaf` is `parent`. */
static bool lies_in(const char *module, const char *leaf, const char *parent)
{
    const size_t before = (size_t)(leaf - module), length = strlen(parent);
    if (before < length + 1 || memcmp(leaf - 1 - length, parent, length) != 0)
        return false;
    return before == length + 1 || leaf[-2 - (ptrdiff_t)length] == '.';
}

const tsr_fused *tsr_fused_find_in(const char *module, size_t length)
{
    const char *const dot = memrchr(module, '.', length), *const leaf = dot == NULL ? module : dot + 1;
    const size_t n = length - (size_t)(leaf - module);
    for (size_t i = 0; i < sizeof kFused / sizeof *kFused; i++) {
        if (kFused[i].parent != NULL && !lies_in(module, leaf, kFused[i].parent))
            continue;
        for (size_t k = 0; k < TSR_FUSED_MEMBERS && kFused[i].members[k] != NULL; k++) {
            if (strlen(kFused[i].members[k]) == n && memcmp(leaf, kFused[i].members[k], n) == 0)
                return &kFused[i];
        }
    }
    return NULL;
}

const tsr_fused *tsr_fused_find(const char *module)
{
    return tsr_fused_find_in(module, strlen(module));
}

bool tsr_is_fused_name(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof kFused / sizeof *kFused; i++) {
        if (strlen(kFused[i].name) == length && memcmp(name, kFused[i].name, length) == 0)
            return true;
    }
    return false;
}

size_t tsr_fused_members(const tsr_checkpoint *checkpoint, const tsr_tensor *weight,
                         const tsr_tensor *members[TSR_FUSED_MEMBERS])
{
    const char *const name = weight->name;
    const size_t length = tsr_module_length(name);
    const tsr_fused *const fused = name[length] == '\0' ? NULL : tsr_fused_find_in(name, length);
    const char *const dot = memrchr(name, '.', length);
    const size_t parent = dot == NULL ? 0 : (size_t)(dot + 1 - name);
    size_t n = 0;
    members[0] = weight;
    for (size_t i = 0; fused != NULL && i < TSR_FUSED_MEMBERS && fused->members[i] != NULL; i++) {
        const tsr_tensor *const t = tsr_find_joined(checkpoint, name, parent, fused->members[i], name + length);
        if (t != NULL)
            members[n++] = t;
    }
    return n == 0 ? 1 : n;
}
