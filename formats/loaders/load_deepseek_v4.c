/* Rules for DeepSeek-V4 and V4.1 with their own names: where loaders read the dtype of the experts, what they assume
 * without it, the dtype of the scales, and requirements of their classes for single layers. */
#include "formats/loaders/load_query.h"

#include "common/text.h"
#include "formats/checkpoint/config.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 1200 };

#define AT_THE_TOP "at the top of config.json"
#define INSIDE     "inside quantization_config"
#define TO_MXFP8   "`tessera convert --to mxfp8 --dialect deepseek` writes a supported format"

/* Where a loader reads expert_dtype, and the bits that it assumes for experts without it; 0: it uses the first expert's
 * dtype. (vLLM's deepseek_v4_fp8, which moves V4.1's key to the top level; transformers' configuration_deepseek_v4.py,
 * which moves V4's key down; FineGrainedFP8Config.) */
typedef struct habit {
    bool top, inside;
    unsigned otherwise;
} habit;

static habit habit_of(const tsr_load_query *q)
{
    const bool v41 = tsr_query_family(q, " deepseek_v41 deepseek_v41_text ");
    if (q->loader == TSR_LOADER_VLLM)
        return (habit){true, v41, 4};
    if (q->loader == TSR_LOADER_TRANSFORMERS)
        return (habit){!v41, true, 8};
    return (habit){false, false, 0};
}

static const tsr_linear *first_expert(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->part == TSR_PART_ROUTED_EXPERTS && l->scale != NULL && !l->mtp)
            return l;
    }
    return NULL;
}

static void check_expert_dtype(const tsr_load_query *q, const tsr_linear *expert)
{
    const habit h = habit_of(q);
    const unsigned bits = expert->weight->bits;
    tsr_json_text value;
    const bool top = tsr_config_find_model(q->s->checkpoint, "expert_dtype", &value) && !tsr_json_is(value, "null");
    const bool inside = tsr_json_get(q->config, "expert_dtype", &value);
    if (h.otherwise == 0 || expert->weight->global_scale != NULL || (top && h.top) || (inside && h.inside))
        return;
    const char *const where = h.top && h.inside ? AT_THE_TOP " or " INSIDE : h.top ? AT_THE_TOP : INSIDE;
    const char *const advice =
        bits == 4
            ? "write \"expert_dtype\": \"fp4\" at the top of config.json, and for V4.1 inside quantization_config"
            : "write \"expert_dtype\": \"fp8\" at the top of config.json, and for V4.1 inside quantization_config";
    if (h.otherwise != bits)
        tsr_query_note(q, true, expert->tensor->name, "expert_dtype", advice,
                       "it is FP%u, but expert_dtype is not %s, where this loader looks: it then reads experts as "
                       "FP%u",
                       bits, where, h.otherwise);
    else
        tsr_query_note(
            q, false, expert->tensor->name, "expert_dtype", advice,
            "expert_dtype is not %s: this loader then reads experts as FP%u, which is correct; others read them as "
            "FP%u",
            where, bits, bits == 4 ? 8 : 4);
}

/* Checks the dtypes of scales. With FP8 experts, vLLM stores their scales as F32 and reads the bytes of F8_E8M0 as
 * numbers: 120 instead of 2^-7, without an error. With FP4 experts, all its scales are F8_E8M0, to which F32 is
 * rounded. */
static void check_scale_dtypes(const tsr_load_query *q, const tsr_linear *expert)
{
    const unsigned bits = expert->weight->bits;
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (!tsr_linear_is_fp8(l))
            continue;
        if (bits == 8 && l->part == TSR_PART_ROUTED_EXPERTS && l->weight->scale_dtype == TSR_F8_E8M0)
            tsr_query_note(q, true, l->scale->name, "scale dtype", "store the same powers of two as F32",
                           "it is %s beside experts in FP8: the loader reads its bytes as numbers (120 for 2^-7), "
                           "without an error; it supports F32",
                           tsr_dtype_name((tsr_dtype)l->scale->dtype));
        if (bits == 4 && l->scale->dtype == TSR_F32 && l->scale == q->s->odd_scale)
            tsr_query_note(q, true, l->scale->name, "scale dtype", "round the scales to powers of two, as F8_E8M0",
                           "it is F32 and not a power of two, beside experts in FP4: the loader stores all scales as "
                           "F8_E8M0");
    }
}

/* Checks V4.1's n-gram tables, from which rows are looked up and then multiplied. (vLLM's common/engram.py, SGLang's
 * layers/engram.py) */
static void check_tables(const tsr_load_query *q)
{
    const tsr_weights *const all = q->s->weights;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = all->items[i].data;
        if (all->items[i].scale == NULL && strstr(t->name, ".engram.embed.weight") != NULL)
            tsr_query_note(q, true, t->name, "kind", "run `tessera quantize` on the unquantized model",
                           "it is %s: the loader reads this table as e4m3 with a scale for 32 columns",
                           tsr_dtype_name((tsr_dtype)t->dtype));
    }
}

/* Checks the first half of the output projection. These classes do not build a layer for it but use it as an operand,
 * unquantized or for DeepGEMM. (vLLM's ops/o_proj.py, SGLang's deepseek_v4.py) */
static void check_output(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale != NULL && strcmp(l->leaf, "wo_a") == 0 && tsr_query_reads(q, l) &&
            !(tsr_linear_is_fp8(l) && l->block.rows > 1))
            tsr_query_note(q, true, l->tensor->name, "operand",
                           "convert it again: convert and quantize leave it in BF16",
                           "it is %s: the class of '%.40s' multiplies by it directly, and supports BF16 and block "
                           "e4m3 only",
                           l->weight->kind->title, q->family);
    }
}

static bool in_blocks_of_128(const tsr_linear *l)
{
    return tsr_linear_is_fp8(l) && l->block.rows == 128;
}

/* Checks wo_a for SGLang. With FP8 in blocks of 128, SGLang multiplies by wo_a in FP8: it rejects an unquantized one,
 * and arranges its scales as o_groups matrices of o_lora_rank rows. (deepseek_v4.py: wo_a_fp8_gemm_enabled,
 * _setup_fp8_wo_a_scales) */
static void check_output_in_fp8(const tsr_load_query *q)
{
    uint64_t rank = 0;
    bool blocks = false;
    for (size_t i = 0; i < q->linears->count; i++)
        blocks = blocks || in_blocks_of_128(&q->linears->items[i]);
    const bool stated = tsr_config_find_u64(q->s->checkpoint, "o_lora_rank", &rank);
    for (size_t i = 0; blocks && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (strcmp(l->leaf, "wo_a") != 0 || !tsr_query_reads(q, l))
            continue;
        if (!tsr_linear_is_quantized(l))
            tsr_query_note(
                q, true, l->tensor->name, "operand", TO_MXFP8,
                "it is %s: if quant_method is fp8 with blocks of 128, the class of '%.40s' supports e4m3 only",
                tsr_dtype_name((tsr_dtype)l->tensor->dtype), q->family);
        else if (in_blocks_of_128(l) && ((stated && rank % 128 != 0) || l->cols % 128 != 0))
            tsr_query_note(q, true, l->tensor->name, "operand", TO_MXFP8,
                           "o_lora_rank is %llu, and it has %llu columns: the class of '%.40s' divides its scales "
                           "among groups in whole blocks of 128",
                           (unsigned long long)rank, (unsigned long long)l->cols, q->family);
    }
}

/* The layers that SGLang builds as quantized unless the list excludes them: last component of the name on disk and in
 * SGLang. */
static const struct built {
    const char *leaf, *own;
} kBuilt[] = {{"wq_a", "wqkv_a"},     {"wkv", "wqkv_a"},      {"wq_b", "wq_b"},   {"wo_b", "wo_b"},
              {"w1", "gate_up_proj"}, {"w3", "gate_up_proj"}, {"w2", "down_proj"}};

/* Writes the name under which SGLang builds a layer to `name`. Returns false if it does not look up this layer. */
static bool built_name(const tsr_linear *l, char *name, size_t size)
{
    const char *const attention = strstr(l->module, ".attn."), *const mlp = strstr(l->module, ".ffn.");
    const char *const at = attention != NULL ? attention : mlp;
    if (at == NULL || l->mtp || strstr(l->module, ".compressor.") != NULL)
        return false;
    const char *const inside = at + strlen(attention != NULL ? ".attn." : ".ffn.");
    for (size_t i = 0; i < COUNT(kBuilt); i++) {
        if (strcmp(l->leaf, kBuilt[i].leaf) != 0)
            continue;
        snprintf(name, size, "model.%.*s.%s.%.*s%s", (int)(at - l->module), l->module,
                 attention != NULL ? "self_attn" : "mlp", (int)(l->leaf - inside), inside, kBuilt[i].own);
        return true;
    }
    return false;
}

bool tsr_deepseek_v4_asks(const tsr_load_query *q, const tsr_linear *l)
{
    char name[MAX_NAME];
    return q->loader == TSR_LOADER_SGLANG && tsr_query_deepseek_v4(q) && built_name(l, name, sizeof name);
}

static void check_name(const tsr_load_query *q, const tsr_linear *l, const char *built)
{
    const tsr_matching matching = tsr_query_compressed_tensors(q)   ? TSR_MATCH_SUFFIX_REGEX
                                  : tsr_query_method(q, "modelopt") ? TSR_MATCH_GLOB
                                                                    : TSR_MATCH_PATH;
    const char *const entry = tsr_ignore_list_find(q->ignored, matching, built);
    if (tsr_linear_is_quantized(l) && entry != NULL)
        tsr_query_note(q, true, l->module, "ignore list", "remove the entry, or name modules in full",
                       "it is quantized, but '%s' matches '%s', the name under which the class of '%.40s' builds it: "
                       "the loader would read it as plain",
                       entry, built, q->family);
    if (!tsr_linear_is_quantized(l) && entry == NULL)
        tsr_query_note(q, true, l->module, "ignore list", "list that name too",
                       "it is %s, but no entry matches '%s', the name under which the class of '%.40s' builds it: "
                       "the loader would expect it to be quantized",
                       tsr_dtype_name((tsr_dtype)l->tensor->dtype), built, q->family);
}

/* Checks names for SGLang. It joins wq_a with wkv only under the names "weight" and "weight_scale_inv" (.scale on disk)
 * and ignores others. It looks up unquantized layers under its own names. (deepseek_v4.py: load_weights) */
static void check_names(const tsr_load_query *q)
{
    const bool named = tsr_query_method(q, "mxfp8");
    char built[MAX_NAME];
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (!tsr_query_reads(q, l) || !built_name(l, built, sizeof built))
            continue;
        check_name(q, l, built);
        if (!named && tsr_linear_is_quantized(l) && tsr_ends_with(built, ".wqkv_a"))
            tsr_query_note(
                q, true, l->tensor->name, "scale name", TO_MXFP8,
                "it is %s under quant_method %s: the class of '%.40s' joins wq_a and wkv only by the names weight "
                "and weight_scale_inv, and skips all others without an error",
                l->weight->kind->title, q->s->weights->method, q->family);
    }
}

static void check_sglang(const tsr_load_query *q)
{
    if (tsr_query_fp8(q))
        check_output_in_fp8(q);
    else if (q->config.data != NULL)
        check_names(q);
}

/* Checks names for transformers. It looks up its own names (lm_head, model.layers.0.self_attn.o_a_proj) in
 * compressed-tensors' ignore list, and does not report a layer that it builds as quantized but finds unquantized. */
static void check_transformers(const tsr_load_query *q)
{
    for (size_t i = 0; tsr_query_compressed_tensors(q) && i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale == NULL || !tsr_query_reads(q, l))
            continue;
        tsr_query_note(
            q, true, l->tensor->name, "kind", TO_MXFP8,
            "it is %s under quant_method 'compressed-tensors': the class of '%.40s' uses its own names (lm_head, "
            "self_attn.o_a_proj), so modules that ignore lists by the release's names are expected to be quantized",
            l->weight->kind->title, q->family);
        return;
    }
}

void tsr_rule_deepseek_v4(const tsr_load_query *q)
{
    if (tsr_query_deepseek_v4(q) && q->loader == TSR_LOADER_TRANSFORMERS)
        check_transformers(q);
    if (tsr_query_deepseek_v4(q) && q->loader != TSR_LOADER_TRANSFORMERS)
        check_output(q);
    if (tsr_query_deepseek_v4(q) && q->loader == TSR_LOADER_SGLANG)
        check_sglang(q);
    const tsr_linear *const expert = tsr_query_deepseek_v4(q) && tsr_query_method(q, "fp8") ? first_expert(q) : NULL;
    if (expert == NULL)
        return;
    if (q->loader == TSR_LOADER_VLLM || q->loader == TSR_LOADER_SGLANG)
        check_tables(q);
    check_expert_dtype(q, expert);
    if (q->loader == TSR_LOADER_VLLM)
        check_scale_dtypes(q, expert);
}
