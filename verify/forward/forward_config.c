/* Reads a model's family, sizes, windows and router from config.json, and computes the memory of a pass. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "formats/checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const tsr_moe_names
    kUsual = {"mlp.gate", "mlp.experts", "mlp.shared_experts", NULL, "gate_proj", "up_proj", "down_proj"},
    kMixtral = {"block_sparse_moe.gate", "block_sparse_moe.experts", NULL, NULL, "w1", "w3", "w2"},
    kQwen2 = {"mlp.gate",  "mlp.experts", "mlp.shared_expert", "mlp.shared_expert_gate",
              "gate_proj", "up_proj",     "down_proj"},
    kGptOss = {"mlp.router", "mlp.experts", NULL, NULL, "gate_proj", "up_proj", "down_proj"};

enum { GEMMA = TSR_GAIN_FROM_ONE | TSR_FOUR_NORMS | TSR_SCALED_EMBEDDING };

static const tsr_family_row kFamilies[] = {
    {"llama", 0, TSR_WINDOW_UNKNOWN, &kUsual},
    {"mistral", 0, TSR_WINDOW_ALL, &kUsual},
    {"mixtral", TSR_NORMALIZED, TSR_WINDOW_ALL, &kMixtral},
    {"qwen2", 0, TSR_WINDOW_LATER, &kUsual},
    {"qwen2_moe", 0, TSR_WINDOW_LATER, &kQwen2},
    {"qwen3", 0, TSR_WINDOW_LATER, &kUsual},
    {"qwen3_moe", 0, TSR_WINDOW_LATER, &kUsual},
    {"deepseek_v2", TSR_LATENT, TSR_WINDOW_UNKNOWN, &kUsual},
    {"deepseek_v3", TSR_LATENT | TSR_SIGMOID, TSR_WINDOW_UNKNOWN, &kUsual},
    {"kimi_k2", TSR_LATENT | TSR_SIGMOID, TSR_WINDOW_UNKNOWN, &kUsual},
    {"glm4_moe", TSR_SIGMOID | TSR_PARTIAL_ROPE, TSR_WINDOW_UNKNOWN, &kUsual},
    {"gemma2", GEMMA, TSR_WINDOW_EVEN, &kUsual},
    {"gemma3_text", GEMMA | TSR_LOCAL_ROPE, TSR_WINDOW_PATTERN, &kUsual},
    {"gpt_oss", TSR_NORMALIZED | TSR_STACKED_EXPERTS, TSR_WINDOW_EVEN, &kGptOss},
    {0},
};

const char *tsr_forward_families(char *text, size_t size)
{
    size_t used = 0;
    for (const tsr_family_row *row = kFamilies; row->type != NULL && used < size; row++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", row->type);
    return text;
}

size_t tsr_forward_size(const tsr_forward *f, const char *key, size_t otherwise)
{
    uint64_t x;
    return tsr_config_find_u64(f->side->checkpoint, key, &x) ? (size_t)tsr_min_u64(x, TSR_MAX_SIZE) : otherwise;
}

/* Returns true if the value at `key` is this JSON literal. */
static bool is(const tsr_forward *f, const char *key, const char *literal)
{
    tsr_json_text value;
    return tsr_config_find(f->side->checkpoint, key, &value) && tsr_json_is(value, literal);
}

static double number(const tsr_forward *f, const char *key, double otherwise)
{
    return tsr_config_find_number(f->side->checkpoint, key, otherwise);
}

/* ---- family ---- */

static tsr_status read_gate(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const char *act = tsr_config_find_string(c, "hidden_activation", &f->arena);
    act = act == NULL ? tsr_config_find_string(c, "hidden_act", &f->arena) : act;
    if (act != NULL && strcmp(act, "silu") != 0 && strcmp(act, "gelu_pytorch_tanh") != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": unsupported hidden_act '%s'", c->path, act);
    f->gate = act != NULL && strcmp(act, "silu") != 0 ? TSR_GATE_GELU_TANH : TSR_GATE_SILU;
    if ((f->traits & TSR_FOUR_NORMS) != 0 && act == NULL)
        f->gate = TSR_GATE_GELU_TANH;
    if ((f->traits & TSR_STACKED_EXPERTS) != 0) {
        f->gate = TSR_GATE_CLAMPED;
        f->gate_limit = number(f, "swiglu_limit", 7);
    }
    return TSR_OK;
}

static tsr_status read_family(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const char *const type = tsr_config_find_string(c, "model_type", &f->arena);
    const char *const scoring = tsr_config_find_string(c, "scoring_func", &f->arena);
    const char *const method = tsr_config_find_string(c, "topk_method", &f->arena);
    char known[512];
    f->family = kFamilies;
    while (f->family->type != NULL && (type == NULL || strcmp(type, f->family->type) != 0))
        f->family++;
    if (f->family->type == NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": unsupported model_type '%s'; verify forward supports %s", c->path,
                        type == NULL ? "" : type, tsr_forward_families(known, sizeof known));
    f->traits = f->family->traits;
    TSR_TRY(read_gate(f, err));
    struct tsr_router *const r = &f->router;
    r->sigmoid = scoring != NULL ? strcmp(scoring, "sigmoid") == 0 : (f->traits & TSR_SIGMOID) != 0;
    r->normalized = (f->traits & TSR_NORMALIZED) != 0 || is(f, "norm_topk_prob", "true");
    r->chosen = tsr_forward_size(f, "num_experts_per_tok", tsr_forward_size(f, "experts_per_token", 0));
    const bool grouped =
        (f->traits & (TSR_LATENT | TSR_SIGMOID)) != 0 && (method == NULL || strcmp(method, "greedy") != 0);
    r->groups = grouped ? tsr_max_u64(tsr_forward_size(f, "n_group", 1), 1) : 1;
    r->groups_kept = grouped ? tsr_min_u64(tsr_forward_size(f, "topk_group", r->groups), r->groups) : 1;
    r->scale = number(f, "routed_scaling_factor", 1);
    return TSR_OK;
}

/* ---- windows ---- */

/* Sets windows by the rule of the family. */
static void set_windows_by_rule(const tsr_forward *f)
{
    const size_t pattern = (size_t)tsr_max_u64(tsr_forward_size(f, "sliding_window_pattern", 6), 1);
    const size_t later =
        is(f, "use_sliding_window", "true") ? tsr_forward_size(f, "max_window_layers", SIZE_MAX) : SIZE_MAX;
    const tsr_windows rule = f->family->windows;
    for (size_t i = 0; i < f->layers; i++)
        f->has_window[i] = rule == TSR_WINDOW_ALL || (rule == TSR_WINDOW_EVEN && i % 2 == 0) ||
                           (rule == TSR_WINDOW_PATTERN && (i + 1) % pattern != 0) ||
                           (rule == TSR_WINDOW_LATER && i >= later);
}

/* Sets windows by layer_types, a list of "full_attention" and "sliding_attention" with one word per layer. */
static tsr_status read_layer_types(tsr_forward *f, tsr_json_text types, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    tsr_json_reader r = tsr_json_open(c->path, types.data, types.size);
    tsr_json_text word;
    size_t layer = 0;
    bool more = tsr_json_enter_array(&r, NULL) == TSR_OK;
    while (more && tsr_json_next_element(&r, &more, NULL) == TSR_OK && more) {
        if (tsr_json_read_string(&r, &word, NULL) != TSR_OK)
            break;
        const bool slides = word.size == 17 && memcmp(word.data, "sliding_attention", 17) == 0;
        if (!slides && (word.size != 14 || memcmp(word.data, "full_attention", 14) != 0))
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": layer_types[%zu] is '%.*s'", c->path,
                            layer, (int)tsr_min_u64(word.size, 64), word.data);
        if (layer < f->layers)
            f->has_window[layer] = slides;
        layer++;
    }
    return layer == f->layers ? TSR_OK
                              : tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": layer_types must have %zu entries",
                                         c->path, f->layers);
}

static tsr_status read_windows(tsr_forward *f, tsr_err *err)
{
    tsr_json_text types;
    f->window = is(f, "use_sliding_window", "false") ? SIZE_MAX : tsr_forward_size(f, "sliding_window", SIZE_MAX);
    f->window = f->window == 0 ? SIZE_MAX : f->window;
    f->has_window = tsr_arena_alloc(&f->arena, f->layers * sizeof *f->has_window);
    if (f->has_window == NULL)
        return tsr_out_of_memory(err, NULL);
    set_windows_by_rule(f);
    if (f->family->windows != TSR_WINDOW_UNKNOWN && tsr_config_find(f->side->checkpoint, "layer_types", &types) &&
        !tsr_json_is(types, "null"))
        TSR_TRY(read_layer_types(f, types, err));
    return TSR_OK;
}

/* ---- sizes ---- */

static tsr_status read_attention(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const double scalar = number(f, "query_pre_attn_scalar", (double)f->head_dim);
    const double share = number(f, "partial_rotary_factor", number(f, "rope_parameters.partial_rotary_factor", 1));
    if (f->kv_heads == 0 || f->heads % f->kv_heads != 0 || f->head_dim == 0 || f->head_dim % 2 != 0)
        return tsr_fail(err, TSR_E_SHAPE,
                        "%s/" TSR_CONFIG_NAME
                        ": invalid attention sizes: %zu heads, %zu heads of keys and values, head_dim %zu",
                        c->path, f->heads, f->kv_heads, f->head_dim);
    if (share != 1 && (f->traits & TSR_PARTIAL_ROPE) == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": partial_rotary_factor", c->path);
    const double turned = (double)f->head_dim * share;
    if (!(turned >= 2) || turned > (double)f->head_dim || fmod(turned, 2) != 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s/" TSR_CONFIG_NAME ": partial_rotary_factor %g of heads of %zu", c->path,
                        share, f->head_dim);
    f->attention_scale = 1 / sqrt((f->traits & TSR_FOUR_NORMS) != 0 && scalar > 0 ? scalar : (double)f->head_dim);
    if ((f->traits & TSR_LOCAL_ROPE) == 0)
        return tsr_rope_read(&f->rope, c, (size_t)turned, &f->arena, err);
    const double local = number(f, "rope_local_base_freq", 10000);
    TSR_TRY(tsr_rope_read_section(&f->rope, c, (size_t)turned, "full_attention", 0, &f->arena, err));
    return tsr_rope_read_section(&f->local_rope, c, (size_t)turned, "sliding_attention", local, &f->arena, err);
}

static tsr_status read_sizes(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const struct {
        const char *key;
        size_t *value;
    } kKeys[] = {{"num_hidden_layers", &f->layers},
                 {"hidden_size", &f->hidden},
                 {"vocab_size", &f->vocabulary},
                 {"num_attention_heads", &f->heads}};
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        *kKeys[i].value = tsr_forward_size(f, kKeys[i].key, 0);
        if (*kKeys[i].value == 0)
            return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no %s", c->path, kKeys[i].key);
    }
    f->eps = number(f, "rms_norm_eps", 1e-6);
    f->kv_heads = tsr_forward_size(f, "num_key_value_heads", f->heads);
    f->head_dim = tsr_forward_size(f, "head_dim", f->hidden / f->heads);
    f->score_cap = number(f, "attn_logit_softcapping", 0);
    f->logit_cap = number(f, "final_logit_softcapping", 0);
    f->tied = is(f, "tie_word_embeddings", "true");
    if (((f->score_cap != 0 || f->logit_cap != 0)) && (f->traits & TSR_FOUR_NORMS) == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": softcapping is not supported for this family",
                        c->path);
    TSR_TRY(read_windows(f, err));
    return (f->traits & TSR_LATENT) != 0 ? TSR_OK : read_attention(f, err);
}

tsr_status tsr_forward_open(tsr_forward *f, const tsr_side *side, tsr_err *err)
{
    *f = (tsr_forward){.side = side};
    if (side->checkpoint->config == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: needs a directory with its " TSR_CONFIG_NAME, side->checkpoint->path);
    TSR_TRY(tsr_arena_status(&f->arena, read_family(f, err), err));
    return tsr_arena_status(&f->arena, read_sizes(f, err), err);
}

void tsr_forward_close(tsr_forward *f)
{
    tsr_arena_free(&f->arena);
}

/* ---- memory ---- */

size_t tsr_forward_chunk(const tsr_forward *f, size_t positions)
{
    enum { LOGITS_AT_A_TIME = 1 << 26, LEAST = 64 }; /* the head is decoded once for each chunk */
    return (size_t)tsr_min_u64(positions, tsr_max_u64(LOGITS_AT_A_TIME / f->vocabulary, LEAST));
}

/* Returns the elements of one layer's latent attention. Keys and values are expanded for a few heads at a time. */
static double latent_elements(const tsr_forward *f, double n)
{
    const double heads = (double)f->heads, nope = (double)tsr_forward_size(f, "qk_nope_head_dim", 0),
                 rope = (double)tsr_forward_size(f, "qk_rope_head_dim", 0),
                 v = (double)tsr_forward_size(f, "v_head_dim", 0),
                 rank = (double)tsr_forward_size(f, "kv_lora_rank", 0),
                 q_rank = (double)tsr_forward_size(f, "q_lora_rank", 0);
    const double query = 2 * q_rank + heads * (nope + rope + v), key = 2 * (rank + rope) + 16 * (nope + rope + v);
    return n * (query + key + 2 * (double)f->hidden) + 5 * heads * (nope + v) * rank;
}

static double grouped_elements(const tsr_forward *f, double n)
{
    const double q = (double)(f->heads * f->head_dim), kv = (double)(f->kv_heads * f->head_dim);
    return n * (2 * q + 2 * kv + 2 * (double)f->hidden);
}

uint64_t tsr_forward_memory(const tsr_forward *f, size_t tokens, size_t longest)
{
    enum { THREADS = 8 };
    const double n = 2 * (double)tokens, hidden = (double)f->hidden;
    const double inner = (double)tsr_max_u64(tsr_forward_size(f, "intermediate_size", 0),
                                             tsr_forward_size(f, "moe_intermediate_size", 0) *
                                                 tsr_max_u64(1, tsr_forward_size(f, "n_shared_experts", 1)));
    const double stack = (f->traits & TSR_STACKED_EXPERTS) != 0 ? 4 * inner * hidden : 0;
    const double attention = ((f->traits & TSR_LATENT) != 0 ? latent_elements(f, n) : grouped_elements(f, n)) +
                             (double)THREADS * (double)longest;
    const double mlp = n * (3 * inner + 3 * hidden) + stack;
    const double logits = 2.0 * (double)tsr_forward_chunk(f, tokens) * (double)f->vocabulary;
    const double streams = 6 * n * hidden; /* for two models: before and after a layer, and its output */
    return (uint64_t)(sizeof(double) * (streams + fmax(fmax(attention, mlp), logits)));
}
