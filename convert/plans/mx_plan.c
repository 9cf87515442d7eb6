/* Which weights become codes, what scales they share, and the configuration that says so. */
#include "convert/plans/mx_plan.h"

#include "convert/ops/quantize_op.h"
#include "convert/plans/ct_config.h"
#include "convert/plans/fp8_config.h"
#include "convert/plans/gpt_oss_layout.h"
#include "convert/plans/mx_layers.h"
#include "convert/plans/native_config.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_plan.h"
#include "convert/plans/quantize_report.h"
#include "formats/model/fused.h"
#include "formats/model/model.h"
#include "formats/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- targets and dialects ---- */

static const struct target {
    const char *name;
    tsr_mx_kind kind;
    uint32_t bits;
    bool inputs; /* activations are quantized as well */
} kTargets[TSR_MX_TARGETS] = {
    [TSR_MX_NVFP4] = {"nvfp4", TSR_NVFP4, 4, true},
    [TSR_MX_NVFP4_WEIGHT_ONLY] = {"nvfp4-weight-only", TSR_NVFP4, 4, false},
    [TSR_MX_MXFP4] = {"mxfp4", TSR_MXFP4, 4, true},
    [TSR_MX_MXFP4_WEIGHT_ONLY] = {"mxfp4-weight-only", TSR_MXFP4, 4, false},
    [TSR_MX_MXFP8] = {"mxfp8", TSR_MXFP8, 8, true},
    [TSR_MX_MXFP8_WEIGHT_ONLY] = {"mxfp8-weight-only", TSR_MXFP8, 8, false},
};

static const char kGptOssReaders[] = "vLLM, SGLang, transformers, TensorRT-LLM, of gpt-oss only";

/* How each target is called in each dialect, and who loads it; no name: nobody. */
static const struct pair {
    const char *name, *readers;
} kPairs[TSR_MX_TARGETS][TSR_MX_DIALECTS] = {
    [TSR_MX_NVFP4] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] =
                          {"nvfp4-pack-quantized", "vLLM, SGLang, TensorRT-LLM; transformers but for experts"},
                      [TSR_MX_DIALECT_MODELOPT] = {"NVFP4", "vLLM, SGLang, TensorRT-LLM"}},
    [TSR_MX_NVFP4_WEIGHT_ONLY] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"nvfp4-pack-quantized",
                                                                         "vLLM, SGLang; transformers but for experts"},
                                  [TSR_MX_DIALECT_MODELOPT] = {"W4A16_NVFP4", "vLLM, SGLang, TensorRT-LLM"}},
    [TSR_MX_MXFP4] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp4-pack-quantized",
                                                             "vLLM, transformers; of experts also SGLang and "
                                                             "TensorRT-LLM"},
                      [TSR_MX_DIALECT_DEEPSEEK] = {"fp8", "vLLM, SGLang, transformers, of DeepSeek-V4 only"},
                      [TSR_MX_DIALECT_GPT_OSS] = {"mxfp4", kGptOssReaders}},
    [TSR_MX_MXFP4_WEIGHT_ONLY] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp4-pack-quantized",
                                                                         "vLLM, transformers; of experts also SGLang "
                                                                         "and TensorRT-LLM"},
                                  [TSR_MX_DIALECT_GPT_OSS] = {"mxfp4", kGptOssReaders}},
    [TSR_MX_MXFP8] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp8-quantized", "vLLM; transformers but for experts"},
                      [TSR_MX_DIALECT_MODELOPT] = {"MXFP8", "vLLM, TensorRT-LLM"},
                      [TSR_MX_DIALECT_DEEPSEEK] = {"mxfp8", "SGLang, transformers; of MiniMax-M3 also vLLM"}},
    [TSR_MX_MXFP8_WEIGHT_ONLY] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp8-quantized",
                                                                         "vLLM; transformers but for experts"}},
};

static const struct dialect {
    const char *name;
    tsr_mx_producer producer;
    tsr_mx_names packed, bytes; /* of two codes to a byte, and of a byte each */
} kDialects[TSR_MX_DIALECTS] = {
    [TSR_MX_DIALECT_DEEPSEEK] =
        {.name = "deepseek",
         .producer = TSR_MX_MODELOPT, /* scales rounded up to powers of two: rceil */
         .packed = {.codes = ".weight",
                    .scales = ".scale",
                    .global = "",
                    .input = "",
                    .packed = TSR_I8,
                    .power = TSR_F8_E8M0},
         .bytes = {.codes = ".weight", .scales = ".weight_scale_inv", .global = "", .input = "", .power = TSR_U8}},
    [TSR_MX_DIALECT_COMPRESSED_TENSORS] =
        {.name = "compressed-tensors",
         .producer = TSR_MX_COMPRESSED_TENSORS,
         .packed = {.codes = ".weight_packed",
                    .scales = ".weight_scale",
                    .global = ".weight_global_scale",
                    .input = ".input_global_scale",
                    .global_rank = 1,
                    .packed = TSR_U8,
                    .power = TSR_U8},
         .bytes = {.codes = ".weight", .scales = ".weight_scale", .global = "", .input = "", .power = TSR_U8}},
    [TSR_MX_DIALECT_MODELOPT] =
        {.name = "modelopt",
         .producer = TSR_MX_MODELOPT,
         .packed = {.codes = ".weight",
                    .scales = ".weight_scale",
                    .global = ".weight_scale_2",
                    .input = ".input_scale",
                    .packed = TSR_U8,
                    .power = TSR_U8},
         .bytes = {.codes = ".weight", .scales = ".weight_scale", .global = "", .input = "", .power = TSR_U8}},
    [TSR_MX_DIALECT_GPT_OSS] = {.name = "gpt-oss",
                                .producer = TSR_MX_MODELOPT, /* rceil, as OpenAI's triton_kernels rounds */
                                .packed = {.codes = "_blocks",
                                           .scales = "_scales",
                                           .global = "",
                                           .input = "",
                                           .packed = TSR_U8,
                                           .power = TSR_U8,
                                           .blocks = true}},
};

bool tsr_mx_needs_ranges(tsr_mx_target target)
{
    return kTargets[target].kind == TSR_NVFP4 && kTargets[target].inputs;
}

tsr_mx_dialect tsr_mx_default_dialect(tsr_mx_target target, const tsr_checkpoint *source)
{
    return kPairs[target][TSR_MX_DIALECT_GPT_OSS].name != NULL && tsr_is_gpt_oss(source)
               ? TSR_MX_DIALECT_GPT_OSS
               : TSR_MX_DIALECT_COMPRESSED_TENSORS;
}

const char *tsr_mx_dialect_name(tsr_mx_dialect dialect)
{
    return kDialects[dialect].name;
}

tsr_status tsr_mx_check_dialect(tsr_mx_target target, tsr_mx_dialect dialect, tsr_err *err)
{
    tsr_text read = {0};
    if (kPairs[target][dialect].name != NULL)
        return TSR_OK;
    for (unsigned d = 0; d < TSR_MX_DIALECTS; d++) {
        if (kPairs[target][d].name != NULL)
            tsr_text_printf(&read, "%s--dialect %s (%s)", read.size == 0 ? "" : ", ", kDialects[d].name,
                            kPairs[target][d].readers);
    }
    tsr_status status = tsr_text_status(&read, err);
    if (status == TSR_OK)
        status = tsr_fail(err, TSR_E_USAGE, "--dialect %s: no loader reads %s in it; what is read: %s",
                          kDialects[dialect].name, kTargets[target].name, read.data);
    tsr_text_free(&read);
    return status;
}

/* DeepSeek-V4's own layout: the experts in FP4, and FP8 beside them. */
static bool is_native(tsr_mx_target target, tsr_mx_dialect dialect)
{
    return target == TSR_MX_MXFP4 && dialect == TSR_MX_DIALECT_DEEPSEEK;
}

tsr_mx_description tsr_mx_describe(tsr_mx_target target, tsr_mx_dialect dialect)
{
    const struct target *const t = &kTargets[target];
    tsr_mx_scheme scheme = tsr_mx_scheme_of(t->kind, kDialects[dialect].producer);
    if (is_native(target, dialect) ||
        dialect == TSR_MX_DIALECT_GPT_OSS) /* ModelOpt's ties go toward zero, which is its own habit */
        scheme.producer = TSR_MX_COMPRESSED_TENSORS;
    return (tsr_mx_description){
        .scheme = scheme,
        .names = t->bits == 8 ? &kDialects[dialect].bytes : &kDialects[dialect].packed,
        .config = {.name = kPairs[target][dialect].name,
                   .bits = t->bits,
                   .group = scheme.group,
                   .global = scheme.scale != TSR_MX_E8M0,
                   .inputs = t->inputs},
    };
}

/* ---- what is planned ---- */

typedef struct planning {
    tsr_plan *plan;
    const tsr_checkpoint *c;
    const tsr_mx_options *o;
    tsr_mx_scheme scheme;
    const tsr_mx_names *names;
    tsr_decision *decisions; /* [tensors] */
    tsr_decision *beside;    /* [tensors]: what becomes FP8 in DeepSeek-V4's layout; NULL in others */
    tsr_mx_layers layers;
    tsr_err *err;
} planning;

static const tsr_decision *decision_of(const planning *p, const tsr_tensor *t)
{
    return &p->decisions[t - p->c->tensors.items];
}

static bool becomes_codes(const planning *p, const tsr_tensor *t)
{
    if (decision_of(p, t)->treatment != TSR_QUANTIZE || t->shape[0] == 0)
        return false;
    return p->o->dialect == TSR_MX_DIALECT_GPT_OSS ? t->rank == 3
                                                   : t->rank == 2 && t->name[tsr_module_length(t->name)] != '\0';
}

static tsr_status plan_weight(const planning *p, const tsr_tensor *t)
{
    const tsr_mx_step step = {kTargets[p->o->target].name, &p->scheme, p->names, tsr_mx_needs_ranges(p->o->target)};
    return tsr_mx_layers_plan(&p->layers, t, &step, p->err);
}

static tsr_fp8_block native_block(const planning *p)
{
    const tsr_block b = p->o->native_block;
    return (tsr_fp8_block){.block_rows = b.rows == 0 ? 128 : (uint32_t)b.rows,
                           .block_cols = b.cols == 0 ? 128 : (uint32_t)b.cols,
                           .scale_fmt = TSR_SCALE_UE8M0};
}

/* Whether the tensor is no expert and becomes FP8 in blocks. */
static bool becomes_fp8(const planning *p, const tsr_tensor *t)
{
    return p->beside != NULL && tsr_part_of(t->name) != TSR_PART_ROUTED_EXPERTS &&
           p->beside[t - p->c->tensors.items].treatment == TSR_QUANTIZE;
}

static tsr_status plan_fp8(const planning *p, const tsr_tensor *t)
{
    const tsr_fp8_block block = native_block(p);
    TSR_TRY(tsr_plan_quantize(p->plan, &(tsr_weight){.data = t}, &block, TSR_DIALECT_DEEPSEEK_V4, p->err));
    return tsr_plan_add_note(
        p->plan, t, "quantize",
        tsr_arena_printf(&p->plan->arena, "%s: FP8 in blocks", p->beside[t - p->c->tensors.items].reason), p->err);
}

static tsr_status plan_tensors(const planning *p)
{
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        const tsr_tensor *const t = &p->c->tensors.items[i];
        const tsr_decision *const d = &p->decisions[i];
        const bool codes = becomes_codes(p, t);
        if (p->beside != NULL && tsr_is_plain_table(t)) {
            TSR_TRY(tsr_plan_native_table(p->plan, t, p->err));
            continue;
        }
        if (!codes && becomes_fp8(p, t)) {
            TSR_TRY(plan_fp8(p, t));
            continue;
        }
        TSR_TRY(codes ? plan_weight(p, t) : tsr_plan_copy(p->plan, t, t->name, p->err));
        TSR_TRY(tsr_plan_add_note(
            p->plan, t, codes ? "quantize" : "copy",
            !codes && d->treatment == TSR_QUANTIZE ? "a stack of experts: the format has no place for it" : d->reason,
            p->err));
    }
    return TSR_OK;
}

/* ---- what stays unquantized ---- */

/* Appends the names under which loaders may ask for a quantized module, a line each: its own, and that of the layer that
 * it is joined into. Of the experts of a layer the first stands for all. */
static void add_names(tsr_text *names, const tsr_tensor *t)
{
    const int length = (int)tsr_module_length(t->name);
    size_t digits;
    const size_t number = tsr_experts_length(t->name, &digits);
    if (digits > 0 && t->name[number] != '0')
        return;
    tsr_text_printf(names, "%.*s\n", length, t->name);
    char module[1024];
    snprintf(module, sizeof module, "%.*s", length, t->name);
    char *const dot = strrchr(module, '.');
    const tsr_fused *const fused = tsr_fused_find(module);
    if (fused != NULL)
        tsr_text_printf(names, "%.*s%s\n", dot == NULL ? 0 : (int)(dot + 1 - module), module, fused->name);
}

/* An entry of ModelOpt's list covers a module also where it is only a part of its name: "….mlp.gate" would take gate_proj
 * with it. Such an entry gets its last letter in brackets, "….mlp.gat[e]", which as a pattern fits the one name and as a
 * plain text no name at all. */
static const char *entry_of(const planning *p, const char *module, const tsr_text *quantized)
{
    const size_t length = strlen(module);
    if (quantized->data == NULL || strstr(quantized->data, module) == NULL)
        return module;
    return tsr_arena_printf(&p->plan->arena, "%.*s[%c]", (int)length - 1, module, module[length - 1]);
}

static const tsr_tensor *kept(const void *context, size_t i)
{
    const planning *const p = context;
    const tsr_tensor *const t = &p->c->tensors.items[i];
    return becomes_codes(p, t) || becomes_fp8(p, t) || p->decisions[i].treatment == TSR_KEEP_EMBEDDING ? NULL : t;
}

/* Fills `list` with the entries for the *n tensors, sorted; *n becomes how many they are: compressed-tensors' list has
 * the names of fused layers, too. */
static tsr_status list_entries(const planning *p, const tsr_tensor **tensors, size_t *count, const char **list)
{
    tsr_text quantized = {0};
    size_t found = 0;
    const size_t n = *count;
    char joined[TSR_MODULE_NAME];
    const bool parts = p->o->dialect == TSR_MX_DIALECT_MODELOPT;
    for (size_t i = 0; i < p->c->tensors.count && parts; i++) {
        if (becomes_codes(p, &p->c->tensors.items[i]))
            add_names(&quantized, &p->c->tensors.items[i]);
    }
    tsr_status status = tsr_text_status(&quantized, p->err);
    tsr_sort_by_name(tensors, n);
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        const char *const name = tensors[i]->name;
        const char *const module = tsr_arena_dup(&p->plan->arena, name, tsr_module_length(name));
        bool enough = (list[found++] = module == NULL ? NULL : entry_of(p, module, &quantized)) != NULL;
        if (p->o->dialect == TSR_MX_DIALECT_COMPRESSED_TENSORS && tsr_joined_module(tensors, n, i, joined))
            enough = (list[found++] = tsr_arena_dup(&p->plan->arena, joined, strlen(joined))) != NULL && enough;
        if (!enough)
            status = tsr_out_of_memory(p->err, "while planning");
    }
    tsr_text_free(&quantized);
    *count = found;
    if (found > 0 && status == TSR_OK)
        qsort(list, found, sizeof *list, tsr_by_text);
    return status;
}

/* ---- configuration ---- */

static tsr_status write_configs(const planning *p, const char *const *unquantized, size_t n)
{
    tsr_mx_config config = tsr_mx_describe(p->o->target, p->o->dialect).config;
    config.unquantized = unquantized;
    config.n_unquantized = n;
    tsr_text value = {0}, file = {0};
    if (p->o->dialect == TSR_MX_DIALECT_MODELOPT) {
        tsr_mx_config_write_modelopt_file(&file, &config);
        TSR_TRY(tsr_plan_take_text(p->plan, "", TSR_HF_QUANT_CONFIG_NAME, &file, TSR_OK, p->err));
    }
    tsr_mx_config_write(&value, p->o->dialect, &config);
    return tsr_plan_take_quantization(p->plan, &value, p->err);
}

static tsr_status plan_config(const planning *p)
{
    if (p->c->config == NULL)
        return TSR_OK;
    if (is_native(p->o->target, p->o->dialect)) {
        const tsr_fp8_block block = native_block(p);
        TSR_TRY(tsr_plan_fp8_config(p->plan, &block, TSR_DIALECT_DEEPSEEK_V4, kept, p, p->c->tensors.count, p->err));
        return tsr_plan_expert_dtype(p->plan, "fp4", p->err);
    }
    if (p->o->dialect == TSR_MX_DIALECT_GPT_OSS)
        return write_configs(p, tsr_gpt_oss_kept, tsr_gpt_oss_n_kept);
    const size_t count = p->c->tensors.count;
    const tsr_tensor **const unquantized = calloc(count + 1, sizeof *unquantized);
    const char **const entries = calloc(2 * count + 1, sizeof *entries);
    tsr_status status = unquantized == NULL || entries == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
    size_t n = status == TSR_OK ? tsr_list_unquantized(kept, p, count, unquantized) : 0;
    if (status == TSR_OK)
        status = list_entries(p, unquantized, &n, entries);
    if (status == TSR_OK)
        status = write_configs(p, entries, n);
    free(entries);
    free(unquantized);
    return status;
}

/* ---- the plan ---- */

static tsr_status spell_command(const planning *p)
{
    tsr_text t = {0};
    tsr_text_printf(&t, "quantize --scheme %s --dialect %s", kTargets[p->o->target].name, p->plan->made.dialect);
    if (p->plan->made.rule != NULL)
        tsr_text_printf(&t, " --mx-scale %s", p->plan->made.rule);
    tsr_text_printf(&t, " --scales %s --max-shard-size %llu", p->o->search ? "mse" : "amax",
                    U64(p->o->max_shard_bytes));
    if (p->o->calibration != NULL)
        tsr_text_printf(&t, " --activations %016llx", U64(p->o->calibration->hash));
    tsr_spell_policy(&t, &p->o->policy);
    return tsr_plan_take_command(p->plan, &t, p->err);
}

/* The weights beside the experts, by the table for 8 bits. */
static tsr_status decide_beside(planning *p)
{
    tsr_policy_options policy = p->o->policy;
    policy.block_rows = native_block(p).block_rows;
    if (!is_native(p->o->target, p->o->dialect))
        return TSR_OK;
    if (!tsr_has_native_names(p->c))
        return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                        "%s: --dialect deepseek: MXFP4 in it is read of model_type deepseek_v4 and deepseek_v41 only; "
                        "--dialect compressed-tensors is for others",
                        p->c->path);
    if (policy.as_source)
        return TSR_OK;
    p->beside = calloc(p->c->tensors.count + 1, sizeof *p->beside);
    return p->beside == NULL
               ? tsr_out_of_memory(p->err, "while planning")
               : tsr_policy_decide(p->c, p->plan->model_type, &policy, &p->plan->arena, p->beside, p->err);
}

static tsr_status make_plan(planning *p)
{
    tsr_policy_options policy = p->o->policy;
    policy.block_rows = 1;
    policy.group = p->scheme.group;
    policy.not_fp8 = policy.four_bits = p->scheme.element == TSR_MX_E2M1;
    if (!policy.as_source)
        TSR_TRY(tsr_quantize_check_source(p->c, p->err));
    TSR_TRY(spell_command(p));
    TSR_TRY(tsr_plan_decide(p->plan, &policy, p->decisions, p->err));
    TSR_TRY(decide_beside(p));
    if (p->o->dialect == TSR_MX_DIALECT_GPT_OSS)
        TSR_TRY(tsr_gpt_oss_check(p->c, p->decisions, p->err));
    for (size_t i = 0; i < p->c->tensors.count; i++)
        p->layers.coded[i] = becomes_codes(p, &p->c->tensors.items[i]);
    TSR_TRY(plan_tensors(p));
    TSR_TRY(tsr_plan_warn_of_share(p->plan, p->err));
    TSR_TRY(tsr_plan_pack(p->plan, "", p->o->max_shard_bytes, p->err));
    TSR_TRY(tsr_plan_side_files(p->plan, "", "*", (const char *const[]){TSR_HF_QUANT_CONFIG_NAME, NULL}, p->err));
    TSR_TRY(tsr_plan_index(p->plan, "", false, p->err));
    TSR_TRY(plan_config(p));
    return tsr_plan_finish(p->plan, p->err);
}

tsr_status tsr_mx_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_mx_options *options, tsr_err *err)
{
    const struct dialect *const dialect = &kDialects[options->dialect];
    const tsr_mx_description described = tsr_mx_describe(options->target, options->dialect);
    const size_t count = (*source)->tensors.count + 1;
    planning p = {
        .plan = plan,
        .c = *source,
        .o = options,
        .scheme = described.scheme,
        .names = described.names,
        .decisions = calloc(count, sizeof *p.decisions),
        .layers = {.plan = plan, .calibration = options->calibration},
        .err = err,
    };
    p.scheme.search = options->search;
    if (options->rule != NULL)
        p.scheme.rule = *options->rule;
    *plan = tsr_plan_begin(source, 1);
    plan->report = tsr_quantize_report;
    plan->made = (tsr_plan_made){.scheme = kTargets[options->target].name,
                                 .dialect = dialect->name,
                                 .rule = p.scheme.scale == TSR_MX_E8M0 ? tsr_mx_rule_name(p.scheme.rule) : NULL,
                                 .readers = kPairs[options->target][options->dialect].readers};
    const bool enough = p.decisions != NULL && tsr_mx_layers_make(&p.layers, (*source)->tensors.count);
    const tsr_status status = enough ? make_plan(&p) : tsr_out_of_memory(err, "while planning");
    free(p.decisions);
    free(p.beside);
    tsr_mx_layers_free(&p.layers);
    if (status != TSR_OK)
        tsr_plan_free(plan);
    return status;
}
