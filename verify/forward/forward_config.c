/* Reads a model's family, sizes and router from config.json, and computes the memory of a pass. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "formats/checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double number(const tsr_forward *f, const char *key, double otherwise)
{
    return tsr_config_model_number(f->side->checkpoint, key, otherwise);
}

static const char *string(tsr_forward *f, const char *key)
{
    return tsr_config_model_string(f->side->checkpoint, key, &f->arena);
}

/* ---- family ---- */

static tsr_status read_gate(tsr_forward *f, tsr_err *err)
{
    static const struct {
        const char *name;
        bool alone; /* for MLPs without a gate */
        tsr_gate gate;
    } kGates[] = {{"silu", false, TSR_GATE_SILU},
                  {"gelu_pytorch_tanh", false, TSR_GATE_GELU_TANH},
                  {"relu2", true, TSR_GATE_RELU2}};
    const bool alone = f->family->mlp->gate == NULL && f->family->mlp->both == NULL,
               clamped = (f->traits & TSR_CLAMPED) != 0;
    const char *act = string(f, "hidden_activation");
    act = act == NULL ? string(f, "mlp_hidden_act") : act;
    act = act == NULL ? string(f, "hidden_act") : act;
    if (act == NULL)
        act = (f->traits & TSR_SOFT_CAPS) != 0 ? "gelu_pytorch_tanh" : "silu";
    if (clamped && strcmp(act, "swigluoai") == 0)
        act = "silu";
    size_t i = 0;
    while (i < sizeof kGates / sizeof *kGates && (kGates[i].alone != alone || strcmp(act, kGates[i].name) != 0))
        i++;
    if (i == sizeof kGates / sizeof *kGates)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": unsupported hidden_act '%s'",
                        f->side->checkpoint->path, act);
    f->gate = kGates[i].gate;
    if ((f->traits & TSR_STREAMS) != 0) {
        f->gate = TSR_GATE_LIMITED;
        f->gate_limit = number(f, "swiglu_limit", 10);
    }
    if (!clamped)
        return TSR_OK;
    f->gate = TSR_GATE_CLAMPED;
    f->gate_limit = number(f, "swiglu_limit", 7);
    return number(f, "swiglu_alpha", 1.702) == 1.702
               ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": swiglu_alpha is not 1.702",
                          f->side->checkpoint->path);
}

static tsr_status read_router(tsr_forward *f, tsr_err *err)
{
    static const char *const kChosen[] = {
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk", "top_k_experts"};
    struct tsr_router *const r = &f->router;
    const char *const other = string(f, "moe_router_activation_func");
    const char *const scoring = string(f, "scoring_func") == NULL ? other : string(f, "scoring_func");
    const char *const method = string(f, "topk_method");
    static const char *const kScoring[] = {
        [TSR_SCORE_SOFTMAX] = "softmax", [TSR_SCORE_SIGMOID] = "sigmoid", [TSR_SCORE_ROOT] = "sqrtsoftplus"};
    r->scoring = (f->traits & TSR_STREAMS) != 0   ? TSR_SCORE_ROOT
                 : (f->traits & TSR_SIGMOID) != 0 ? TSR_SCORE_SIGMOID
                                                  : TSR_SCORE_SOFTMAX;
    const size_t known = (f->traits & TSR_STREAMS) != 0 ? TSR_SCORE_ROOT + 1 : TSR_SCORE_ROOT;
    for (size_t i = 0; scoring != NULL && i <= known; i++) {
        if (i == known)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": unsupported scoring_func '%s'",
                            f->side->checkpoint->path, scoring);
        if (strcmp(scoring, kScoring[i]) != 0)
            continue;
        r->scoring = (tsr_scoring)i;
        break;
    }
    r->paired = r->scoring != TSR_SCORE_SOFTMAX || (f->traits & TSR_PAIRED_GROUPS) != 0;
    r->normalized = (f->traits & (TSR_NORMALIZED | TSR_STREAMS)) != 0 || tsr_forward_is(f, "norm_topk_prob", "true");
    for (size_t i = 0; i < sizeof kChosen / sizeof *kChosen && r->chosen == 0; i++)
        r->chosen = tsr_forward_size(f, kChosen[i], 0);
    const bool grouped =
        (f->traits & (TSR_LATENT | TSR_SIGMOID)) != 0 && (method == NULL || strcmp(method, "greedy") != 0);
    const size_t groups = tsr_forward_size(f, "n_group", tsr_forward_size(f, "num_expert_group", 1));
    r->groups = grouped ? tsr_max_u64(groups, 1) : 1;
    r->groups_kept = grouped ? tsr_min_u64(tsr_forward_size(f, "topk_group", r->groups), r->groups) : 1;
    r->scale = number(f, "routed_scaling_factor", number(f, "router_scaling_factor", 1));
    return TSR_OK;
}

/* Returns true if the value at `key` is absent, null, or this string. */
static bool is_or_absent(tsr_forward *f, const char *key, const char *word)
{
    tsr_json_text value;
    if (!tsr_config_find_model(f->side->checkpoint, key, &value) || tsr_json_is(value, "null"))
        return true;
    const char *const text = string(f, key);
    return text != NULL && strcmp(text, word) == 0;
}

/* Rejects settings of recurrent layers and of their experts that are not computed. */
static tsr_status read_recurrence(tsr_forward *f, tsr_err *err)
{
    const tsr_layer_rule rule = f->family->layers;
    const bool scans = rule == TSR_SCAN_LISTED || rule == TSR_BLOCKS_LISTED;
    const char *fault = NULL;
    tsr_json_text limit;
    if (!scans && rule != TSR_DELTA_PATTERN && rule != TSR_KIMI_LISTED)
        return TSR_OK;
    const bool limited =
        tsr_config_find_model(f->side->checkpoint, "time_step_limit", &limit) && !tsr_json_is(limit, "null");
    if (f->gate != TSR_GATE_SILU && f->gate != TSR_GATE_RELU2)
        fault = "hidden_act";
    else if (!is_or_absent(f, "mamba_hidden_act", "silu"))
        fault = "mamba_hidden_act";
    else if (tsr_forward_is(f, "moe_renormalize", "false"))
        fault = "moe_renormalize";
    else if (!is_or_absent(f, "moe_latent_size", ""))
        fault = "moe_latent_size";
    else if (scans && limited &&
             (memchr(limit.data, '0', limit.size) == NULL || memmem(limit.data, limit.size, "Infinity", 8) == NULL))
        fault = "time_step_limit";
    f->least_step = rule == TSR_BLOCKS_LISTED ? number(f, "time_step_min", 0.001) : 0;
    return fault == NULL ? TSR_OK
                         : tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": unsupported %s",
                                    f->side->checkpoint->path, fault);
}

/* Sets the names that all weights begin with: those of a model of text, or of the text part of a multimodal one. */
static void find_names(tsr_forward *f)
{
    static const struct {
        const char *root, *embedding, *norm, *head;
    } kNames[] = {{"model.", "embed_tokens", "norm", "lm_head.weight"},
                  {"model.language_model.", "embed_tokens", "norm", "lm_head.weight"},
                  {"language_model.model.", "embed_tokens", "norm", "language_model.lm_head.weight"},
                  {"backbone.", "embeddings", "norm_f", "lm_head.weight"},
                  {"", "embed", "norm", "head.weight"}};
    char name[TSR_MAX_NAME];
    size_t i = sizeof kNames / sizeof *kNames;
    do {
        i--;
        snprintf(name, sizeof name, "%s%s.weight", kNames[i].root, kNames[i].embedding);
    } while (i > 0 && tsr_checkpoint_find(f->side->checkpoint, name) == NULL);
    f->root = kNames[i].root;
    f->embedding = kNames[i].embedding;
    f->norm = kNames[i].norm;
    f->head = kNames[i].head;
}

static tsr_status read_family(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const char *const type = tsr_config_find_string(c, "model_type", &f->arena);
    char known[1024];
    f->family = tsr_forward_family(type);
    if (f->family == NULL)
        f->family = tsr_forward_family(tsr_config_find_string(c, "text_config.model_type", &f->arena));
    if (f->family == NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": unsupported model_type '%s'; verify forward supports %s", c->path,
                        type == NULL ? "" : type, tsr_forward_families(known, sizeof known));
    f->traits = f->family->traits;
    find_names(f);
    TSR_TRY(read_gate(f, err));
    TSR_TRY(read_recurrence(f, err));
    return read_router(f, err);
}

/* ---- sizes ---- */

/* Returns the base of RoPE type dynamic with a fixed factor alpha, or 0 for other types. */
static double alpha_base(tsr_forward *f, double share)
{
    const char *const type = string(f, "rope_parameters.rope_type") != NULL ? string(f, "rope_parameters.rope_type")
                                                                            : string(f, "rope_scaling.type");
    const double alpha = number(f, "rope_parameters.alpha", number(f, "rope_scaling.alpha", 0));
    if ((f->traits & TSR_ALPHA_ROPE) == 0 || type == NULL || strcmp(type, "dynamic") != 0 || !(alpha > 0) || share <= 2)
        return 0;
    return tsr_rope_base(f->side->checkpoint, 10000) * pow(alpha, share / (share - 2));
}

/* Reads RoPE of heads of which `turned` elements are rotated. */
static tsr_status read_rope(tsr_forward *f, size_t turned, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const double base = f->family->rope_base != 0 ? f->family->rope_base : 10000, alpha = alpha_base(f, (double)turned);
    const bool plain = (f->traits & TSR_LOCAL_PLAIN) != 0;
    if (alpha != 0)
        return tsr_rope_of_base(&f->rope, c, turned, alpha, &f->arena, err);
    if (!plain && (f->traits & TSR_LOCAL_ROPE) == 0)
        return tsr_rope_read(&f->rope, c, turned, base, &f->arena, err);
    const double local =
        plain ? tsr_rope_base(c, base) : number(f, "rope_local_base_freq", number(f, "swa_rope_theta", 10000));
    const size_t full = f->full_dim == f->head_dim ? turned : f->full_dim;
    TSR_TRY(tsr_rope_has_section(c, "full_attention")
                ? tsr_rope_read_section(&f->rope, c, full, "full_attention", base, &f->arena, err)
                : tsr_rope_read(&f->rope, c, turned, base, &f->arena, err));
    return tsr_rope_has_section(c, "sliding_attention")
               ? tsr_rope_read_section(&f->local_rope, c, turned, "sliding_attention", local, &f->arena, err)
               : tsr_rope_of_base(&f->local_rope, c, turned, local, &f->arena, err);
}

/* Reads a size of full attention that per_layer_config states for each layer. */
static tsr_status read_layer_size(tsr_forward *f, const char *key, size_t *size, tsr_err *err)
{
    char path[64];
    for (size_t i = 0, seen = 0; i < f->layers; i++) {
        snprintf(path, sizeof path, "per_layer_config.%zu.%s", i, key);
        const size_t own = tsr_forward_size(f, path, 0);
        if (own == 0)
            continue;
        if (f->kinds[i] != TSR_LAYER_FULL || (seen != 0 && own != seen))
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": %s", f->side->checkpoint->path, path);
        seen = *size = own;
    }
    return TSR_OK;
}

/* Returns the key of what is not computed of Gemma 4, or NULL. Its smaller models have embeddings of each layer. */
static const char *find_fault(tsr_forward *f)
{
    if (tsr_forward_size(f, "hidden_size_per_layer_input", 256) != 0)
        return "hidden_size_per_layer_input";
    if (tsr_forward_size(f, "num_kv_shared_layers", 0) != 0)
        return "num_kv_shared_layers";
    if (!is_or_absent(f, "use_bidirectional_attention", "vision"))
        return "use_bidirectional_attention";
    return tsr_rope_has_section(f->side->checkpoint, "full_attention") ? NULL : "rope_parameters";
}

/* Reads the sizes of heads in layers without a window. */
static tsr_status read_full_heads(tsr_forward *f, tsr_err *err)
{
    const char *const path = f->side->checkpoint->path;
    f->full_dim = f->head_dim;
    f->full_kv_heads = f->kv_heads;
    if ((f->traits & TSR_GLOBAL_HEADS) == 0)
        return TSR_OK;
    const char *const fault = find_fault(f);
    if (fault != NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": unsupported %s", path, fault);
    f->keys_are_values = tsr_forward_is(f, "attention_k_eq_v", "true");
    f->full_dim = tsr_forward_size(f, "global_head_dim", 512);
    if (f->keys_are_values)
        f->full_kv_heads = tsr_forward_size(f, "num_global_key_value_heads", f->kv_heads);
    TSR_TRY(read_layer_size(f, "head_dim", &f->full_dim, err));
    TSR_TRY(read_layer_size(f, "num_key_value_heads", &f->full_kv_heads, err));
    return f->full_kv_heads > 0 && f->heads % f->full_kv_heads == 0 && f->full_dim > 0 && f->full_dim % 2 == 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_SHAPE,
                          "%s/" TSR_CONFIG_NAME
                          ": invalid sizes of full attention: %zu heads, %zu of keys, head_dim %zu",
                          path, f->heads, f->full_kv_heads, f->full_dim);
}

/* Returns the key of what is not computed of MiMo's layers with a window, or NULL. */
static const char *find_window_fault(tsr_forward *f, double share)
{
    static const char kSharePath[] = "rope_parameters.sliding_attention.partial_rotary_factor";
    if (tsr_forward_size(f, "swa_num_attention_heads", f->heads) != f->heads)
        return "swa_num_attention_heads";
    if (tsr_forward_size(f, "swa_head_dim", f->head_dim) != f->head_dim)
        return "swa_head_dim";
    if (tsr_forward_size(f, "swa_v_head_dim", f->value_dim) != f->value_dim)
        return "swa_v_head_dim";
    if (tsr_forward_is(f, "add_full_attention_sink_bias", "true"))
        return "add_full_attention_sink_bias";
    if (tsr_forward_is(f, "add_swa_attention_sink_bias", "false"))
        return "add_swa_attention_sink_bias";
    return number(f, kSharePath, share) == share ? NULL : kSharePath;
}

/* Reads the numbers of keys of layers with and without a window, and the values' size and factor. */
static tsr_status read_window_heads(tsr_forward *f, double share, tsr_err *err)
{
    const char *const path = f->side->checkpoint->path;
    f->value_scale = 1;
    if ((f->traits & TSR_WINDOW_HEADS) == 0)
        return TSR_OK;
    f->kv_heads = tsr_forward_size(f, "swa_num_key_value_heads", 2 * f->full_kv_heads);
    f->value_dim = tsr_forward_size(f, "v_head_dim", 0);
    if (!tsr_forward_is(f, "attention_value_scale", "null"))
        f->value_scale = number(f, "attention_value_scale", 0.707);
    const char *const fault = find_window_fault(f, share);
    if (fault != NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": unsupported %s", path, fault);
    return f->value_dim > 0 && f->kv_heads > 0 && f->heads % f->kv_heads == 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_SHAPE,
                          "%s/" TSR_CONFIG_NAME ": invalid sizes of values: %zu heads with windows, v_head_dim %zu",
                          path, f->kv_heads, f->value_dim);
}

/* Returns the share of the elements of a head that RoPE turns. */
static double rope_share(tsr_forward *f)
{
    static const char kFull[] = "rope_parameters.full_attention.partial_rotary_factor";
    const double dim = (double)f->head_dim, of_full = (f->traits & TSR_WINDOW_HEADS) != 0 ? number(f, kFull, NAN) : NAN;
    const double share =
        number(f, "partial_rotary_factor", number(f, "rope_parameters.partial_rotary_factor", of_full));
    const double known = isnan(share) ? number(f, "rotary_dim", f->family->rope_share * dim) / dim : share;
    return known == 0 ? 1 : known;
}

static tsr_status read_attention(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const double dim = (double)f->head_dim, scalar = number(f, "query_pre_attn_scalar", dim), share = rope_share(f);
    if (f->kv_heads == 0 || f->heads % f->kv_heads != 0 || f->head_dim == 0 || f->head_dim % 2 != 0)
        return tsr_fail(err, TSR_E_SHAPE,
                        "%s/" TSR_CONFIG_NAME
                        ": invalid attention sizes: %zu heads, %zu heads of keys and values, head_dim %zu",
                        c->path, f->heads, f->kv_heads, f->head_dim);
    if (share != 1 && (f->traits & TSR_PARTIAL_ROPE) == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": partial_rotary_factor", c->path);
    const double turned = (f->traits & TSR_WINDOW_HEADS) != 0 ? floor(dim * share) : dim * share;
    if (!(turned >= 2) || turned > dim || fmod(turned, 2) != 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s/" TSR_CONFIG_NAME ": partial_rotary_factor %g of heads of %zu", c->path,
                        share, f->head_dim);
    f->attention_scale = 1 / sqrt((f->traits & TSR_SOFT_CAPS) != 0 && scalar > 0 ? scalar : dim);
    if ((f->traits & TSR_MULTIPLIERS) != 0)
        f->attention_scale = number(f, "attention_multiplier", 1);
    if ((f->traits & TSR_VALUE_NORM) != 0)
        f->attention_scale = 1;
    TSR_TRY(read_full_heads(f, err));
    TSR_TRY(read_window_heads(f, share, err));
    return read_rope(f, (size_t)turned, err);
}

/* Reads by how much queries grow with the position. */
static tsr_status read_growth(tsr_forward *f, tsr_err *err)
{
    f->query_growth = number(f, "rope_parameters.llama_4_scaling_beta", NAN);
    f->trained = number(f, "rope_parameters.original_max_position_embeddings", 0);
    return (f->traits & TSR_LONG_QUERIES) == 0 || (!isnan(f->query_growth) && f->trained >= 1)
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT,
                          "%s/" TSR_CONFIG_NAME ": no rope_parameters.llama_4_scaling_beta with "
                          "original_max_position_embeddings",
                          f->side->checkpoint->path);
}

/* Reads what makes the numbers of a layer larger or smaller. */
static tsr_status read_factors(tsr_forward *f, tsr_err *err)
{
    const char *const path = f->side->checkpoint->path;
    const bool scaled = (f->traits & TSR_MULTIPLIERS) != 0;
    tsr_json_text value;
    f->score_cap = number(f, "attn_logit_softcapping", 0);
    f->logit_cap = number(f, "final_logit_softcapping", 0);
    f->embedding_scale = scaled ? number(f, "embedding_multiplier", 1) : 1;
    f->residual_scale = scaled ? number(f, "residual_multiplier", 1) : 1;
    f->logits_divisor = scaled ? number(f, "logits_scaling", 1) : 1;
    if ((f->traits & TSR_PARALLEL) != 0)
        f->logits_divisor = 1 / number(f, "logit_scale", 0.0625);
    if (tsr_forward_is(f, "use_qk_norm", "true") && (f->traits & TSR_CENTERED) != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": use_qk_norm", path);
    if ((f->traits & TSR_SCALED_EMBEDDING) != 0)
        f->embedding_scale = sqrt((double)f->hidden);
    if ((f->score_cap != 0 || f->logit_cap != 0) && (f->traits & TSR_SOFT_CAPS) == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": softcapping is not supported for this family",
                        path);
    if (tsr_config_find_model(f->side->checkpoint, "clip_qkv", &value) && !tsr_json_is(value, "null"))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": clip_qkv", path);
    return TSR_OK;
}

static tsr_status read_sizes(tsr_forward *f, tsr_err *err)
{
    enum { MOST_LAYERS = 1 << 16 }; /* a larger number is invalid, and would take minutes to list */
    const tsr_checkpoint *const c = f->side->checkpoint;
    const struct {
        const char *key;
        size_t *value;
    } kKeys[] = {{"num_hidden_layers", &f->layers},
                 {"hidden_size", &f->hidden},
                 {"vocab_size", &f->vocabulary},
                 {"num_attention_heads", &f->heads}};
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        *kKeys[i].value = tsr_forward_size(f, kKeys[i].key, i == 0 ? tsr_layer_kinds_count(f) : 0);
        if (*kKeys[i].value == 0)
            return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no %s", c->path, kKeys[i].key);
    }
    if (f->layers > MOST_LAYERS)
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": num_hidden_layers is above %d", c->path,
                        MOST_LAYERS);
    f->eps = number(f, "rms_norm_eps",
                    number(f, "layer_norm_epsilon", number(f, "layer_norm_eps", number(f, "layernorm_epsilon", 1e-6))));
    f->kv_heads = tsr_forward_size(f, "num_key_value_heads", f->heads);
    f->head_dim = tsr_forward_size(f, "head_dim", f->hidden / f->heads);
    f->tied = tsr_forward_is(f, "tie_word_embeddings", "true");
    f->streams = (f->traits & TSR_STREAMS) != 0 ? tsr_forward_size(f, "hc_mult", 4) : 1;
    f->width = f->streams * f->hidden;
    TSR_TRY(read_factors(f, err));
    TSR_TRY(tsr_layer_kinds_read(f, err));
    TSR_TRY(tsr_forward_read_compression(f, err));
    if ((f->traits & (TSR_LATENT | TSR_STREAMS)) == 0)
        TSR_TRY(read_attention(f, err));
    TSR_TRY(read_growth(f, err));
    return tsr_forward_read_indexer(f, err);
}

tsr_status tsr_forward_open(tsr_forward *f, const tsr_side *side, tsr_err *err)
{
    *f = (tsr_forward){.side = side};
    if (side->checkpoint->config == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: needs a directory with its " TSR_CONFIG_NAME, side->checkpoint->path);
    tsr_status status = read_family(f, err);
    if (status == TSR_OK)
        status = read_sizes(f, err);
    /* A value of the wrong type may be the cause of another error. */
    if (status == TSR_OK || status == TSR_E_FORMAT || status == TSR_E_SHAPE)
        TSR_TRY(tsr_config_check_types(side->checkpoint, err));
    return tsr_arena_status(&f->arena, status, err);
}

void tsr_forward_close(tsr_forward *f)
{
    tsr_ahead_end(f);
    tsr_token_choice_free(&f->choice);
    tsr_arena_free(&f->arena);
}
