/* The rules for every model, and the general rules for a model_type without a table. */
#include "quantize/policy/policy_rules.h"

#include "common/glob.h"
#include "common/options.h"

#include <string.h>

#define PROJECTOR "multimodal projector: engines run it unquantized"

/* Applied first, to every model: tensors that no FP8 loader expects to be quantized. */
static const tsr_rule kForAll[] = {
    {"*embed_tokens*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*word_embeddings*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"shared.weight", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*embed_positions*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*position_embeddings*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*token_type_embeddings*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"wte.*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"wpe.*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*.wte.*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*.wpe.*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*tok_embeddings*", TSR_KEEP_EMBEDDING, "embedding", false},
    {"*.bias", TSR_KEEP, "bias", false},
    {"*_bias", TSR_KEEP, "bias", false},
    {"*norm.*", TSR_KEEP, "norm", false},
    {"*norm?.*", TSR_KEEP, "norm", false},
    {"*.ln_*", TSR_KEEP, "norm", false},
    {"*layer_norm*", TSR_KEEP, "norm", false},
    {"*lm_head*", TSR_KEEP, "output head", false},
    {"*shared_head.head*", TSR_KEEP, "output head of the MTP layer", false},
    {"output.weight", TSR_KEEP, "output head", false},
    {"*eh_proj*", TSR_KEEP, "projection of the MTP layer: loaders read it in BF16", false},
    {"mtp.fc.*", TSR_KEEP, "projection of the MTP layer: loaders read it in BF16", false},
    {"*.mtp.fc.*", TSR_KEEP, "projection of the MTP layer: loaders read it in BF16", false},
    {"*.gate.*", TSR_KEEP, "router gate", false},
    {"*.router*", TSR_KEEP, "router", false},
    {"*router.*", TSR_KEEP, "router", false},
    {"*.shared_expert_gate.*", TSR_KEEP, "router gate", false},
    {"*indexer.weights_proj.*", TSR_KEEP, "indexer weights: loaders read them in BF16", false},
    {"*conv1d*", TSR_KEEP, "convolution", false},
    {"*.in_proj_ba.*", TSR_KEEP, "gates of linear attention, a row a head: engines run them unquantized", false},
    {"*.in_proj_a.*", TSR_KEEP, "gates of linear attention, a row a head: engines run them unquantized", false},
    {"*.in_proj_b.*", TSR_KEEP, "gates of linear attention, a row a head: engines run them unquantized", false},
    {"*.A_log", TSR_KEEP, "state-space parameters", false},
    {"*.dt_proj.*", TSR_KEEP, "state-space parameters", false},
    {"*.x_proj.*", TSR_KEEP, "state-space parameters", false},
    {"*vision*", TSR_KEEP, "vision tower: engines run it unquantized", false},
    {"visual.*", TSR_KEEP, "vision tower: engines run it unquantized", false},
    {"*.visual.*", TSR_KEEP, "vision tower: engines run it unquantized", false},
    {"*image_tower*", TSR_KEEP, "vision tower: engines run it unquantized", false},
    {"*video_tower*", TSR_KEEP, "vision tower: engines run it unquantized", false},
    {"*audio_tower*", TSR_KEEP, "audio tower: engines run it unquantized", false},
    {"*multi_modal_projector*", TSR_KEEP, PROJECTOR, false},
    {"*mm_projector*", TSR_KEEP, PROJECTOR, false},
    {"*.connector.*", TSR_KEEP, PROJECTOR, false},
    {"*aligner.*", TSR_KEEP, PROJECTOR, false},
    {"*merger.*", TSR_KEEP, PROJECTOR, false},
    {"*merger_list.*", TSR_KEEP, PROJECTOR, false},
    {"patch_merge_mlp.*", TSR_KEEP, PROJECTOR, false},
    {"*.projector.*", TSR_KEEP, PROJECTOR, false},
    {"*relative_attention_bias*", TSR_KEEP, "position bias", false},
    {"query.weight", TSR_KEEP, "learned queries", false},
};

/* The general rules, for a model_type without a table: experts by their whole names ... */
static const tsr_rule kGeneralExperts[] = {
    {"*.experts.*.w1.weight", TSR_QUANTIZE, "expert by its name (w1)", false},
    {"*.experts.*.w2.weight", TSR_QUANTIZE, "expert by its name (w2)", false},
    {"*.experts.*.w3.weight", TSR_QUANTIZE, "expert by its name (w3)", false},
};

/* ... and other layers by the last component of the module. */
#define MAYBE_CONV1D "a name of GPT-2's Conv1D, stored [in, out] (--include overrides)"

static const tsr_rule kGeneral[] = {
    {"c_attn.weight", TSR_KEEP, MAYBE_CONV1D, false},
    {"c_proj.weight", TSR_KEEP, MAYBE_CONV1D, false},
    {"c_fc.weight", TSR_KEEP, MAYBE_CONV1D, false},
    {"*_proj.weight", TSR_QUANTIZE, "linear by its name (*_proj)", false},
    {"*_proj_with_mqa.weight", TSR_QUANTIZE, "linear by its name (*_proj)", false},
    {"fc*.weight", TSR_QUANTIZE, "linear by its name (fc*)", false},
    {"query.weight", TSR_QUANTIZE, "linear by its name (query)", false},
    {"key.weight", TSR_QUANTIZE, "linear by its name (key)", false},
    {"value.weight", TSR_QUANTIZE, "linear by its name (value)", false},
    {"?_lin.weight", TSR_QUANTIZE, "linear by its name (*_lin)", false},
    {"out_lin.weight", TSR_QUANTIZE, "linear by its name (*_lin)", false},
    {"lin?.weight", TSR_QUANTIZE, "linear by its name (lin*)", false},
    {"w1.weight", TSR_QUANTIZE, "linear by its name (w1)", false},
    {"w2.weight", TSR_QUANTIZE, "linear by its name (w2)", false},
    {"w3.weight", TSR_QUANTIZE, "linear by its name (w3)", false},
    {"*dense*.weight", TSR_QUANTIZE, "linear by its name (dense)", false},
    {"*linear*.weight", TSR_QUANTIZE, "linear by its name (linear)", false},
};

#define TABLE(table)                        \
    {                                       \
        table, sizeof table / sizeof *table \
    }

static const tsr_rules kEveryModel = TABLE(kForAll);
static const tsr_rules kExpertsOfAny = TABLE(kGeneralExperts);
static const tsr_rules kLayersOfAny = TABLE(kGeneral);

static const tsr_rule *first_match(tsr_rules rules, const char *name)
{
    for (size_t i = 0; i < rules.count; i++) {
        if (tsr_glob_match(rules.items[i].pattern, name))
            return &rules.items[i];
    }
    return NULL;
}

tsr_rules tsr_rules_of_all(void)
{
    return kEveryModel;
}

tsr_rules tsr_general_expert_rules(void)
{
    return kExpertsOfAny;
}

tsr_rules tsr_general_rules(void)
{
    return kLayersOfAny;
}

const tsr_rule *tsr_rule_for_all(const char *name)
{
    return first_match(kEveryModel, name);
}

const tsr_policy_family *tsr_family_find(const char *model_type)
{
    size_t count;
    const tsr_policy_family *const all = tsr_families(&count);
    for (size_t i = 0; model_type != NULL && i < count; i++) {
        if (tsr_is_listed(all[i].model_types, model_type))
            return &all[i];
    }
    return NULL;
}

/* "q_proj.weight" of "model.layers.0.self_attn.q_proj.weight". */
static const char *last_component(const char *name)
{
    const char *at = strrchr(name, '.');
    while (at != NULL && at > name && at[-1] != '.')
        at--;
    return at == NULL ? name : at;
}

const tsr_rule *tsr_family_rule(const tsr_policy_family *family, bool four_bits, const char *name)
{
    if (family != NULL)
        return first_match(four_bits ? family->four_bits : family->rules, name);
    const tsr_rule *const expert = first_match(kExpertsOfAny, name);
    return expert != NULL ? expert : first_match(kLayersOfAny, last_component(name));
}
