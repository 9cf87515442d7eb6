/* The tables of rules, and the fused groups that are decided as one. */
#include "quantize/policy.h"

#include "formats/fused.h"
#include "formats/glob.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

typedef struct rule {
    const char *pattern;
    tsr_treatment treatment;
    const char *reason;
} rule;

/* First of all, for every model: what no FP8 loader expects to find quantized. */
static const rule kNever[] = {
    {"*embed_tokens*", TSR_KEEP_EMBEDDING, "embedding"},
    {"*word_embeddings*", TSR_KEEP_EMBEDDING, "embedding"},
    {"*position_embeddings*", TSR_KEEP_EMBEDDING, "embedding"},
    {"*token_type_embeddings*", TSR_KEEP_EMBEDDING, "embedding"},
    {"*.wte.*", TSR_KEEP_EMBEDDING, "embedding"},
    {"*.wpe.*", TSR_KEEP_EMBEDDING, "embedding"},
    {"*tok_embeddings*", TSR_KEEP_EMBEDDING, "embedding"},
    {"*.bias", TSR_KEEP, "bias"},
    {"*_bias", TSR_KEEP, "bias"},
    {"*norm.*", TSR_KEEP, "norm"},
    {"*norm?.*", TSR_KEEP, "norm"},
    {"*.ln_*", TSR_KEEP, "norm"},
    {"*layer_norm*", TSR_KEEP, "norm"},
    {"*lm_head*", TSR_KEEP, "output head"},
    {"*shared_head.head*", TSR_KEEP, "output head of the MTP layer"},
    {"output.weight", TSR_KEEP, "output head"},
    {"*eh_proj*", TSR_KEEP, "projection of the MTP layer: loaders read it in BF16"},
    {"*.gate.weight", TSR_KEEP, "router gate"},
    {"*.router.*", TSR_KEEP, "router"},
    {"*.shared_expert_gate.*", TSR_KEEP, "router gate"},
    {"*indexer.weights_proj.*", TSR_KEEP, "indexer weights: loaders read them in BF16"},
    {"*vision*", TSR_KEEP, "vision tower: engines run it unquantized"},
    {"visual.*", TSR_KEEP, "vision tower: engines run it unquantized"},
    {"*.visual.*", TSR_KEEP, "vision tower: engines run it unquantized"},
    {"*multi_modal_projector*", TSR_KEEP, "multimodal projector: engines run it unquantized"},
    {"*audio_tower*", TSR_KEEP, "audio tower: engines run it unquantized"},
};

/* The families: which linear layers their loaders run in FP8. */
static const rule kMla[] = {
    {"*.self_attn.q_proj.weight", TSR_QUANTIZE, "MLA query projection"},
    {"*.self_attn.q_a_proj.weight", TSR_QUANTIZE, "MLA query projection, down"},
    {"*.self_attn.q_b_proj.weight", TSR_QUANTIZE, "MLA query projection, up"},
    {"*.self_attn.kv_a_proj_with_mqa.weight", TSR_QUANTIZE, "MLA latent projection"},
    {"*.self_attn.kv_b_proj.weight", TSR_QUANTIZE, "MLA key/value projection, up"},
    {"*.self_attn.o_proj.weight", TSR_QUANTIZE, "attention output"},
    {"*.self_attn.indexer.w*.weight", TSR_QUANTIZE, "sparse attention indexer"},
    {"*.mlp.*_proj.weight", TSR_QUANTIZE, "feed-forward"},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts"},
};

static const rule kGqa[] = {
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention"},
    {"*.self_attn.qkv_proj.weight", TSR_QUANTIZE, "attention"},
    {"*.mlp.*_proj.weight", TSR_QUANTIZE, "feed-forward"},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts"},
};

static const rule kMixtral[] = {
    {"*.self_attn.?_proj.weight", TSR_QUANTIZE, "attention"},
    {"*.block_sparse_moe.experts.*.w?.weight", TSR_QUANTIZE, "expert"},
    {"*.mlp.experts.*_proj", TSR_QUANTIZE, "fused experts"},
};

static const rule kBert[] = {
    {"*.attention.self.query.weight", TSR_QUANTIZE, "attention"},
    {"*.attention.self.key.weight", TSR_QUANTIZE, "attention"},
    {"*.attention.self.value.weight", TSR_QUANTIZE, "attention"},
    {"*.dense.weight", TSR_QUANTIZE, "dense layer"},
};

/* For a model_type that no table names. */
static const rule kUnknown[] = {
    {"*_proj.weight", TSR_QUANTIZE, "linear by its name (*_proj)"},
    {"*_proj_with_mqa.weight", TSR_QUANTIZE, "linear by its name (*_proj)"},
    {"*.experts.*_proj", TSR_QUANTIZE, "fused experts by their name"},
    {"*.fc*.weight", TSR_QUANTIZE, "linear by its name (fc*)"},
    {"*.c_fc.weight", TSR_QUANTIZE, "linear by its name (fc*)"},
    {"*dense*.weight", TSR_QUANTIZE, "linear by its name (dense)"},
    {"*linear*.weight", TSR_QUANTIZE, "linear by its name (linear)"},
};

#define RULES(table) table, sizeof table / sizeof *table

static const struct {
    const char *model_type;
    const rule *rules;
    size_t n;
} kFamilies[] = {
    {"deepseek_v2", RULES(kMla)},   {"deepseek_v3", RULES(kMla)},
    {"deepseek_v32", RULES(kMla)},  {"kimi_k2", RULES(kMla)},
    {"kimi_k25", RULES(kMla)},      {"glm_moe_dsa", RULES(kMla)},
    {"glm4_moe_lite", RULES(kMla)}, {"llama", RULES(kGqa)},
    {"mistral", RULES(kGqa)},       {"mistral3", RULES(kGqa)},
    {"ministral", RULES(kGqa)},     {"qwen2", RULES(kGqa)},
    {"qwen2_moe", RULES(kGqa)},     {"qwen3", RULES(kGqa)},
    {"qwen3_moe", RULES(kGqa)},     {"gemma", RULES(kGqa)},
    {"gemma2", RULES(kGqa)},        {"gemma3", RULES(kGqa)},
    {"gemma3_text", RULES(kGqa)},   {"glm4", RULES(kGqa)},
    {"glm4_moe", RULES(kGqa)},      {"ernie4_5_moe", RULES(kGqa)},
    {"granite", RULES(kGqa)},       {"olmo2", RULES(kGqa)},
    {"olmoe", RULES(kGqa)},         {"phi3", RULES(kGqa)},
    {"seed_oss", RULES(kGqa)},      {"hunyuan_v1_dense", RULES(kGqa)},
    {"mixtral", RULES(kMixtral)},   {"minimax_m2", RULES(kMixtral)},
    {"bert", RULES(kBert)},         {"xlm-roberta", RULES(kBert)},
};

static const rule *first_match(const rule *rules, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (tsr_glob_match(rules[i].pattern, name))
            return &rules[i];
    }
    return NULL;
}

static const char *matching(const char *const *globs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (tsr_glob_match(globs[i], name))
            return globs[i];
    }
    return NULL;
}

static size_t find_family(const char *model_type)
{
    size_t i = 0;
    while (i < sizeof kFamilies / sizeof *kFamilies &&
           (model_type == NULL || strcmp(kFamilies[i].model_type, model_type) != 0))
        i++;
    return i;
}

bool tsr_policy_knows(const char *model_type)
{
    return find_family(model_type) < sizeof kFamilies / sizeof *kFamilies;
}

const char *tsr_policy_model_type(const tsr_checkpoint *c, tsr_arena *arena)
{
    if (c->config == NULL)
        return NULL;
    const char *const type = tsr_json_find_string(c->config, c->config_size, "model_type", arena);
    if (tsr_policy_knows(type))
        return type;
    const char *const text = tsr_json_find_string(c->config, c->config_size, "text_config.model_type", arena);
    return text == NULL ? type : text;
}

/* What the shape and dtype alone forbid, or NULL. */
static const char *not_a_matrix(const tsr_tensor *t)
{
    if (!tsr_dtype_is_weight_float(t->dtype))
        return "not BF16, F16 or F32";
    if (t->rank < 2 || t->rank > 3)
        return t->rank < 2 ? "a vector" : "more than three dimensions";
    return t->bytes == 0 ? "empty" : NULL;
}

static tsr_decision decide_alone(const tsr_tensor *t, size_t family, const tsr_policy_options *o, tsr_arena *arena)
{
    const char *const obstacle = not_a_matrix(t);
    const char *glob = matching(o->exclude, o->n_exclude, t->name);
    if (glob != NULL)
        return (tsr_decision){TSR_KEEP, tsr_arena_printf(arena, "--exclude '%s'", glob)};
    const rule *const never = first_match(RULES(kNever), t->name);
    if (obstacle != NULL)
        return (tsr_decision){TSR_KEEP, never != NULL ? never->reason : obstacle};
    glob = matching(o->include, o->n_include, t->name);
    if (glob != NULL)
        return (tsr_decision){TSR_QUANTIZE, tsr_arena_printf(arena, "--include '%s'", glob)};
    if (never != NULL)
        return (tsr_decision){never->treatment, never->reason};
    const bool known = family < sizeof kFamilies / sizeof *kFamilies;
    const rule *const yes = known ? first_match(kFamilies[family].rules, kFamilies[family].n, t->name)
                                  : first_match(RULES(kUnknown), t->name);
    if (yes != NULL)
        return (tsr_decision){yes->treatment, yes->reason};
    return (tsr_decision){TSR_KEEP, known ? "no rule of this model_type names it" : "no rule names it"};
}

/* Keeps every member but `cause` itself, saying why. */
static tsr_status keep_group(const tsr_checkpoint *c, const tsr_tensor *const *members, size_t n,
                             const tsr_tensor *cause, const char *why, tsr_arena *arena, tsr_decision *decisions,
                             tsr_err *err)
{
    for (size_t i = 0; i < n; i++) {
        tsr_decision *const d = &decisions[members[i] - c->tensors.items];
        if (d->treatment != TSR_QUANTIZE)
            continue;
        d->treatment = TSR_KEEP;
        d->reason = members[i] == cause ? tsr_arena_printf(arena, "it is fused with others, and %s", why)
                                        : tsr_arena_printf(arena, "fused with %s, and %s", cause->name, why);
        if (d->reason == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    }
    return TSR_OK;
}

/* Decides one fused group, found by its first member. */
static tsr_status decide_group(const tsr_checkpoint *c, const tsr_tensor *first, const tsr_policy_options *o,
                               tsr_arena *arena, tsr_decision *decisions, tsr_err *err)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    const size_t n = tsr_fused_members(c, first, members);
    if (n == 1 || members[0] != first)
        return TSR_OK;
    for (size_t i = 0; i < n; i++) {
        if (decisions[members[i] - c->tensors.items].treatment != TSR_QUANTIZE)
            return keep_group(c, members, n, members[i], "that one is kept", arena, decisions, err);
    }
    for (size_t i = 0; i + 1 < n; i++) {
        if (members[i]->shape[0] % o->block_rows == 0 || matching(o->include, o->n_include, members[i]->name) != NULL)
            continue;
        char why[160];
        snprintf(why, sizeof why,
                 "its %llu rows end inside a block of %u: loaders could not join the scales "
                 "(--include overrides)",
                 (unsigned long long)members[i]->shape[0], o->block_rows);
        return keep_group(c, members, n, members[i], why, arena, decisions, err);
    }
    return TSR_OK;
}

/* Fused 3-D gate|up experts: the seam between the halves must be the edge of a block. */
static tsr_status decide_fused_experts(const tsr_tensor *t, const tsr_policy_options *o, tsr_arena *arena,
                                       tsr_decision *decision, tsr_err *err)
{
    const uint64_t half = t->shape[1] / 2;
    if (t->rank != 3 || !tsr_glob_match("*gate_up_proj*", t->name) || half % o->block_rows == 0 ||
        matching(o->include, o->n_include, t->name) != NULL)
        return TSR_OK;
    *decision = (tsr_decision){TSR_KEEP, tsr_arena_printf(arena,
                                                          "gate and up meet at row %llu, inside a block of %u "
                                                          "(--include overrides)",
                                                          (unsigned long long)half, o->block_rows)};
    return decision->reason == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory") : TSR_OK;
}

tsr_status tsr_policy_decide(const tsr_checkpoint *c, const char *model_type, const tsr_policy_options *options,
                             tsr_arena *arena, tsr_decision *decisions, tsr_err *err)
{
    const size_t family = find_family(model_type);
    for (size_t i = 0; i < c->tensors.count; i++) {
        decisions[i] = decide_alone(&c->tensors.items[i], family, options, arena);
        if (decisions[i].reason == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        if (decisions[i].treatment == TSR_QUANTIZE)
            TSR_TRY(decide_fused_experts(t, options, arena, &decisions[i], err));
        TSR_TRY(decide_group(c, t, options, arena, decisions, err));
    }
    return TSR_OK;
}

bool tsr_policy_is_embedding(const char *name)
{
    const rule *const never = first_match(RULES(kNever), name);
    return never != NULL && never->treatment == TSR_KEEP_EMBEDDING;
}
