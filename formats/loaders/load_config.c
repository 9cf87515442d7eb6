/* Rules about names, dtypes and configuration: the keys of config.json that loaders need, and whether they match the
 * tensors. */
#include "formats/loaders/load_query.h"

#include "common/glob.h"
#include "formats/checkpoint/config.h"
#include "formats/weights/quantization_members.h"

#include <stdio.h>
#include <string.h>

/* ---- the model ---- */

/* A size of the model, with its key in each family. */
enum { MAX_SPELLINGS = 16 };
typedef struct size_key {
    const char *const names[MAX_SPELLINGS];
} size_key;

static const size_key kHidden = {{"hidden_size", "d_model", "n_embd", "dim", "embed_dim", "model_dim", "emb_dim",
                                  "hidden_sizes", "embed_dims", "out_dims"}};
static const size_key kLayers = {{"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
                                  "decoder_layers", "num_decoder_layers", "depth", "depths", "num_blocks",
                                  "layers_block_type", "block_types", "num_spatial_layers", "num_attention_layers",
                                  "neck_hidden_sizes", "decoder_num_layers"}};
static const size_key kHeads = {{"num_attention_heads", "attention_heads", "n_head", "n_heads", "num_heads",
                                 "encoder_attention_heads", "decoder_attention_heads", "num_query_heads",
                                 "self_attn_heads", "attention_hidden_size"}};

static bool has_key(const tsr_load_query *q, const char *key)
{
    tsr_json_text value;
    return tsr_config_find(q->s->checkpoint, key, &value) && !tsr_json_is(value, "null") && !tsr_json_is(value, "[]");
}

/* Returns true if config.json has one of the keys, or a key that ends in one of the first two, such as
 * encoder_num_hidden_layers. */
static bool has_size(const tsr_load_query *q, const size_key *key)
{
    tsr_json_reader r =
        tsr_json_members((tsr_json_text){.data = q->s->checkpoint->config, .size = q->s->checkpoint->config_size});
    tsr_json_text found, value;
    while (tsr_json_member(&r, &found, &value)) {
        for (size_t i = 0; i < MAX_SPELLINGS && key->names[i] != NULL; i++) {
            const size_t n = strlen(key->names[i]);
            if ((found.size == n || (i < 2 && found.size > n)) &&
                memcmp(found.data + found.size - n, key->names[i], n) == 0 && !tsr_json_is(value, "null"))
                return true;
        }
    }
    return false;
}

/* Returns true if config.json holds the configurations of several models. Their sizes may then be the defaults of a
 * class. */
static bool is_composite(const tsr_load_query *q)
{
    const tsr_checkpoint *const c = q->s->checkpoint;
    tsr_json_reader r = tsr_json_members((tsr_json_text){.data = c->config, .size = c->config_size});
    tsr_json_text key, value;
    while (tsr_json_member(&r, &key, &value)) {
        tsr_json_text type;
        if (value.data[0] == '{' && tsr_json_find(value.data, value.size, "model_type", &type))
            return true;
    }
    return false;
}

static void note_no_key(const tsr_load_query *q, const char *key)
{
    tsr_query_note(q, true, NULL, "configuration", "copy config.json from the original",
                   "config.json has no '%s', without which the loader cannot build the model", key);
}

/* Keys that a class of an engine reads without a default. Released files have them, but files saved by transformers 5
 * may lack them. The class then stops, whether or not the model is quantized. */
static const struct {
    tsr_loader loader;
    const char *model_type, *key;
} kClassKeys[] = {
    {TSR_LOADER_SGLANG, "\"deepseek_v3\"", "moe_layer_freq"},
    {TSR_LOADER_SGLANG, "\"qwen3_next\"", "full_attention_interval"},
    {TSR_LOADER_SGLANG, "\"qwen3_5_moe\"", "full_attention_interval"},
    {TSR_LOADER_SGLANG, "\"gpt_oss\"", "swiglu_limit"},
    {TSR_LOADER_VLLM, "\"minimax_m2\"", "rotary_dim"},
    {TSR_LOADER_VLLM, "\"minimax_m2\"", "scoring_func"},
};

static void check_class_keys(const tsr_load_query *q)
{
    for (size_t i = 0; i < sizeof kClassKeys / sizeof *kClassKeys; i++) {
        tsr_json_text type, value;
        const char *const key = kClassKeys[i].key;
        char within[64];
        snprintf(within, sizeof within, "text_config.%s", key);
        if (q->loader == kClassKeys[i].loader && tsr_config_find(q->s->checkpoint, "model_type", &type) &&
            tsr_json_is(type, kClassKeys[i].model_type) && !tsr_config_find(q->s->checkpoint, key, &value) &&
            !tsr_config_find(q->s->checkpoint, within, &value))
            tsr_query_note(q, false, NULL, "configuration", "copy config.json from the original",
                           "config.json has no '%s', which the class of this model_type reads without a default", key);
    }
}

/* Rejects a config.json that does not describe a complete model. */
static void check_model(const tsr_load_query *q)
{
    bool attention = false;
    if (q->s->checkpoint->config == NULL || q->loader == TSR_LOADER_DEEPSEEK)
        return;
    if (has_key(q, "_class_name") && !has_key(q, "model_type")) {
        tsr_query_note(q, true, NULL, "configuration", NULL,
                       "config.json has '_class_name' but no 'model_type': a diffusers model, which none of these "
                       "loaders reads");
        return;
    }
    if (!has_key(q, "model_type"))
        note_no_key(q, "model_type");
    if (!has_key(q, "architectures") && q->loader != TSR_LOADER_TRANSFORMERS)
        note_no_key(q, "architectures");
    for (size_t i = 0; i < q->linears->count; i++)
        attention = attention || q->linears->items[i].part == TSR_PART_ATTENTION;
    if (is_composite(q))
        return;
    if (!has_size(q, &kHidden))
        note_no_key(q, kHidden.names[0]);
    if (!has_size(q, &kLayers))
        note_no_key(q, kLayers.names[0]);
    if (attention && !has_size(q, &kHeads))
        note_no_key(q, kHeads.names[0]);
}

/* ---- the quantization ---- */

/* Returns true if quantization_config states no quant_method and the loader needs it. For ModelOpt's object, vLLM sets
 * it, and TensorRT-LLM reads hf_quant_config.json. */
static bool lacks_method(const tsr_load_query *q)
{
    tsr_json_text value;
    if (q->config.data == q->side.data || tsr_json_get(q->config, "quant_method", &value))
        return false;
    const bool modelopt = q->s->weights->method != NULL;
    return !(modelopt && q->loader == TSR_LOADER_VLLM) &&
           !(modelopt && q->loader == TSR_LOADER_TRTLLM && q->side.data != NULL);
}

static void check_method(const tsr_load_query *q)
{
    const tsr_weights *const w = q->s->weights;
    if (q->loader == TSR_LOADER_DEEPSEEK)
        return;
    if (w->n_scaled > 0 && q->config.data == NULL)
        tsr_query_note(
            q, true, NULL, "configuration", "add the quantization_config that belongs to these weights",
            "%zu weights are codes with scales, but config.json has no quantization_config: loaders would read the "
            "codes as plain weights",
            w->n_scaled);
    if (q->config.data == NULL)
        return;
    if (w->n_scaled == 0 && !q->s->unsound)
        tsr_query_note(q, true, NULL, "configuration", "remove quantization_config from config.json",
                       "config.json says quant_method '%s', but no weight is quantized",
                       w->method == NULL ? "" : w->method);
    if (lacks_method(q))
        tsr_query_note(q, true, NULL, "configuration",
                       w->method == NULL ? "add \"quant_method\": \"fp8\"" : "add \"quant_method\": \"modelopt\"",
                       "quantization_config has no quant_method");
    else if (tsr_query_method(q, "fp8") && !tsr_query_fp8(q))
        tsr_query_note(q, true, NULL, "configuration", "write \"fp8\" in lower case",
                       "it does not read quant_method '%s'", w->method);
}

static bool find(const tsr_load_query *q, const char *key, tsr_json_text *value)
{
    return tsr_config_find_in(q->s->checkpoint, q->config, key, value) && !tsr_json_is(*value, "null");
}

static void check_fp8_config(const tsr_load_query *q)
{
    tsr_json_text value;
    if (!find(q, "activation_scheme", &value))
        tsr_query_note(q, true, NULL, "configuration", "add \"activation_scheme\": \"dynamic\"",
                       "quantization_config has no activation_scheme");
    else if (q->block && !tsr_json_is(value, "\"dynamic\""))
        tsr_query_note(q, true, NULL, "configuration", "set \"activation_scheme\": \"dynamic\"",
                       "activation_scheme is %.*s; blocks need \"dynamic\"", (int)value.size, value.data);
    if (q->block && !find(q, "weight_block_size", &value))
        tsr_query_note(q, true, NULL, "configuration", "add \"weight_block_size\": [128, 128]",
                       "quantization_config has no weight_block_size; without it the loader expects one scale a "
                       "tensor");
}

/* Checks that every key of the object is one of `known`, because the loader's own schema forbids others. Reports the
 * first unknown one. */
static void check_keys(const tsr_load_query *q, tsr_json_text object, const char *where, const char *known)
{
    tsr_json_reader r = tsr_json_members(object);
    tsr_json_text key, value;
    if (q->loader != TSR_LOADER_TRTLLM && tsr_next_unknown_member(&r, known, &key, &value))
        tsr_query_note(q, true, NULL, "configuration", "take the key out",
                       "config_groups: %s has the key '%.*s', and the loader refuses unknown keys", where,
                       (int)key.size, key.data);
}

/* Checks zero points: loaders require them exactly if the configuration says "symmetric": false. */
static void check_symmetry(const tsr_load_query *q, tsr_json_text weights)
{
    tsr_json_text value;
    const bool stated = tsr_config_find_in(q->s->checkpoint, weights, "symmetric", &value);
    const bool symmetric = !stated || !tsr_json_is(value, "false");
    const tsr_linear *odd = NULL;
    for (size_t i = 0; i < q->linears->count && odd == NULL; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        odd = tsr_linear_is_quantized(l) && l->zero_points == symmetric ? l : NULL;
    }
    if (odd != NULL && q->n_targets == 1)
        tsr_query_note(q, true, odd->tensor->name, "zero points", "set \"symmetric\" to match the weights",
                       "config_groups says symmetric %s, but it has %s zero points", symmetric ? "true" : "false",
                       odd->zero_points ? "" : "no");
}

static bool states_block(const tsr_load_query *q, tsr_json_text weights)
{
    tsr_json_text value;
    return tsr_config_find_in(q->s->checkpoint, weights, "strategy", &value) && tsr_json_is(value, "\"block\"");
}

static void check_group(const tsr_load_query *q, tsr_json_text group)
{
    tsr_json_text value;
    check_keys(q, group, "a group", TSR_MEMBERS_GROUP);
    if (!tsr_config_find_in(q->s->checkpoint, group, "weights", &value) || value.data[0] != '{') {
        tsr_query_note(q, true, NULL, "configuration", NULL, "config_groups: a group without weights");
        return;
    }
    check_keys(q, value, "weights", TSR_MEMBERS_ARGUMENTS);
    check_symmetry(q, value);
    if (tsr_json_says(value, "dynamic", "true"))
        tsr_query_note(
            q, true, NULL, "configuration", "set \"dynamic\" of the weights to false",
            "config_groups says that scales of weights are dynamic: the loader does not read the stored ones");
    /* With several groups, only those that state blocks are checked for blocks. */
    const bool block = q->block && (q->n_targets == 1 || states_block(q, value));
    if (block && (!tsr_config_find_in(q->s->checkpoint, value, "strategy", &value) || !tsr_json_is(value, "\"block\"")))
        tsr_query_note(q, true, NULL, "configuration", "set strategy to \"block\"",
                       "config_groups: the strategy is not \"block\"");
    const bool inputs =
        tsr_config_find_in(q->s->checkpoint, group, "input_activations", &value) && value.data[0] == '{';
    if (inputs)
        check_keys(q, value, "input_activations", TSR_MEMBERS_ARGUMENTS);
    if (block &&
        (!inputs || !tsr_config_find_in(q->s->checkpoint, value, "dynamic", &value) || !tsr_json_is(value, "true")))
        tsr_query_note(q, true, NULL, "configuration",
                       "set input_activations to strategy group, group_size 128, "
                       "dynamic",
                       "config_groups: blocks need dynamic input_activations");
}

/* Returns true if the layer is FP8 or integers. load_small_groups.c checks "format" for the other kinds. */
static bool has_old_format(const tsr_linear *l)
{
    return tsr_linear_is_fp8(l) || tsr_linear_is_integers(l);
}

/* Checks "format", the storage of the weights. With mixed-precision, each group has its own. */
static void check_format(const tsr_load_query *q)
{
    static const char *const kFormats[] = {[TSR_CODED_E4M3] = "\"float-quantized\"",
                                           [TSR_CODED_INT8] = "\"int-quantized\"",
                                           [TSR_CODED_PACKED] = "\"pack-quantized\""};
    tsr_json_text value;
    const bool stated = find(q, "format", &value);
    if (stated && tsr_json_is(value, "\"mixed-precision\""))
        return;
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_coding coding = q->linears->items[i].coding;
        if (coding == TSR_PLAIN || !has_old_format(&q->linears->items[i]) ||
            (stated && tsr_json_is(value, kFormats[coding])) ||
            (stated && coding != TSR_CODED_PACKED && tsr_json_is(value, "\"naive-quantized\"")))
            continue;
        tsr_query_note(q, true, q->linears->items[i].tensor->name, "configuration",
                       "set the format in which the weights are stored",
                       "quantization_config.format is not %s, the format of its weight", kFormats[coding]);
        return;
    }
}

/* Checks that engines can run this form of W8A8: _get_scheme_from_parts in compressed_tensors.py of vLLM and SGLang. */
static void check_int8(const tsr_load_query *q, const tsr_linear *l)
{
    if (l->coding != TSR_CODED_INT8 || q->loader == TSR_LOADER_TRANSFORMERS)
        return;
    if (l->zero_points)
        tsr_query_note(q, true, l->tensor->name, "zero points", "quantize symmetrically, or weight-only",
                       "it is int8 with zero points, but int8 GEMMs need symmetric weights");
    if (l->block.rows != 0)
        tsr_query_note(q, true, l->tensor->name, "groups",
                       "pack groups with `tessera quantize --scheme int8-weight-only --group-size 128`",
                       "it is int8 in groups of %llu, but int8 GEMMs need one scale a channel or a tensor",
                       U64(l->block.cols));
}

/* Checks quantization_status: transformers takes codes for values unless it is "compressed"; absent, it counts as
 * "initialized" (is_quantization_compressed of quantization_config.py). */
static void check_status(const tsr_load_query *q)
{
    tsr_json_text value;
    if (q->loader == TSR_LOADER_TRANSFORMERS &&
        (!find(q, "quantization_status", &value) || !tsr_json_is(value, "\"compressed\"")))
        tsr_query_note(q, true, NULL, "configuration", "set \"quantization_status\": \"compressed\"",
                       "quantization_status is not \"compressed\": the loader takes codes for values");
}

static void check_compressed_tensors_config(const tsr_load_query *q)
{
    check_status(q);
    tsr_json_text value, group, name;
    check_format(q);
    if (!find(q, "config_groups", &value)) {
        tsr_query_note(q, true, NULL, "configuration", NULL, "quantization_config has no config_groups");
        return;
    }
    tsr_json_reader r = tsr_json_members(value);
    for (size_t n = 0; n < TSR_LOAD_GROUPS && tsr_json_member(&r, &name, &group); n++)
        check_group(q, group);
}

/* Checks the members that select a loader's code. If they are wrong, the loader expects other tensors or leaves some
 * uninitialized. */
static void check_words(const tsr_load_query *q)
{
    const tsr_weights *const w = q->s->weights;
    for (size_t i = 0; i < w->count; i++) {
        const tsr_weight *const x = &w->items[i];
        if (x->odd != NULL && strncmp(x->odd, "format", 6) != 0)
            tsr_query_note(q, true, x->data->name, "configuration", NULL, "config.json says %s", x->odd);
    }
}

void tsr_rule_config(const tsr_load_query *q)
{
    check_model(q);
    check_class_keys(q);
    check_method(q);
    if (q->config.data == NULL || q->s->weights->n_scaled == 0 || q->s->weights->method == NULL)
        return;
    if (q->loader == TSR_LOADER_DEEPSEEK)
        return;
    if (tsr_query_compressed_tensors(q) && q->who->compressed_tensors) {
        check_compressed_tensors_config(q);
        check_words(q);
    } else if (tsr_query_fp8(q))
        check_fp8_config(q);
}

/* Reports a padded grid of scales. Engines require the exact shape that they compute, and transformers derives the
 * block size from the grid. */
static void check_padding(const tsr_load_query *q, const tsr_linear *l)
{
    const tsr_tensor *const s = l->scale;
    if (!tsr_linear_is_fp8(l) || l->block.rows == 0 || s->rank != 2 || q->loader == TSR_LOADER_DEEPSEEK ||
        (s->shape[s->rank - 2] == l->grid_rows && s->shape[s->rank - 1] == l->grid_cols))
        return;
    tsr_query_note(q, true, s->name, "padded scales",
                   "write grids without padding with `tessera convert --to "
                   "fp8-block`",
                   "it is [%llu, %llu], but the weight has %llu x %llu blocks, and the loader accepts no padding",
                   U64(s->shape[s->rank - 2]), U64(s->shape[s->rank - 1]), U64(l->grid_rows), U64(l->grid_cols));
}

/* Reports static input scales if activations are quantized dynamically: vLLM has no parameter for them and stops. */
static void check_input_scales(const tsr_load_query *q)
{
    tsr_json_text value;
    if (q->loader != TSR_LOADER_VLLM || q->config.data == NULL || !tsr_query_fp8(q) ||
        !find(q, "activation_scheme", &value) || !tsr_json_is(value, "\"dynamic\""))
        return;
    for (size_t i = 0; i < q->s->weights->count; i++) {
        const tsr_weight *const w = &q->s->weights->items[i];
        if (w->input_scale != NULL)
            tsr_query_note(q, true, w->input_scale->name, "input scale",
                           "remove it with `tessera convert --to fp8-block`",
                           "activation_scheme is \"dynamic\", but the inputs have a static scale");
    }
}

/* Reports int4 experts of SGLang without a stored scale of the input, which the loader then takes as 1. */
static void check_no_input_scale(const tsr_load_query *q)
{
    for (size_t i = 0; q->loader == TSR_LOADER_SGLANG && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (!tsr_linear_is_kind(l, "int4-sglang") || l->weight->input_scale != NULL)
            continue;
        tsr_query_note(q, false, l->tensor->name, "input scale",
                       "store the scale of each expert's input, as tessera quantize does",
                       "it has no input_scale, in whose place the loader takes 1");
        return;
    }
}

/* Checks the name under which the loader looks for the scale of X.weight. Kinds with only one name were checked during
 * pairing. */
static void check_scale_name(const tsr_load_query *q, const tsr_linear *l)
{
    const bool native = tsr_query_deepseek_v4(q) && tsr_query_method(q, "fp8"), mxfp8 = tsr_query_method(q, "mxfp8");
    const bool ct = (tsr_query_compressed_tensors(q) && q->who->compressed_tensors) || tsr_query_method(q, "modelopt");
    const char *const suffix = native                     ? ".scale"
                               : mxfp8                    ? "_scale_inv"
                               : ct || l->block.rows == 0 ? "_scale"
                                                          : "_scale_inv";
    const int n = (int)(native ? tsr_module_length(l->tensor->name) : strlen(l->tensor->name));
    const bool one_name = !tsr_linear_is_fp8(l) && !tsr_linear_is_integers(l) && l->coding != TSR_CODED_E4M3;
    if (one_name ||
        (strncmp(l->scale->name, l->tensor->name, (size_t)n) == 0 && strcmp(l->scale->name + n, suffix) == 0))
        return;
    tsr_query_note(q, true, l->scale->name, "scale name",
                   native ? NULL
                          : "rename the scales, without requantizing, with `tessera convert --to fp8-block "
                            "--dialect NAME`",
                   "it looks for '%.*s%s'; a scale of another name is not loaded", n, l->tensor->name, suffix);
}

/* Returns true if the loader supports FP8 blocks of 128x128 only. (DeepSeek's kernels; TensorRT-LLM's model_config.py,
 * which asserts it, and quant_config_utils.py; SGLang's W4AFp8Config, which does not read the size.) */
static bool has_one_block_size(const tsr_load_query *q)
{
    return q->loader == TSR_LOADER_DEEPSEEK || q->loader == TSR_LOADER_TRTLLM ||
           (q->loader == TSR_LOADER_SGLANG && tsr_query_method(q, "w4afp8"));
}

static void check_block_size(const tsr_load_query *q, const tsr_linear *l)
{
    const bool pairs = tsr_linear_is_kind(l, "int4-sglang") && q->loader == TSR_LOADER_SGLANG;
    if (pairs && l->block.cols != 128)
        tsr_query_note(q, true, l->tensor->name, "group size", "use `tessera convert --to w4afp8`",
                       "groups are of %llu columns, but the loader supports 128 only and does not read group_size",
                       U64(l->block.cols));
    if (!has_one_block_size(q) || l->block.rows == 0 || !tsr_linear_is_fp8(l) ||
        (l->block.rows == 128 && l->block.cols == 128))
        return;
    tsr_query_note(q, true, l->tensor->name, "block size", "use `tessera convert --to fp8-block --block 128x128`",
                   "blocks are %llux%llu, but the loader supports 128x128 only", U64(l->block.rows),
                   U64(l->block.cols));
}

/* Checks the names and dtypes of scales. */
void tsr_rule_scales(const tsr_load_query *q)
{
    check_input_scales(q);
    check_no_input_scale(q);
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale == NULL || !tsr_query_reads(q, l))
            continue;
        check_int8(q, l);
        check_padding(q, l);
        check_scale_name(q, l);
        if (tsr_linear_is_fp8(l) && l->scale->dtype == TSR_F8_E8M0 && !q->who->any_e8m0 &&
            !(q->who->stated_e8m0 && q->s->weights->ue8m0))
            tsr_query_note(q, true, l->scale->name, "scale dtype", "store the scales as F32 powers of two",
                           "the scale is F8_E8M0; it reads F32");
        check_block_size(q, l);
    }
    if (q->s->weights->ue8m0 && q->s->odd_scale != NULL && q->who->trusts_ue8m0)
        tsr_query_note(
            q, true, q->s->odd_scale->name, "scale_fmt",
            "remove scale_fmt, or run `tessera convert --to fp8-block --scale-fmt ue8m0`",
            "config.json says scale_fmt ue8m0, but its scales are not powers of two: loaders refuse them, cut them "
            "to their exponent, or trap on Blackwell");
    if (q->s->weights->ue8m0 && q->loader == TSR_LOADER_TRANSFORMERS && q->s->odd_scale == NULL)
        tsr_query_note(q, false, NULL, "scale_fmt", "remove scale_fmt if Blackwell is not a target",
                       "with scale_fmt ue8m0, the newest version allocates its scales as F8_E8M0 and casts the F32 "
                       "ones");
}

void tsr_rule_dtypes(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->s->weights->count; i++) {
        const tsr_tensor *const t = q->s->weights->items[i].data;
        if (tsr_glob_match("*.e_score_correction_bias", t->name) && t->dtype != TSR_F32)
            tsr_query_note(q, false, t->name, "router bias", "copy it from the original, in F32",
                           "it is %s; rounded from F32, it routes tokens to other experts",
                           tsr_dtype_name((tsr_dtype)t->dtype));
    }
}
