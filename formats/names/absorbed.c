/* The names of absorbed-MLA tensors, by consumer. */
#include "formats/names/absorbed.h"

#include "common/text.h"
#include "formats/checkpoint/config.h"

#include <stdio.h>
#include <string.h>

const tsr_absorbed_consumer tsr_absorbed_consumers[TSR_ABSORBED_CONSUMERS] = {
    {"sglang", {"w_kc", "w_scale_k", "w_scale", false, true}, {"w_vc", "w_scale_v", "w_scale", true, false}},
    {"vllm", {"W_UK_T", "W_UK_T_scale", "W_scale", false, false}, {"W_UV", "W_UV_scale", "W_scale", true, true}},
    {"trtllm",
     {"k_b_proj_trans", "k_b_proj_trans_scale", "kv_b_scale", false, true},
     {"v_b_proj", "v_b_proj_scale", "kv_b_scale", true, false}},
    {"llamacpp", {"attn_k_b.weight", NULL, NULL, false, true}, {"attn_v_b.weight", NULL, NULL, true, false}},
};

const tsr_absorbed_part *tsr_absorbed_find(const char *name)
{
    for (size_t i = 0; i < TSR_ABSORBED_CONSUMERS; i++) {
        const tsr_absorbed_consumer *const c = &tsr_absorbed_consumers[i];
        if (tsr_ends_in_parts(name, c->keys.name))
            return &c->keys;
        if (tsr_ends_in_parts(name, c->values.name))
            return &c->values;
    }
    return NULL;
}

bool tsr_absorbed_sibling(const char *name, const char *own, const char *sibling, char *text, size_t size)
{
    const int n = snprintf(text, size, "%.*s%s", (int)(strlen(name) - strlen(own)), name, sibling);
    return n > 0 && (size_t)n < size;
}

bool tsr_absorbed_is_folded(const tsr_checkpoint *c)
{
    tsr_json_text value;
    return tsr_config_find(c, "tessera_mla.folded", &value) && tsr_json_is(value, "true");
}
