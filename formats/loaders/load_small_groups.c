/* Rules about NVFP4, MXFP4, MXFP8, AWQ and GPTQ: arguments of compressed-tensors, options of GPTQ, dtypes and bytes of
 * scales. Sources: compressed_tensors.py and its schemes, gptq_utils.py and deepseek_v2.py of vLLM, the same folders of
 * SGLang, and TensorRT-LLM's quant_config_utils.py. */
#include "formats/loaders/load_query.h"

#include "common/text.h"

#include <string.h>

/* Returns the first quantized layer whose kind has this prefix, or NULL. */
static const tsr_linear *first_of(const tsr_load_query *q, const char *kind)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale != NULL && tsr_query_reads(q, l) && strncmp(l->weight->kind->name, kind, strlen(kind)) == 0)
            return l;
    }
    return NULL;
}

/* ---- compressed-tensors ---- */

/* The arguments by which readers recognize a kind; they do not use "format". */
static const struct arguments {
    const char *kind, *bits, *group, *strategy, *scale_dtype; /* scale_dtype NULL: not checked */
} kArguments[] = {{"nvfp4-ct", "4", "16", "\"tensor_group\"", NULL},
                  {"mxfp4-ct", "4", "32", "\"group\"", NULL},
                  {"mxfp8", "8", "32", "\"group\"", "\"torch.uint8\""}};

static void check_arguments(const tsr_load_query *q, tsr_json_text group, const struct arguments *a)
{
    const tsr_linear *const l = first_of(q, a->kind);
    if (l == NULL || !tsr_json_says(group, "weights.num_bits", a->bits) ||
        !tsr_json_says(group, "weights.group_size", a->group) || !tsr_json_says(group, "weights.type", "\"float\""))
        return;
    if (!tsr_json_says(group, "weights.strategy", a->strategy))
        tsr_query_note(
            q, true, l->tensor->name, "arguments", "set the strategy that the format needs",
            "it is %s, but the strategy of its group in config_groups is not %s: the loader does not recognize its "
            "format",
            l->weight->kind->title, a->strategy);
    if (a->scale_dtype != NULL && !tsr_json_says(group, "weights.scale_dtype", a->scale_dtype))
        tsr_query_note(
            q, true, l->tensor->name, "arguments", "add \"scale_dtype\": \"torch.uint8\" to weights",
            "it is %s, but its group in config_groups has no scale_dtype %s, without which the loader reads it as "
            "FP8 in groups",
            l->weight->kind->title, a->scale_dtype);
}

/* Checks group order. vLLM supports 4-bit weights in activation order ("group", "dynamic") only from GPTQ;
 * compressed-tensors, which transformers uses, no longer supports that order. */
static void check_order(const tsr_load_query *q, tsr_json_text group)
{
    if ((q->loader == TSR_LOADER_VLLM || q->loader == TSR_LOADER_TRANSFORMERS) &&
        (tsr_json_says(group, "weights.actorder", "\"group\"") ||
         tsr_json_says(group, "weights.actorder", "\"dynamic\"")))
        tsr_query_note(q, true, NULL, "act-order", "make it with actorder \"static\", or without actorder",
                       "config_groups: weights has an actorder by groups, which this loader refuses");
}

/* Checks "format". It tells transformers how to unpack; for SGLang, any value with mxfp4 in it makes all experts
 * MXFP4. */
static void check_format(const tsr_load_query *q)
{
    static const struct {
        const char *kind, *format;
    } kFormats[] = {{"nvfp4-ct", "\"nvfp4-pack-quantized\""},
                    {"mxfp4-ct", "\"mxfp4-pack-quantized\""},
                    {"mxfp8", "\"mxfp8-quantized\""}};
    tsr_json_text value;
    const bool stated = tsr_json_get(q->config, "format", &value);
    if (stated && tsr_json_is(value, "\"mixed-precision\""))
        return;
    for (size_t i = 0; q->loader == TSR_LOADER_TRANSFORMERS && i < COUNT(kFormats); i++) {
        const tsr_linear *const l = first_of(q, kFormats[i].kind);
        if (l != NULL && !(stated && tsr_json_is(value, kFormats[i].format)))
            tsr_query_note(q, true, l->tensor->name, "configuration", "set the format in which the weights are stored",
                           "it is %s, but quantization_config.format is not %s, which the loader needs to choose how "
                           "to unpack it",
                           l->weight->kind->title, kFormats[i].format);
    }
}

static void check_experts_format(const tsr_load_query *q)
{
    const bool mxfp4 = memmem(q->config.data, q->config.size, "\"mxfp4-", 7) != NULL;
    for (size_t i = 0; q->loader == TSR_LOADER_SGLANG && mxfp4 && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->part == TSR_PART_ROUTED_EXPERTS && l->scale != NULL && strcmp(l->weight->kind->name, "mxfp4-ct") != 0)
            tsr_query_note(
                q, true, l->tensor->name, "configuration",
                "use one format for all experts, and MXFP4 for experts "
                "only",
                "it is %s, and a format in config.json is MXFP4: this loader then reads all experts as MXFP4",
                l->weight->kind->title);
    }
}

static void check_compressed_tensors(const tsr_load_query *q)
{
    tsr_json_text groups, group, name;
    check_format(q);
    check_experts_format(q);
    if (!tsr_json_get(q->config, "config_groups", &groups))
        return;
    tsr_json_reader r = tsr_json_members(groups);
    while (tsr_json_member(&r, &name, &group)) {
        check_order(q, group);
        for (size_t i = 0; i < COUNT(kArguments); i++)
            check_arguments(q, group, &kArguments[i]);
    }
}

/* ---- GPTQ ---- */

#define TO_INT4       "`tessera convert --to int4-weight-only` writes a supported format"
#define TO_INT4_ZEROS "`tessera convert --to int4-weight-only --zero-points` writes a supported format"

static void check_gptq(const tsr_load_query *q)
{
    const tsr_linear *const l = first_of(q, "gptq");
    tsr_json_text value;
    if (l == NULL || (!tsr_query_method(q, "gptq") && !tsr_query_method(q, "auto-round")))
        return;
    const bool whole = tsr_json_says(q->config, "group_size", "-1");
    if (q->loader == TSR_LOADER_VLLM && !tsr_json_says(q->config, "sym", "true"))
        tsr_query_note(q, true, l->tensor->name, "zero points", TO_INT4_ZEROS,
                       "config.json does not say sym true, and this loader supports symmetric GPTQ weights only");
    if (q->loader == TSR_LOADER_VLLM && tsr_json_says(q->config, "desc_act", "true") && !whole)
        tsr_query_note(q, true, l->tensor->name, "act-order", TO_INT4,
                       "config.json says desc_act with groups: the loader refuses weights in activation order");
    if (q->loader != TSR_LOADER_VLLM && tsr_json_says(q->config, "checkpoint_format", "\"gptq_v2\""))
        tsr_query_note(q, true, l->tensor->name, "zero points", TO_INT4_ZEROS,
                       "checkpoint_format is gptq_v2, whose zero points are stored without an offset: a reader of "
                       "the first format adds 1, and it is not known whether this loader does");
    if (!tsr_json_get(q->config, "bits", &value) || !tsr_json_get(q->config, "group_size", &value))
        tsr_query_note(q, true, NULL, "configuration", "add bits and group_size",
                       "quantization_config has no bits or no group_size, which every reader of GPTQ needs");
}

/* ---- scales ---- */

/* Checks dtypes of scales. vLLM and SGLang keep these scales as U8, except for gpt-oss and DeepSeek-V4. Copied values
 * are cast, so that 2^-7 becomes 0 instead of the byte 120. */
static void check_dtypes(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale == NULL || !tsr_query_reads(q, l) || l->scale->dtype != TSR_F8_E8M0 ||
            !tsr_kind_has_small_groups(l->weight->kind) || tsr_query_deepseek_v4(q) || tsr_query_method(q, "mxfp4"))
            continue;
        tsr_query_note(q, true, l->scale->name, "scale dtype",
                       "store the same bytes as U8, as tessera quantize does for this kind",
                       "it is F8_E8M0; the loader stores these scales as U8, and its copy would cast 2^-7 to 0");
    }
}

/* Reports a byte of 0, which is 2^-127: readers that shift it into an FP32 exponent get 0. */
static void check_zero_exponent(const tsr_load_query *q)
{
    if (q->loader == TSR_LOADER_SGLANG && q->s->zero_exponent != NULL)
        tsr_query_note(q, false, q->s->zero_exponent->name, "scale values",
                       "`tessera convert --to bf16` gives these values",
                       "value %llu is the byte 0, which means 2^-127, for codes that are not all zero: this loader "
                       "shifts the byte into an exponent and reads 0",
                       U64(q->s->zero_exponent_at));
}

/* Checks the indexer. vLLM joins wk with weights_proj in BF16, and dequantizes FP8 for that; it cannot dequantize 4-bit
 * codes, and has no place for a scale of the input. (deepseek_v2.py) */
static void check_indexer(const tsr_load_query *q)
{
    for (size_t i = 0; q->who->fuses && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale == NULL || !tsr_query_reads(q, l) || !tsr_ends_with(l->module, ".indexer.wk"))
            continue;
        if (q->loader == TSR_LOADER_VLLM && l->weight->input_scale != NULL)
            tsr_query_note(q, true, l->weight->input_scale->name, "indexer",
                           "keep indexer.wk in BF16 with `tessera quantize --exclude '*.indexer.wk.*'`",
                           "the loader joins indexer.wk with weights_proj, and has no place for its input scale");
        if (l->weight->bits == 4)
            tsr_query_note(q, true, l->tensor->name, "indexer", "keep it in BF16, as tessera quantize does",
                           "it has 4 bits; the loader joins it with weights_proj, for which it supports BF16 and FP8 "
                           "only");
    }
}

void tsr_rule_small_groups(const tsr_load_query *q)
{
    if (tsr_query_compressed_tensors(q) && q->config.data != NULL)
        check_compressed_tensors(q);
    if (q->config.data != NULL)
        check_gptq(q);
    check_dtypes(q);
    check_zero_exponent(q);
    check_indexer(q);
}
