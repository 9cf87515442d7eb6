/* Rules about experts and about single model classes that apply to one loader each. Each rule was observed by running
 * the loader's own code (tests/peers/loaders). */
#include "formats/loaders/load_query.h"

#include "common/glob.h"
#include "common/text.h"
#include "formats/checkpoint/config.h"
#include "formats/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- experts ---- */

static int by_module(const void *a, const void *b)
{
    return strcmp((*(const tsr_linear *const *)a)->module, (*(const tsr_linear *const *)b)->module);
}

/* Returns the layers that the loader reads, sorted by name, so that the layers of one decoder block are adjacent even
 * if they are in different files. Returns NULL when memory is exhausted; then `issues` is marked as failed. */
static const tsr_linear **sorted(const tsr_load_query *q, size_t *count)
{
    const tsr_linear **const all = malloc((q->linears->count + 1) * sizeof *all);
    *count = 0;
    q->issues->failed = q->issues->failed || all == NULL;
    for (size_t i = 0; all != NULL && i < q->linears->count; i++) {
        if (tsr_query_reads(q, &q->linears->items[i]))
            all[(*count)++] = &q->linears->items[i];
    }
    if (all != NULL)
        qsort(all, *count, sizeof *all, by_module);
    return all;
}

static bool is_alike(const tsr_linear *a, const tsr_linear *b)
{
    if (tsr_linear_is_quantized(a) != tsr_linear_is_quantized(b) || a->zero_points != b->zero_points)
        return false;
    return a->scale == NULL || b->scale == NULL ||
           (a->weight->kind == b->weight->kind && a->weight->bits == b->weight->bits);
}

/* Checks that all experts of a layer have the same format, because engines run them as one layer. (vLLM stops at a
 * mixture; SGLang leaves the memory of the others uninitialized.) */
static void check_together(const tsr_load_query *q, const tsr_linear *first, const tsr_linear *l)
{
    if (is_alike(first, l))
        return;
    tsr_query_note(q, true, l->tensor->name, "experts together",
                   "quantize all experts of a layer or none, as tessera quantize does",
                   "it is %s and '%s' %s; loaders read all experts of a layer in one format",
                   tsr_linear_is_quantized(l) ? "quantized" : "plain", first->tensor->name,
                   tsr_linear_is_quantized(first) == tsr_linear_is_quantized(l) ? "in another form"
                   : tsr_linear_is_quantized(first)                             ? "is quantized"
                                                                                : "is plain");
}

/* Checks the three matrices of a shared expert: SGLang applies the format of the first to all of them. */
static void check_shared(const tsr_load_query *q, const tsr_linear *first, const tsr_linear *l)
{
    if (q->loader == TSR_LOADER_SGLANG && tsr_linear_is_quantized(l) != tsr_linear_is_quantized(first))
        tsr_query_note(q, true, l->tensor->name, "experts together",
                       "quantize all of a shared expert or none, as tessera quantize does",
                       "it is %s and '%s' is not; the loader takes the format of a shared expert from its first "
                       "matrix",
                       tsr_linear_is_quantized(l) ? "quantized" : "plain", first->tensor->name);
}

static void check_groups(const tsr_load_query *q)
{
    size_t count, stem = 0;
    const tsr_linear **const all = sorted(q, &count), *first = NULL;
    for (size_t i = 0; all != NULL && i < count; i++) {
        const tsr_linear *const l = all[i];
        const bool shared = l->part == TSR_PART_SHARED_EXPERTS && strstr(l->module, "shared_experts.") != NULL;
        const size_t own = shared ? (size_t)(l->leaf - l->module) : tsr_query_experts_length(l);
        if (own == 0)
            continue;
        if (first == NULL || own != stem || strncmp(first->module, l->module, stem) != 0) {
            first = l;
            stem = own;
        } else if (shared) {
            check_shared(q, first, l);
        } else {
            check_together(q, first, l);
        }
    }
    free(all);
}

/* Returns true if a tensor of rank 3 holds the experts of a layer, not the taps of a convolution. */
static bool is_stack(const tsr_linear *l)
{
    return l->matrices > 1 && l->part == TSR_PART_ROUTED_EXPERTS;
}

/* Families for which vLLM's own loader reads FP8 experts in one tensor, with their scales in another. */
static const char kVllmStacks[] = " llama4 llama4_text qwen3_5_moe qwen3_5_moe_text ";

/* Families whose classes read stacks but no single experts: in transformers by conversion_mapping.py, and gpt-oss in
 * all loaders (vLLM's and SGLang's gpt_oss.py). */
static const char kStacksOnly[] =
    " gpt_oss llama4 llama4_text qwen3_vl_moe qwen3_vl_moe_text granitemoe granitemoeshared hy_v4 ";
static const char kGptOss[] = " gpt_oss ";

#define TOGETHER "`tessera convert --to bf16 --experts stack` stacks them"
#define APART    "`tessera convert --to fp8-block --experts split` splits them"
#define AS_STACK "`tessera convert --to bf16` makes plain stacks of them"
#define TURNED   "`tessera convert --to bf16` and then `tessera quantize --experts split` splits them"

/* Rejects experts that are stored one by one if the loader reads only a stack. */
static void check_single(const tsr_load_query *q)
{
    const bool stacks = tsr_query_family(q, q->loader == TSR_LOADER_TRANSFORMERS ? kStacksOnly : kGptOss);
    for (size_t i = 0; stacks && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->part == TSR_PART_ROUTED_EXPERTS && l->tensor->rank == 2 && tsr_query_reads(q, l)) {
            tsr_query_note(
                q, true, l->tensor->name, "stacked experts", TOGETHER,
                "it is a single expert of '%.40s', but the loader reads the experts of this model as one tensor for "
                "each layer",
                q->family);
            return;
        }
    }
}

/* Reports FP8 in a stack that the loader cannot read, or only in the other orientation. */
static void check_fp8_stack(const tsr_load_query *q, const tsr_linear *l)
{
    const bool turned = tsr_query_family(q, " llama4 llama4_text qwen3_vl_moe qwen3_vl_moe_text ");
    if (tsr_query_family(q, kGptOss))
        tsr_query_note(
            q, true, l->tensor->name, "stacked experts", AS_STACK,
            "this model's experts are [experts, in, out], and the loader reads plain stacks of them, or MXFP4 in its "
            "own layout: it applies other scales transposed, or ignores them");
    else if (q->loader == TSR_LOADER_TRANSFORMERS && turned)
        tsr_query_note(q, true, l->tensor->name, "stacked experts", AS_STACK,
                       "this model's experts are [experts, in, out]: the loader applies scales transposed, or "
                       "initializes the experts randomly, without an error");
    else if (q->loader == TSR_LOADER_TRANSFORMERS)
        tsr_query_note(
            q, true, l->tensor->name, "stacked experts", AS_STACK,
            "it is a stack of %llu experts: on a GPU without FP8 the loader ignores the scales and uses the codes as "
            "values, without an error",
            U64(l->matrices));
    else if (!(q->loader == TSR_LOADER_VLLM && tsr_query_family(q, kVllmStacks)))
        tsr_query_note(q, true, l->tensor->name, "stacked experts", turned ? TURNED : APART,
                       "it reads each expert from its own tensor, not from a stack of %llu", U64(l->matrices));
}

static void check_stacks(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (!tsr_linear_is_quantized(l) || l->tensor->rank != 3 || !tsr_query_reads(q, l))
            continue;
        if (!is_stack(l))
            tsr_query_note(q, true, l->tensor->name, "convolution", "keep it in BF16, as tessera quantize does",
                           "it has three dimensions but is not a stack of experts; no loader reads codes of it");
        else if (l->scale != NULL && l->weight->transposed)
            continue; /* gpt-oss is stacked for every loader */
        else if (!tsr_linear_is_fp8(l))
            tsr_query_note(q, true, l->tensor->name, "stacked experts", APART,
                           "it is %s in a stack of %llu experts; as a stack, only gpt-oss's layout is read",
                           l->weight->kind->title, U64(l->matrices));
        else
            check_fp8_stack(q, l);
    }
}

void tsr_rule_experts(const tsr_load_query *q)
{
    if (q->who->fuses || q->loader == TSR_LOADER_TRANSFORMERS)
        check_groups(q);
    check_single(q);
    check_stacks(q);
}

/* ---- classes ---- */

/* Returns the first quantized layer for which `is` returns true. */
static const tsr_linear *find_quantized(const tsr_load_query *q, bool (*is)(const tsr_linear *))
{
    for (size_t i = 0; i < q->linears->count; i++) {
        if (tsr_linear_is_quantized(&q->linears->items[i]) && tsr_query_reads(q, &q->linears->items[i]) &&
            is(&q->linears->items[i]))
            return &q->linears->items[i];
    }
    return NULL;
}

static bool is_any(const tsr_linear *l)
{
    (void)l;
    return true;
}

static bool is_expert(const tsr_linear *l)
{
    return l->part == TSR_PART_ROUTED_EXPERTS && l->matrices == 1;
}

static bool is_block_expert(const tsr_linear *l)
{
    return is_expert(l) && tsr_linear_is_fp8(l) && l->block.rows != 0;
}

static bool is_int8_expert(const tsr_linear *l)
{
    return is_expert(l) && l->coding == TSR_CODED_INT8;
}

static bool is_shifted_expert(const tsr_linear *l)
{
    return is_expert(l) && l->coding == TSR_CODED_PACKED && l->zero_points;
}

static bool is_packed_latent(const tsr_linear *l)
{
    return l->coding == TSR_CODED_PACKED &&
           (strcmp(l->leaf, "q_a_proj") == 0 || strcmp(l->leaf, "kv_a_proj_with_mqa") == 0);
}

static bool is_packed_expert(const tsr_linear *l)
{
    return is_expert(l) && l->coding == TSR_CODED_PACKED;
}

/* Returns true for a shared expert whose codes are not in a parameter called "weight". */
static bool is_packed_shared(const tsr_linear *l)
{
    return l->part == TSR_PART_SHARED_EXPERTS && !tsr_ends_with(l->weight->data->name, ".weight");
}

/* Reports expert formats that the loader's own methods do not support. */
static void check_sglang_experts(const tsr_load_query *q)
{
    static const char kGlm[] = " glm4_moe glm4_moe_lite ";
    const tsr_linear *l = find_quantized(q, is_packed_expert);
    tsr_json_text format;
    if (l != NULL && tsr_query_compressed_tensors(q) && q->config.data != NULL &&
        tsr_json_find(q->config.data, q->config.size, "format", &format) && !tsr_json_is(format, "\"pack-quantized\""))
        tsr_query_note(q, true, l->tensor->name, "experts",
                       "use `tessera quantize --scheme int4-weight-only`, or a rule with another scheme for experts",
                       "it is packed, and the format of the whole checkpoint is %.*s: the loader reads packed "
                       "integers of experts only if that is pack-quantized",
                       (int)format.size, format.data);
    l = find_quantized(q, is_packed_shared);
    if (l != NULL && tsr_query_family(q, kGlm) && !tsr_query_method(q, "awq"))
        tsr_query_note(
            q, true, l->tensor->name, "experts",
            "keep shared experts in BF16 with `tessera quantize --exclude GLOB`, or use another scheme for them",
            "it is %s: the class of '%.40s' needs a parameter 'weight' of a shared expert, which packed codes do not "
            "have",
            l->weight->kind->title, q->family);
}

/* Returns true for a projection of linear attention whose codes are not in a parameter called "weight". */
static bool is_packed_linear_attention(const tsr_linear *l)
{
    return strstr(l->module, ".linear_attn.in_proj") != NULL && !tsr_ends_with(l->weight->data->name, ".weight");
}

/* Returns true for ModelOpt's NVFP4 in a projection of linear attention. */
static bool is_nvfp4_linear_attention(const tsr_linear *l)
{
    return strstr(l->module, ".linear_attn.in_proj") != NULL && strcmp(l->weight->kind->name, "nvfp4-modelopt") == 0;
}

static bool is_query_key_value(const tsr_linear *l)
{
    return l->fused != NULL && strcmp(l->fused->name, "qkv_proj") == 0;
}

/* Reports Qwen3-Next in ModelOpt's dialect. Its class has four scales of each kind for in_proj_qkvz but loads only one,
 * or stops. It builds q, k and v unquantized, except in MIXED_PRECISION. (qwen3_next.py) */
static void check_qwen3_next(const tsr_load_query *q)
{
    static const char kKeep[] = "keep attention in BF16 with `tessera quantize --exclude '*_attn.*'`";
    const tsr_linear *l = find_quantized(q, is_nvfp4_linear_attention);
    if (l != NULL)
        tsr_query_note(q, true, l->tensor->name, "kind", kKeep,
                       "it is %s: the class of '%.40s' joins four layers but needs one global scale for them: it "
                       "refuses a scale of inputs, and without one leaves three of the global scales uninitialized",
                       l->weight->kind->title, q->family);
    l = q->mixed ? NULL : find_quantized(q, is_query_key_value);
    if (l != NULL)
        tsr_query_note(q, true, l->tensor->name, "kind", kKeep,
                       "it is %s: for this dialect the class of '%.40s' builds q, k and v unquantized",
                       l->weight->kind->title, q->family);
}

static bool is_routed(const tsr_linear *l)
{
    return l->part == TSR_PART_ROUTED_EXPERTS;
}

/* Reports limits of single classes of SGLang. */
static void check_sglang_models(const tsr_load_query *q)
{
    tsr_json_text text;
    const tsr_linear *l = find_quantized(q, is_packed_linear_attention);
    if (l != NULL && tsr_query_family(q, " qwen3_next "))
        tsr_query_note(q, true, l->tensor->name, "weight_shape",
                       "keep linear attention in BF16 with `tessera quantize --exclude '*.linear_attn.*'`",
                       "it is %s: the class of '%.40s' needs a parameter 'weight' of linear attention, which packed "
                       "codes do not have",
                       l->weight->kind->title, q->family);
    if (tsr_query_family(q, " qwen3_next ") && tsr_query_method(q, "modelopt"))
        check_qwen3_next(q);
    l = find_quantized(q, is_routed);
    if (l != NULL && tsr_query_family(q, " llama4_text ") && !tsr_config_find(q->s->checkpoint, "text_config", &text))
        tsr_query_note(q, true, l->tensor->name, "experts",
                       "use another loader, or the whole Llama 4 with its vision tower",
                       "Llama4ForCausalLM, the class of the text model alone, does not load experts and reports no "
                       "error");
}

static void check_sglang(const tsr_load_query *q)
{
    /* models/llama.py, and the classes that inherit its load_weights */
    static const char kRenamed[] = " llama mistral mistral3 phi3 internlm3 iquestcoder ministral3 teleflm ";
    const bool ct = tsr_query_compressed_tensors(q);
    const tsr_linear *l = find_quantized(q, is_any);
    if (l != NULL && !ct && (q->block || tsr_query_method(q, "mxfp8")) && tsr_query_family(q, kRenamed))
        tsr_query_note(q, true, l->tensor->name, "scale name",
                       "use `tessera quantize --dialect compressed-tensors`, or `tessera convert --to fp8-block "
                       "--dialect compressed-tensors`",
                       "the class of '%.40s' renames weight_scale_inv to weight_scale, and then loads no scale at all",
                       q->family);
    check_sglang_experts(q);
    check_sglang_models(q);
    l = ct ? find_quantized(q, is_int8_expert) : NULL;
    if (l != NULL)
        tsr_query_note(q, true, l->tensor->name, "experts", "use another scheme for this loader",
                       "it is int8 with a scale a row: the loader runs such experts on NPUs only");
    l = ct ? find_quantized(q, is_shifted_expert) : NULL;
    if (l != NULL)
        tsr_query_note(q, true, l->tensor->name, "zero points", "quantize without --zero-points",
                       "it has zero points, which the loader does not support for experts");
    l = ct && q->s->model->q_lora_rank > 0 ? find_quantized(q, is_packed_latent) : NULL;
    if (l != NULL)
        tsr_query_note(q, true, l->tensor->name, "weight_shape",
                       "keep q_a_proj and kv_a_proj_with_mqa in BF16 with `tessera quantize --exclude GLOB`",
                       "it is packed: the loader joins q_a_proj and kv_a_proj_with_mqa, and then fails at "
                       "weight_shape");
}

static bool is_nvfp4_expert(const tsr_linear *l)
{
    return is_expert(l) && l->scale != NULL && strcmp(l->weight->kind->name, "nvfp4-ct") == 0;
}

static bool is_mxfp8_expert(const tsr_linear *l)
{
    return is_expert(l) && l->scale != NULL && strcmp(l->weight->kind->name, "mxfp8") == 0;
}

/* Returns true for a single column of blocks, from which compressed-tensors' own code infers one scale per row. */
static bool is_column_of_blocks(const tsr_linear *l)
{
    return tsr_linear_is_fp8(l) && l->block.rows != 0 && l->grid_cols == 1 && l->grid_rows > 1;
}

/* Returns a BF16 stack in a checkpoint whose other layers are quantized, or NULL. */
static const tsr_linear *find_plain_stack(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        if (!tsr_linear_is_quantized(&q->linears->items[i]) && q->linears->items[i].matrices > 1 &&
            q->linears->items[i].part == TSR_PART_ROUTED_EXPERTS)
            return &q->linears->items[i];
    }
    return NULL;
}

/* Layers that transformers renames, joins or splits while loading, without their scales. Observed with 5.23.0
 * (tests/peers/loaders/check_families.py); the rules are in its conversion_mapping.py. */
static const struct {
    const char *families, *modules; /* model_types separated by spaces; a glob of modules */
    bool packed;                    /* only if the codes are not in a parameter called "weight" */
    const char *why;
} kUnconverted[] = {
    {" gte ", "*up_gate_proj", false, "splits this layer while loading, but not its scales"},
    {" gte ", "*qkv_proj", false, "splits this layer while loading, but not its scales"},
    {" hrm_text molmo2 molmo2_text qianfan_ocr unlimited_ocr ", "*", false,
     "has a conversion for this model that splits joined layers, but only those without scales"},
    {" ernie4_5_vl_moe ", "*.experts.*", false, "joins and splits the experts of this model without their scales"},
    {" olmo_hybrid step3p7 ", "*", true, "has a conversion for this model that fails for packed codes"},
};

static void check_conversions(const tsr_load_query *q)
{
    for (size_t k = 0; k < COUNT(kUnconverted); k++) {
        if (!tsr_query_model(q, kUnconverted[k].families))
            continue;
        for (size_t i = 0; i < q->linears->count; i++) {
            const tsr_linear *const l = &q->linears->items[i];
            if (!tsr_linear_is_quantized(l) || !tsr_glob_match(kUnconverted[k].modules, l->module) ||
                (kUnconverted[k].packed && tsr_ends_with(l->weight->data->name, ".weight")))
                continue;
            tsr_query_note(q, true, l->tensor->name, "conversion",
                           "use another loader, or `tessera convert --to "
                           "bf16`",
                           "it is %s: the loader %s; it fails, or uses codes as values", l->weight->kind->title,
                           kUnconverted[k].why);
            break;
        }
    }
}

static void check_transformers(const tsr_load_query *q)
{
    static const char kJoin[] = "the loader cannot join such experts";
    static const struct {
        bool (*is)(const tsr_linear *);
        const char *what, *why;
    } kForms[] = {
        {is_block_expert, "e4m3 in blocks", kJoin},
        {is_int8_expert, "int8 with a scale a row", kJoin},
        {is_shifted_expert, "packed with zero points", kJoin},
        {is_mxfp8_expert, "MXFP8", kJoin},
        {is_nvfp4_expert, "NVFP4", "the loader joins such experts without their global scales, and reports no error"},
        {is_column_of_blocks, "one column of blocks", "the loader reads their scales as scales of rows"}};
    for (size_t i = 0; tsr_query_compressed_tensors(q) && i < sizeof kForms / sizeof *kForms; i++) {
        const tsr_linear *const l = find_quantized(q, kForms[i].is);
        if (l != NULL)
            tsr_query_note(q, true, l->tensor->name, "experts",
                           "use --dialect deepseek, or another scheme for this "
                           "loader",
                           "it is %s, of compressed-tensors: %s", kForms[i].what, kForms[i].why);
    }
    check_conversions(q);
    const tsr_linear *const stack = find_plain_stack(q);
    if (stack != NULL && q->config.data != NULL && tsr_query_family(q, " gpt_oss llama4 llama4_text "))
        tsr_query_note(
            q, true, stack->tensor->name, "stacked experts",
            "quantize for another loader, or keep the whole model in BF16",
            "it is plain in a quantized checkpoint: the loader then initializes this model's experts randomly, "
            "without an error");
}

/* Checks the router, which vLLM builds as a quantized layer for these families unless the ignore list names it. */
static void check_router(const tsr_load_query *q)
{
    const tsr_weights *const all = q->s->weights;
    if (q->config.data == NULL || all->n_scaled == 0 || !tsr_query_family(q, " qwen3_moe lfm2_moe ") ||
        (!tsr_query_compressed_tensors(q) && !tsr_query_fp8(q)))
        return;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = all->items[i].values;
        char module[1200];
        if (!tsr_glob_match("*.mlp.gate.weight", t->name) || all->items[i].scale != NULL)
            continue;
        snprintf(module, sizeof module, "%.*s", (int)tsr_module_length(t->name), t->name);
        if (tsr_ignore_list_find(q->ignored, tsr_query_compressed_tensors(q) ? TSR_MATCH_REGEX : TSR_MATCH_EXACT,
                                 module) == NULL)
            tsr_query_note(q, true, t->name, "ignore list",
                           "list it under modules_to_not_convert (compressed-tensors: ignore)",
                           "the router is %s but config.json does not list it: the loader expects it to be quantized",
                           tsr_dtype_name((tsr_dtype)t->dtype));
    }
}

/* Checks the small projections of linear attention, of which each rank gets only a few rows. */
static void check_linear_attention(const tsr_load_query *q)
{
    static const char kSmall[] = " in_proj_ba in_proj_a in_proj_b ";
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        char word[64];
        snprintf(word, sizeof word, " %.60s ", l->leaf);
        if (tsr_linear_is_fp8(l) && l->block.rows != 0 && strstr(kSmall, word) != NULL && q->who->fuses &&
            l->rows / 2 % l->block.rows != 0)
            tsr_query_note(q, true, l->tensor->name, "blocks", "keep it in BF16, as tessera quantize does",
                           "%llu rows hold two parts of %llu, and a part ends inside a block of %llu", U64(l->rows),
                           U64(l->rows / 2), U64(l->block.rows));
    }
}

void tsr_rule_classes(const tsr_load_query *q)
{
    if (q->loader == TSR_LOADER_SGLANG)
        check_sglang(q);
    if (q->loader == TSR_LOADER_TRANSFORMERS)
        check_transformers(q);
    if (q->loader == TSR_LOADER_VLLM)
        check_router(q);
    check_linear_attention(q);
}
