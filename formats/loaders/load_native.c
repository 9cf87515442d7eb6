/* DeepSeek-V4 and V4.1 under their own names: where loaders look for the dtype of the experts, what they take it for when
 * nobody says, and which dtype of scales goes with it. */
#include "formats/loaders/load_query.h"

#include "formats/checkpoint/config.h"

#include <string.h>

#define AT_THE_TOP "at the top of config.json"
#define INSIDE     "inside quantization_config"

/* Where a loader looks for expert_dtype, and how many bits it takes experts for that nobody speaks of; 0: it looks at the
 * first expert's dtype. (vLLM's deepseek_v4_fp8, which lifts V4.1's key up; transformers' configuration_deepseek_v4.py,
 * which moves V4's down, and FineGrainedFP8Config.) */
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
                       "it is FP%u, and expert_dtype does not stand %s, where this loader looks: it takes experts for "
                       "FP%u then",
                       bits, where, h.otherwise);
    else
        tsr_query_note(
            q, false, expert->tensor->name, "expert_dtype", advice,
            "expert_dtype does not stand %s: this loader takes experts for FP%u then, which they are; others "
            "take them for FP%u",
            where, bits, bits == 4 ? 8 : 4);
}

/* With experts in FP8, vLLM's scales of experts are F32, and the bytes of F8_E8M0 are taken for numbers: 120 in place of
 * 2^-7, without an error. With experts in FP4, all its scales are F8_E8M0, to which F32 is rounded. */
static void check_scale_dtypes(const tsr_load_query *q, const tsr_linear *expert)
{
    const unsigned bits = expert->weight->bits;
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale == NULL || !tsr_linear_is_fp8(l))
            continue;
        if (bits == 8 && l->part == TSR_PART_ROUTED_EXPERTS && l->weight->scale_dtype == TSR_F8_E8M0)
            tsr_query_note(q, true, l->scale->name, "scale dtype", "store the same powers of two as F32",
                           "it is %s beside experts in FP8: the loader takes its bytes for numbers (120 for 2^-7), "
                           "and says nothing; it reads F32",
                           tsr_dtype_name((tsr_dtype)l->scale->dtype));
        if (bits == 4 && l->scale->dtype == TSR_F32 && l->scale == q->s->odd_scale)
            tsr_query_note(q, true, l->scale->name, "scale dtype", "round the scales to powers of two, as F8_E8M0",
                           "it is F32 and no power of two, beside experts in FP4: the loader keeps all scales as "
                           "F8_E8M0");
    }
}

/* V4.1's n-gram tables, which are looked up and then multiplied. (vLLM's common/engram.py, SGLang's layers/engram.py) */
static void check_tables(const tsr_load_query *q)
{
    const tsr_weights *const all = q->s->weights;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = all->items[i].data;
        if (all->items[i].scale == NULL && strstr(t->name, ".engram.embed.weight") != NULL)
            tsr_query_note(q, true, t->name, "kind", "`tessera quantize` of the unquantized model makes it so",
                           "it is %s: the loader reads this table as e4m3 with a scale for 32 columns",
                           tsr_dtype_name((tsr_dtype)t->dtype));
    }
}

/* The first half of the output projection is no layer to these classes but an operand of theirs, plain or for DeepGEMM.
 * (vLLM's ops/o_proj.py, SGLang's deepseek_v4.py) */
static void check_output(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        if (l->scale != NULL && strcmp(l->leaf, "wo_a") == 0 && tsr_query_reads(q, l) &&
            !(tsr_linear_is_fp8(l) && l->block.rows > 1))
            tsr_query_note(q, true, l->tensor->name, "operand",
                           "convert it anew: convert and quantize leave it in BF16",
                           "it is %s: the class of '%.40s' multiplies by it without asking a layer, and knows BF16 and "
                           "e4m3 in blocks",
                           l->weight->kind->title, q->family);
    }
}

void tsr_rule_native(const tsr_load_query *q)
{
    if (tsr_query_native(q) && q->loader != TSR_LOADER_TRANSFORMERS)
        check_output(q);
    const tsr_linear *const expert = tsr_query_native(q) && tsr_query_method(q, "fp8") ? first_expert(q) : NULL;
    if (expert == NULL)
        return;
    if (q->loader == TSR_LOADER_VLLM || q->loader == TSR_LOADER_SGLANG)
        check_tables(q);
    check_expert_dtype(q, expert);
    if (q->loader == TSR_LOADER_VLLM)
        check_scale_dtypes(q, expert);
}
