/* Maps names of Hugging Face modules to those of llama.cpp, by the end of the name after the layer's number. */
#include "formats/importance/imatrix_names.h"

#include "formats/names/coding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A module of a layer, and its name in llama.cpp. Several names: the first that the file has. */
typedef struct row {
    const char *module, *name;
} row;

static const row kRows[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.dense", "attn_output"},
    {"self_attn.out_proj", "attn_output"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.query_key_value", "attn_qkv"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"linear_attn.in_proj_qkvz", "ssm_in"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.out_proj", "ssm_out"},
    {"mixer.in_proj", "ssm_in"},
    {"mixer.out_proj", "ssm_out"},
    {"mamba.in_proj", "ssm_in"},
    {"mamba.out_proj", "ssm_out"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc2", "ffn_down"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"feed_forward.gate_proj", "ffn_gate"},
    {"feed_forward.up_proj", "ffn_up"},
    {"feed_forward.down_proj", "ffn_down"},
    {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
    {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
};

/* A projection of the experts of a layer, single or stacked. */
static const row kExperts[] = {
    {"gate_proj", "ffn_gate_exps"},  {"up_proj", "ffn_up_exps"},
    {"down_proj", "ffn_down_exps"},  {"w1", "ffn_gate_exps"},
    {"w3", "ffn_up_exps"},           {"w2", "ffn_down_exps"},
    {"gate_up_proj", "ffn_up_exps"}, {"gate_up_proj", "ffn_gate_up_exps"},
};

/* Returns the i-th row for the module, or NULL. */
static const row *find(const row *rows, size_t n, const char *module, size_t length, size_t i)
{
    for (size_t k = 0; k < n; k++) {
        if (strlen(rows[k].module) != length || memcmp(rows[k].module, module, length) != 0)
            continue;
        if (i-- == 0)
            return &rows[k];
    }
    return NULL;
}

/* Sets *layer and returns the part of the name after "layers.N.", or NULL. */
static const char *in_layer(const char *weight, uint64_t *layer)
{
    static const char *const kLayers[] = {"layers.", "blocks.", "h."};
    for (size_t i = 0; i < sizeof kLayers / sizeof *kLayers; i++) {
        const size_t size = strlen(kLayers[i]);
        for (const char *at = weight; (at = strstr(at, kLayers[i])) != NULL; at += size) {
            char *end;
            if ((at != weight && at[-1] != '.') || at[size] < '0' || at[size] > '9')
                continue;
            *layer = strtoull(at + size, &end, 10);
            if (*end == '.')
                return end + 1;
        }
    }
    return NULL;
}

bool tsr_imatrix_name_of(const char *weight, size_t i, tsr_imatrix_name *name)
{
    uint64_t layer;
    const size_t length = tsr_module_length(weight);
    const char *const rest = in_layer(weight, &layer);
    *name = (tsr_imatrix_name){.expert = false};
    if (rest == NULL || rest > weight + length) {
        const bool head = i == 0 && length >= 7 && strncmp(weight + length - 7, "lm_head", 7) == 0;
        snprintf(name->text, sizeof name->text, "output");
        return head;
    }
    const size_t left = (size_t)(weight + length - rest);
    const char *const experts = strstr(rest, "experts.");
    const row *found = find(kRows, sizeof kRows / sizeof *kRows, rest, left, i);
    if (found == NULL && experts != NULL && (experts == rest || experts[-1] == '.')) {
        const char *module = experts + strlen("experts.");
        if (*module >= '0' && *module <= '9') {
            char *end;
            name->matrix = strtoull(module, &end, 10);
            name->expert = *end == '.';
            module = name->expert ? end + 1 : module;
        }
        if (module < weight + length)
            found = find(kExperts, sizeof kExperts / sizeof *kExperts, module, (size_t)(weight + length - module), i);
    }
    if (found == NULL)
        return false;
    snprintf(name->text, sizeof name->text, "blk.%llu.%s", (unsigned long long)layer, found->name);
    return true;
}
