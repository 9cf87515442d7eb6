/* Reads dimensions of a model, and has the table of name patterns. */
#include "formats/names/model.h"

#include "common/glob.h"
#include "common/text.h"
#include "formats/checkpoint/config.h"

#include <stdlib.h>
#include <string.h>

/* ---- dimensions ---- */

/* No model has dimensions of 2^28 or more, or 2^16 layers or experts. A product of two of them does not overflow. */
enum { MAX_DIMENSION = 1 << 28, MAX_COUNT = 1 << 16 };

static uint64_t number(const tsr_checkpoint *c, const char *key, uint64_t limit)
{
    uint64_t value;
    return tsr_config_find_u64(c, key, &value) && value < limit ? value : 0;
}

tsr_model tsr_model_read(const tsr_checkpoint *c)
{
    static const char *const kExperts[] = {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"};
    tsr_json_text tied;
    tsr_model m = {
        .layers = number(c, "num_hidden_layers", MAX_COUNT),
        .mtp_layers = number(c, "num_nextn_predict_layers", MAX_COUNT),
        .hidden = number(c, "hidden_size", MAX_DIMENSION),
        .heads = number(c, "num_attention_heads", MAX_COUNT),
        .kv_heads = number(c, "num_key_value_heads", MAX_COUNT),
        .head_dim = number(c, "head_dim", MAX_DIMENSION),
        .q_lora_rank = number(c, "q_lora_rank", MAX_DIMENSION),
        .kv_lora_rank = number(c, "kv_lora_rank", MAX_DIMENSION),
        .nope = number(c, "qk_nope_head_dim", MAX_DIMENSION),
        .rope = number(c, "qk_rope_head_dim", MAX_DIMENSION),
        .v_head_dim = number(c, "v_head_dim", MAX_DIMENSION),
        .linear_heads = number(c, "linear_num_key_heads", MAX_COUNT),
        .linear_keys = number(c, "linear_num_key_heads", MAX_COUNT) * number(c, "linear_key_head_dim", MAX_COUNT),
        .linear_values = number(c, "linear_num_value_heads", MAX_COUNT) * number(c, "linear_value_head_dim", MAX_COUNT),
        .untied = tsr_config_find_model(c, "tie_word_embeddings", &tied) && tsr_json_is(tied, "false"),
    };
    for (size_t i = 0; i < sizeof kExperts / sizeof *kExperts && m.experts == 0; i++)
        m.experts = number(c, kExperts[i], MAX_COUNT);
    if (m.kv_heads == 0)
        m.kv_heads = m.heads;
    if (m.head_dim == 0 && m.heads != 0)
        m.head_dim = m.hidden / m.heads;
    return m;
}

uint64_t tsr_model_head_dim(const tsr_model *m)
{
    return m->kv_lora_rank == 0 ? m->head_dim : m->v_head_dim;
}

uint64_t tsr_model_kv_values(const tsr_model *m, uint64_t kv_heads)
{
    return 2 * kv_heads * tsr_model_head_dim(m);
}

uint64_t tsr_fewer_groups(const tsr_model *m, uint64_t groups)
{
    do {
        groups--;
    } while (groups > 0 && m->heads % groups != 0);
    return groups;
}

uint64_t tsr_model_latent_values(const tsr_model *m)
{
    return m->kv_lora_rank + m->rope;
}

/* ---- names ---- */

/* The first matching pattern determines the part that a tensor belongs to. */
static const struct {
    const char *pattern;
    tsr_part part;
} kParts[] = {
    {"*norm.*", TSR_PART_NORM},
    {"*norm?.*", TSR_PART_NORM},
    {"*_norm", TSR_PART_NORM},
    {"*.ln_*", TSR_PART_NORM},
    {"*LayerNorm.*", TSR_PART_NORM},
    {"*embed_tokens*", TSR_PART_EMBEDDING},
    {"*vocab_embedding*", TSR_PART_EMBEDDING},
    {"*embeddings*", TSR_PART_EMBEDDING},
    {"*.wte.*", TSR_PART_EMBEDDING},
    {"*.wpe.*", TSR_PART_EMBEDDING},
    {"embed.weight", TSR_PART_EMBEDDING},
    {"*lm_head*", TSR_PART_HEAD},
    {"*shared_head.head*", TSR_PART_HEAD},
    {"head.weight", TSR_PART_HEAD},
    {"output.weight", TSR_PART_HEAD},
    {"transformer.layers.*.mlp.gate.*", TSR_PART_DENSE_MLP}, /* TensorRT-LLM's name for up_proj */
    {"*.gate.*", TSR_PART_ROUTER},
    {"*.router*", TSR_PART_ROUTER},
    {"*router.*", TSR_PART_ROUTER},
    {"*.shared_expert_gate.*", TSR_PART_ROUTER},
    {"*.shared_expert*", TSR_PART_SHARED_EXPERTS},
    {"*.experts.*", TSR_PART_ROUTED_EXPERTS},
    {"*attn*", TSR_PART_ATTENTION},
    {"*attention*", TSR_PART_ATTENTION},
    {"*.mlp.*", TSR_PART_DENSE_MLP},
    {"*.ffn.*", TSR_PART_DENSE_MLP},
    {"*feed_forward*", TSR_PART_DENSE_MLP},
};

tsr_part tsr_part_of(const char *name)
{
    for (size_t i = 0; i < sizeof kParts / sizeof *kParts; i++) {
        if (tsr_glob_match(kParts[i].pattern, name))
            return kParts[i].part;
    }
    return TSR_PART_OTHER;
}

const char *tsr_part_name(tsr_part part)
{
    static const char *const kNames[TSR_PART_COUNT] = {"attention",      "dense mlp", "routed experts",
                                                       "shared experts", "router",    "norms",
                                                       "embedding",      "lm_head",   "other"};
    return kNames[part];
}

bool tsr_layer_of(const char *name, uint64_t *layer)
{
    const char *const at = strstr(name, "layers.");
    const char *number = at == NULL ? NULL : at + 7;
    return number != NULL && tsr_take_decimal(&number, layer) && *number == '.';
}

bool tsr_model_is_mtp(const tsr_model *model, const char *name)
{
    uint64_t layer;
    if (strncmp(name, "mtp.", 4) == 0 || strstr(name, ".mtp.") != NULL)
        return true;
    return model->layers > 0 && tsr_layer_of(name, &layer) && layer >= model->layers;
}
