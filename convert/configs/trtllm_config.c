/* Translates tensor names to TensorRT-LLM and writes its config.json. */
#include "convert/configs/trtllm_config.h"

#include "formats/checkpoint/config.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "formats/names/model.h"

#include <string.h>

static const struct name {
    const char *hf, *there;
    size_t part, parts;
} kNames[] = {
    {"model.layers.*.self_attn.q_proj", "attention.qkv", 0, 3},
    {"model.layers.*.self_attn.k_proj", "attention.qkv", 1, 3},
    {"model.layers.*.self_attn.v_proj", "attention.qkv", 2, 3},
    {"model.layers.*.self_attn.o_proj", "attention.dense", 0, 1},
    {"model.layers.*.self_attn.q_norm", "attention.q_layernorm", 0, 1},
    {"model.layers.*.self_attn.k_norm", "attention.k_layernorm", 0, 1},
    {"model.layers.*.mlp.gate_proj", "mlp.fc", 0, 1},
    {"model.layers.*.mlp.up_proj", "mlp.gate", 0, 1},
    {"model.layers.*.mlp.down_proj", "mlp.proj", 0, 1},
    {"model.layers.*.input_layernorm", "input_layernorm", 0, 1},
    {"model.layers.*.post_attention_layernorm", "post_layernorm", 0, 1},
    {"model.embed_tokens", "transformer.vocab_embedding", 0, 1},
    {"model.norm", "transformer.ln_f", 0, 1},
    {"lm_head", "lm_head", 0, 1},
};

static const struct family {
    const char *model_type, *qwen_type; /* qwen_type is set where TensorRT-LLM's configuration has it */
} kFamilies[] = {{"llama", NULL}, {"mistral", NULL}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"}};

static const struct family *find_family(const char *model_type)
{
    for (size_t i = 0; model_type != NULL && i < sizeof kFamilies / sizeof *kFamilies; i++) {
        if (strcmp(kFamilies[i].model_type, model_type) == 0)
            return &kFamilies[i];
    }
    return NULL;
}

bool tsr_trtllm_knows(const char *model_type)
{
    return find_family(model_type) != NULL;
}

/* Returns true if `module` matches `pattern`, in which "*" is the layer number. */
static bool is_module(const char *pattern, const char *module, size_t length, uint64_t *layer)
{
    const char *const star = strchr(pattern, '*');
    if (star == NULL)
        return strlen(pattern) == length && memcmp(pattern, module, length) == 0;
    const size_t head = (size_t)(star - pattern);
    if (length <= head || memcmp(pattern, module, head) != 0)
        return false;
    size_t at = head;
    for (*layer = 0; at < length && module[at] >= '0' && module[at] <= '9' && *layer < 1000000; at++)
        *layer = *layer * 10 + (uint64_t)(module[at] - '0');
    return at > head && strlen(star + 1) == length - at && memcmp(star + 1, module + at, length - at) == 0;
}

const char *tsr_trtllm_name(const char *name, tsr_arena *arena, size_t *part, size_t *parts)
{
    const char *const dot = strrchr(name, '.');
    if (dot == NULL || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0))
        return NULL;
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++) {
        uint64_t layer = 0;
        if (!is_module(kNames[i].hf, name, (size_t)(dot - name), &layer))
            continue;
        *part = kNames[i].part;
        *parts = kNames[i].parts;
        return strchr(kNames[i].hf, '*') == NULL ? tsr_arena_printf(arena, "%s%s", kNames[i].there, dot)
                                                 : tsr_arena_printf(arena, "transformer.layers.%llu.%s%s",
                                                                    (unsigned long long)layer, kNames[i].there, dot);
    }
    return NULL;
}

/* ---- config.json ---- */

/* Key of Hugging Face, key of TensorRT-LLM, and the default value. NULL: the source must have the key. */
static const struct key {
    const char *there, *hf, *otherwise;
} kKeys[] = {
    {"vocab_size", "vocab_size", NULL},
    {"hidden_size", "hidden_size", NULL},
    {"intermediate_size", "intermediate_size", NULL},
    {"num_hidden_layers", "num_hidden_layers", NULL},
    {"num_attention_heads", "num_attention_heads", NULL},
    {"max_position_embeddings", "max_position_embeddings", NULL},
    {"hidden_act", "hidden_act", "\"silu\""},
    {"norm_epsilon", "rms_norm_eps", "1e-06"},
};

/* Newer sources put rope_theta and rope_scaling into rope_parameters. */
static void write_rotary(tsr_text *t, const tsr_checkpoint *c)
{
    static const char kDefault[] = "\"default\"";
    tsr_json_text value, type;
    const bool base =
        tsr_config_find(c, "rope_theta", &value) || tsr_config_find(c, "rope_parameters.rope_theta", &value);
    tsr_json_key(t, "rotary_base");
    tsr_json_raw(t, base ? value.data : "10000.0", base ? value.size : strlen("10000.0"));
    bool scaling = tsr_config_find(c, "rope_scaling", &value);
    if (!scaling && tsr_config_find(c, "rope_parameters.rope_type", &type))
        scaling = (type.size != strlen(kDefault) || memcmp(type.data, kDefault, type.size) != 0) &&
                  tsr_config_find(c, "rope_parameters", &value);
    tsr_json_key(t, "rotary_scaling");
    tsr_json_raw(t, scaling ? value.data : "null", scaling ? value.size : strlen("null"));
}

static void write_quantization(tsr_text *t, const tsr_trtllm_quantization *q)
{
    tsr_json_member_object(t, "quantization", false);
    tsr_json_member_string(t, "quant_algo", q->algorithm);
    tsr_json_key(t, "kv_cache_quant_algo");
    tsr_json_null(t);
    if (q->group != 0) {
        tsr_json_member_u64(t, "group_size", q->group);
        tsr_json_member_bool(t, "has_zero_point", true);
        tsr_json_member_bool(t, "pre_quant_scale", false);
    }
    tsr_json_member_array(t, "exclude_modules", true);
    for (size_t i = 0; i < q->n_unquantized; i++)
        tsr_json_string(t, q->unquantized[i]);
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

tsr_status tsr_trtllm_config(tsr_text *t, const tsr_checkpoint *source, const char *model_type, tsr_dtype dtype,
                             const tsr_trtllm_quantization *quantization, tsr_err *err)
{
    const struct family *const family = find_family(model_type);
    const tsr_model model = tsr_model_read(source);
    tsr_json_text value;
    TSR_TRY(tsr_config_check_rope(source, err));
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "architecture");
    if (tsr_config_find(source, "architectures", &value) && value.size > 2 && value.data[0] == '[') {
        tsr_json_reader r = tsr_json_open("", value.data, value.size);
        bool more = false;
        tsr_json_text first = {0};
        if (tsr_json_enter_array(&r, NULL) == TSR_OK && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more &&
            tsr_json_skip(&r, &first, NULL) == TSR_OK)
            tsr_json_raw(t, first.data, first.size);
        else
            tsr_json_null(t);
    } else {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": no architectures, which TensorRT-LLM requires",
                        source->path);
    }
    tsr_json_member_string(t, "dtype", dtype == TSR_F16 ? "float16" : "bfloat16");
    tsr_json_member_string(t, "logits_dtype", "float32");
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        const struct key *const k = &kKeys[i];
        const bool found = tsr_config_find(source, k->hf, &value);
        if (!found && k->otherwise == NULL)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": no %s, which TensorRT-LLM requires",
                            source->path, k->hf);
        tsr_json_key(t, k->there);
        tsr_json_raw(t, found ? value.data : k->otherwise, found ? value.size : strlen(k->otherwise));
    }
    write_rotary(t, source);
    /* Llama's reader ignores biases without these members, and Qwen's requires some. */
    tsr_json_member_bool(t, "attn_bias", tsr_checkpoint_find(source, "model.layers.0.self_attn.q_proj.bias") != NULL);
    tsr_json_member_bool(t, "mlp_bias", tsr_checkpoint_find(source, "model.layers.0.mlp.gate_proj.bias") != NULL);
    tsr_json_member_u64(t, "num_key_value_heads", model.kv_heads != 0 ? model.kv_heads : model.heads);
    tsr_json_member_u64(t, "head_size",
                        model.head_dim != 0 ? model.head_dim
                        : model.heads == 0  ? 0
                                            : model.hidden / model.heads);
    tsr_json_member_string(t, "position_embedding_type", "rope_gpt_neox");
    if (family != NULL && family->qwen_type != NULL)
        tsr_json_member_string(t, "qwen_type", family->qwen_type);
    tsr_json_member_object(t, "mapping", true);
    tsr_json_member_u64(t, "world_size", 1);
    tsr_json_member_u64(t, "tp_size", 1);
    tsr_json_member_u64(t, "pp_size", 1);
    tsr_json_end_object(t);
    write_quantization(t, quantization);
    tsr_json_end_document(t);
    return tsr_text_status(t, err);
}
