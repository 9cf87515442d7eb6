/* Which loader reads which kind of weights under which quant_method, as one table. Its answer for a pair is used before
 * any other rule. Sources: the quantization folders of vLLM, SGLang and transformers, and TensorRT-LLM's
 * quant_config_utils.py, in the versions that loaders.c states. */
#include "formats/loaders/load_query.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The reason why a loader does not read a pair, with a remedy. `why` is NULL if it reads the pair. */
typedef struct answer {
    const char *why, *advice;
} answer;

typedef struct reading {
    const char *kinds, *method;                                 /* words of tsr_weight_kind.name, separated by spaces */
    bool (*when)(const tsr_load_query *q, const tsr_weight *w); /* NULL: always */
    answer of[TSR_LOADER_COUNT];
} reading;

/* ---- conditions ---- */

static bool is_native(const tsr_load_query *q, const tsr_weight *w)
{
    (void)w;
    return tsr_query_deepseek_v4(q);
}

static bool is_table(const tsr_load_query *q, const tsr_weight *w)
{
    return tsr_query_deepseek_v4(q) && strstr(w->values->name, ".engram.") != NULL;
}

static bool is_gpt_oss(const tsr_load_query *q, const tsr_weight *w)
{
    (void)w;
    return tsr_query_family(q, " gpt_oss ");
}

static bool is_expert(const tsr_load_query *q, const tsr_weight *w)
{
    (void)q;
    return tsr_part_of(w->values->name) == TSR_PART_ROUTED_EXPERTS;
}

/* Returns true for an expert whose class in SGLang takes weight_packed for weight. (kimi_k3.py) */
static bool is_renamed_expert(const tsr_load_query *q, const tsr_weight *w)
{
    return is_expert(q, w) && tsr_query_family(q, " kimi_k3 ");
}

static bool is_linear_w4afp8(const tsr_load_query *q, const tsr_weight *w)
{
    return tsr_query_w4afp8(q, w) && !is_expert(q, w);
}

static bool is_weight_only(const tsr_load_query *q, const tsr_weight *w)
{
    (void)q;
    return w->input_scale == NULL;
}

static bool is_mixed(const tsr_load_query *q, const tsr_weight *w)
{
    (void)w;
    return q->mixed;
}

/* Returns true for scales that SGLang keeps as weight_scale_inv. Only DeepSeek's loader renames the stored ones, for
 * layers that it does not join and for q_a and kv_a. */
static bool is_mixed_deepseek(const tsr_load_query *q, const tsr_weight *w)
{
    return is_mixed(q, w) && tsr_part_of(w->values->name) == TSR_PART_ATTENTION &&
           tsr_query_family(q, " deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 ");
}

/* Returns true for scales that vLLM keeps as weight_scale, ModelOpt's name. Only this class renames the stored ones. */
static bool is_minimax(const tsr_load_query *q, const tsr_weight *w)
{
    (void)w;
    return tsr_query_family(q, " minimax_m3 minimax_m3_text minimax_m3_vl ");
}

static bool is_v41(const tsr_load_query *q, const tsr_weight *w)
{
    (void)w;
    return tsr_query_family(q, " deepseek_v41 deepseek_v41_text ");
}

static bool is_moe_nvfp4(const tsr_load_query *q, const tsr_weight *w)
{
    return q->nvfp4_experts && is_expert(q, w);
}

/* ---- the table; the first row that matches a weight applies ---- */

#define YES        \
    {              \
        NULL, NULL \
    }
#define NO(why, help) \
    {                 \
        why, help     \
    }

#define MAKES(target) "`tessera convert --to " target "` writes a supported format"

#define TO_BF16           "`tessera convert --to bf16` writes plain weights"
#define TO_FP8            MAKES("fp8-block")
#define TO_CT_MXFP4       MAKES("mxfp4-weight-only")
#define TO_INT4           MAKES("int4-weight-only")
#define TO_W4AFP8         MAKES("w4afp8")
#define TO_NVFP4          MAKES("nvfp4-weight-only")
#define TO_NVFP4_MODELOPT MAKES("nvfp4-weight-only --dialect modelopt")
#define TO_MXFP8          MAKES("mxfp8")
#define TO_MXFP8_METHOD   MAKES("mxfp8 --dialect deepseek")
#define TO_MXFP8_MODELOPT MAKES("mxfp8 --dialect modelopt")

#define V3 NO("DeepSeek-V3's own code reads FP8 in blocks and BF16", TO_FP8)
#define V4_CODE                                                                                             \
    NO("these rules are those of DeepSeek-V3's code; they do not cover the inference code of this release", \
       "check with its own inference/convert.py")
#define NO_V41        NO("it has no class for deepseek_v41", "use another loader; it supports deepseek_v4 only")
#define NOT_KNOWN(to) NO("it is not known whether this loader reads it: it was neither run nor read for it", to)

#define NO_W4AFP8 "it does not support quant_method w4afp8, which is SGLang's"

#define FP8 " fp8-block fp8-channel fp8-tensor "

/* In the order of tsr_loader: vllm, sglang, transformers, deepseek, trtllm. */
static const reading kReadings[] = {
    /* DeepSeek-V4, V4.1 and models derived from them */
    {" mxfp8 ", "fp8", is_table, {YES, YES, NO_V41, V4_CODE, NOT_KNOWN(TO_BF16)}},
    {FP8 " mxfp4-v4 ", "fp8", is_v41, {YES, YES, NO_V41, V4_CODE, NOT_KNOWN(TO_BF16)}},
    {FP8, "fp8", is_native, {YES, YES, YES, V4_CODE, NOT_KNOWN(TO_BF16)}},
    {" mxfp4-v4 ", "fp8", is_native, {YES, YES, YES, V4_CODE, NOT_KNOWN(TO_BF16)}},
    {" mxfp4-v4 ",
     "fp8",
     NULL,
     {NO("MXFP4 under quant_method fp8 is read by the classes of deepseek_v4 and deepseek_v41 only", TO_CT_MXFP4),
      NO("MXFP4 under quant_method fp8 is read by the classes of deepseek_v4 and deepseek_v41 only", TO_NVFP4),
      NO("MXFP4 under quant_method fp8 is read by the classes of deepseek_v4 and deepseek_v41 only", TO_CT_MXFP4), V3,
      NOT_KNOWN(TO_NVFP4_MODELOPT)}},
    {" nvfp4-modelopt ",
     "fp8",
     is_moe_nvfp4,
     {YES, YES, NO("it does not support NVFP4 in ModelOpt's dialect", TO_NVFP4), V4_CODE,
      NOT_KNOWN(TO_NVFP4_MODELOPT)}},
    /* block FP8, FP8 per row, FP8 per tensor: covered by the other rules */
    {FP8, "fp8", NULL, {YES, YES, YES, YES, YES}},
    {" fp8-tensor ",
     "compressed-tensors",
     NULL,
     {YES, YES, YES, YES, NO("of compressed-tensors' FP8 it supports a scale a row, and blocks of 128x128", TO_FP8)}},
    {FP8, "compressed-tensors", NULL, {YES, YES, YES, YES, YES}},
    {" fp8-tensor ", "modelopt", NULL, {YES, YES, NO("it does not support ModelOpt's dialect", TO_FP8), V3, YES}},
    {FP8,
     "modelopt",
     NULL,
     {YES, NO("of ModelOpt's FP8 it supports one scale a tensor only", TO_FP8),
      NO("it does not support ModelOpt's dialect", TO_FP8), V3, YES}},
    /* integers */
    {" int4-ct ",
     "compressed-tensors",
     is_linear_w4afp8,
     {YES, NO("with quantized inputs (w4afp8) it supports int4 for routed experts, but not for linear layers", TO_INT4),
      NO("it does not load int4 with quantized inputs (w4afp8)", TO_INT4), V3,
      NO("it does not support the integers of compressed-tensors", TO_NVFP4_MODELOPT)}},
    {" int4-ct ",
     "compressed-tensors",
     tsr_query_w4afp8,
     {YES, YES, NO("it does not load int4 with quantized inputs (w4afp8)", TO_INT4), V3,
      NO("it does not support the integers of compressed-tensors", TO_NVFP4_MODELOPT)}},
    {" int4-ct int8-ct ",
     "compressed-tensors",
     NULL,
     {YES, YES, YES, V3, NO("it does not support the integers of compressed-tensors", TO_NVFP4_MODELOPT)}},
    {" fp8-block ",
     "w4afp8",
     is_expert,
     {NO(NO_W4AFP8, TO_FP8), NO("under this method it reads routed experts in int4", TO_FP8), NO(NO_W4AFP8, TO_FP8), V3,
      NOT_KNOWN(TO_FP8)}},
    {" fp8-block ", "w4afp8", NULL, {NO(NO_W4AFP8, TO_W4AFP8), YES, NO(NO_W4AFP8, TO_FP8), V3, NOT_KNOWN(TO_FP8)}},
    {" int4-sglang ",
     "w4afp8",
     is_expert,
     {NO(NO_W4AFP8, TO_W4AFP8), YES, NO(NO_W4AFP8, TO_FP8), V3, NOT_KNOWN(TO_FP8)}},
    {" int4-sglang ",
     "w4afp8",
     NULL,
     {NO(NO_W4AFP8, TO_W4AFP8), NO("it reads int4 of this method for routed experts only", TO_W4AFP8),
      NO(NO_W4AFP8, TO_FP8), V3, NOT_KNOWN(TO_FP8)}},
    {" awq ", "awq", NULL, {YES, YES, YES, V3, NOT_KNOWN(TO_NVFP4_MODELOPT)}},
    {" gptq ", "gptq", NULL, {YES, YES, YES, V3, NOT_KNOWN(TO_NVFP4_MODELOPT)}},
    {" awq gptq ", "auto-round", NULL, {YES, YES, YES, V3, NOT_KNOWN(TO_NVFP4_MODELOPT)}},
    /* MXFP4 */
    {" mxfp4-ct ", "compressed-tensors", is_renamed_expert, {YES, YES, YES, V3, YES}},
    {" mxfp4-ct ",
     "compressed-tensors",
     is_expert,
     {YES, NO("only its class of kimi_k3 reads compressed-tensors' MXFP4 of experts", TO_NVFP4), YES, V3, YES}},
    {" mxfp4-ct ",
     "compressed-tensors",
     NULL,
     {YES, NO("it supports compressed-tensors' MXFP4 for routed experts, but not for linear layers", TO_NVFP4), YES, V3,
      NO("it is known to support compressed-tensors' MXFP4 for routed experts only", TO_NVFP4_MODELOPT)}},
    {" mxfp4-gptoss ", "mxfp4", is_gpt_oss, {YES, YES, YES, V3, YES}},
    {" mxfp4-gptoss ",
     "mxfp4",
     NULL,
     {NO("unless model_type is gpt_oss, it reads all experts as MXFP4 and every linear layer as BF16, whatever the "
         "ignore list says",
         TO_BF16),
      NO("it reads this layout for model_type gpt_oss only", TO_BF16),
      NO("it reads this layout for model_type gpt_oss only", TO_BF16), V3,
      NO("it reads this layout for model_type gpt_oss only", TO_BF16)}},
    {" mxfp4-modelopt ", "quark", NULL, {YES, YES, NOT_KNOWN(TO_CT_MXFP4), V3, NOT_KNOWN(TO_NVFP4_MODELOPT)}},
    {" mxfp4-modelopt ",
     "modelopt",
     NULL,
     {NO("it does not support MXFP4 in ModelOpt's dialect", TO_CT_MXFP4),
      NO("it does not support MXFP4 in ModelOpt's dialect", TO_NVFP4),
      NO("it does not support ModelOpt's dialect", TO_CT_MXFP4), V3, NOT_KNOWN(TO_NVFP4_MODELOPT)}},
    /* NVFP4 */
    {" nvfp4-ct ",
     "compressed-tensors",
     is_weight_only,
     {YES, YES, YES, V3,
      NO("it supports compressed-tensors' NVFP4 only with input_activations, and these weights have none",
         TO_NVFP4_MODELOPT)}},
    {" nvfp4-ct ", "compressed-tensors", NULL, {YES, YES, YES, V3, YES}},
    {" nvfp4-modelopt ", "modelopt", NULL, {YES, YES, NO("it does not support ModelOpt's dialect", TO_NVFP4), V3, YES}},
    /* MXFP8 */
    {" mxfp8 ",
     "compressed-tensors",
     NULL,
     {YES, NO("it does not support MXFP8 of compressed-tensors", TO_MXFP8_METHOD), YES, V3,
      NO("it does not support MXFP4 of compressed-tensors", TO_MXFP8_MODELOPT)}},
    {" mxfp8 ",
     "modelopt",
     is_mixed_deepseek,
     {YES, YES, NO("it does not support ModelOpt's dialect", TO_MXFP8), V3, YES}},
    {" mxfp8 ",
     "modelopt",
     is_mixed,
     {YES,
      NO("with MIXED_PRECISION it names MXFP8's scales weight_scale_inv, and only its class of DeepSeek renames "
         "those of attention",
         TO_MXFP8_METHOD),
      NO("it does not support ModelOpt's dialect", TO_MXFP8), V3, YES}},
    {" mxfp8 ",
     "modelopt",
     NULL,
     {YES, NO("it supports ModelOpt's MXFP8 only for layers of MIXED_PRECISION", TO_MXFP8_METHOD),
      NO("it does not support ModelOpt's dialect", TO_MXFP8), V3, YES}},
    {" mxfp8 ",
     "mxfp8",
     is_minimax,
     {YES, YES, YES, V3,
      NO("it supports quant_method mxfp8, but which names of scales it expects is not known", TO_MXFP8_MODELOPT)}},
    {" mxfp8 ",
     "mxfp8",
     NULL,
     {NO("only its class of MiniMax-M3 supports scales named weight_scale_inv for this method", TO_MXFP8), YES, YES, V3,
      NO("it supports quant_method mxfp8, but which names of scales it expects is not known", TO_MXFP8_MODELOPT)}},
};

static const reading *find_reading(const tsr_load_query *q, const tsr_weight *w)
{
    char word[64];
    snprintf(word, sizeof word, " %.60s ", w->kind->name);
    for (size_t i = 0; i < COUNT(kReadings); i++) {
        const reading *const r = &kReadings[i];
        if (strstr(r->kinds, word) != NULL && strcasecmp(r->method, q->s->weights->method) == 0 &&
            (r->when == NULL || r->when(q, w)))
            return r;
    }
    return NULL;
}

void tsr_rule_kinds(const tsr_load_query *q)
{
    static const answer kNobody = {"no loader is known to read this kind under this quant_method", TO_BF16};
    const tsr_weights *const all = q->s->weights;
    for (size_t i = 0; all->method != NULL && i < all->count; i++) {
        const tsr_weight *const w = &all->items[i];
        if (w->kind == NULL || w->scale == NULL)
            continue;
        const reading *const r = find_reading(q, w);
        const answer *const a = r == NULL ? &kNobody : &r->of[q->loader];
        if (a->why != NULL)
            tsr_query_note(q, true, w->values->name, "kind", a->advice, "it is %s under quant_method '%.40s': %s",
                           w->kind->title, all->method, a->why);
    }
}
