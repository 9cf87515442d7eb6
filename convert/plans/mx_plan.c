/* Which weights become codes, what scales they share, and the configuration that says so. */
#include "convert/plans/mx_plan.h"

#include "convert/ops/mx_op.h"
#include "convert/plans/fp8_config.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_plan.h"
#include "convert/plans/quantize_report.h"
#include "formats/model/fused.h"
#include "formats/model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELOPT_FILE "hf_quant_config.json"

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

/* How each target is called in each dialect, and who loads it; no name: nobody. */
static const struct pair {
    const char *name, *readers;
} kPairs[TSR_MX_TARGETS][TSR_MX_DIALECTS] = {
    [TSR_MX_NVFP4] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"nvfp4-pack-quantized",
                                                             "vLLM, SGLang, TensorRT-LLM, transformers"},
                      [TSR_MX_DIALECT_MODELOPT] = {"NVFP4", "vLLM, SGLang, TensorRT-LLM"}},
    [TSR_MX_NVFP4_WEIGHT_ONLY] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"nvfp4-pack-quantized",
                                                                         "vLLM, SGLang, transformers"},
                                  [TSR_MX_DIALECT_MODELOPT] = {"W4A16_NVFP4", "vLLM, SGLang, TensorRT-LLM"}},
    [TSR_MX_MXFP4] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp4-pack-quantized",
                                                             "vLLM, transformers; of experts also SGLang and "
                                                             "TensorRT-LLM"}},
    [TSR_MX_MXFP4_WEIGHT_ONLY] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp4-pack-quantized",
                                                                         "vLLM, transformers; of experts also SGLang "
                                                                         "and TensorRT-LLM"}},
    [TSR_MX_MXFP8] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp8-quantized", "vLLM, transformers"},
                      [TSR_MX_DIALECT_MODELOPT] = {"MXFP8", "vLLM, TensorRT-LLM"},
                      [TSR_MX_DIALECT_DEEPSEEK] = {"mxfp8", "vLLM, SGLang, transformers"}},
    [TSR_MX_MXFP8_WEIGHT_ONLY] = {[TSR_MX_DIALECT_COMPRESSED_TENSORS] = {"mxfp8-quantized", "vLLM, transformers"}},
};

static const struct dialect {
    const char *name;
    tsr_mx_producer producer;
    tsr_mx_names packed, bytes; /* of two codes to a byte, and of a byte each */
} kDialects[TSR_MX_DIALECTS] = {
    [TSR_MX_DIALECT_DEEPSEEK] =
        {.name = "deepseek",
         .producer = TSR_MX_MODELOPT, /* scales rounded up to powers of two: rceil */
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
};

bool tsr_mx_needs_ranges(tsr_mx_target target)
{
    return kTargets[target].kind == TSR_NVFP4 && kTargets[target].inputs;
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

/* ---- what is planned ---- */

typedef struct planning {
    tsr_plan *plan;
    const tsr_checkpoint *c;
    const tsr_mx_options *o;
    tsr_mx_scheme scheme;
    const tsr_mx_names *names;
    tsr_decision *decisions; /* [tensors] */
    const tsr_amax **amaxes; /* [tensors]: those that have been announced */
    tsr_err *err;
} planning;

static const tsr_decision *decision_of(const planning *p, const tsr_tensor *t)
{
    return &p->decisions[t - p->c->tensors.items];
}

static bool becomes_codes(const planning *p, const tsr_tensor *t)
{
    return decision_of(p, t)->treatment == TSR_QUANTIZE && t->rank == 2 && t->shape[0] > 0 &&
           t->name[tsr_module_length(t->name)] != '\0';
}

/* The tensors that loaders run as one layer, this one among them. */
static size_t members_of(const planning *p, const tsr_tensor *t, const tsr_tensor *members[TSR_FUSED_MEMBERS])
{
    const size_t all = tsr_fused_members(p->c, t, members);
    size_t n = 0;
    for (size_t i = 0; i < all; i++) {
        if (becomes_codes(p, members[i]))
            members[n++] = members[i];
    }
    return n;
}

/* One amax for all members of a fused layer. */
static tsr_status find_amax(const planning *p, const tsr_tensor *t, const tsr_amax **amax)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    *amax = p->amaxes[t - p->c->tensors.items];
    if (*amax != NULL || p->scheme.scale == TSR_MX_E8M0)
        return TSR_OK;
    const size_t n = members_of(p, t, members);
    *amax = tsr_plan_amax(p->plan, members, n);
    for (size_t i = 0; i < n && *amax != NULL; i++)
        p->amaxes[members[i] - p->c->tensors.items] = *amax;
    return *amax == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
}

/* The global scale of a layer's input, from the largest value that was seen in front of any of its members. */
static tsr_status find_input(const planning *p, const tsr_tensor *t, float *input)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    float amax = 0;
    *input = 0;
    if (p->o->calibration == NULL) {
        /* Of codes that are moved, the source has it (convert/plans/any_plan.h). */
        *input = t->source == TSR_SOURCE_DECODED && tsr_mx_needs_ranges(p->o->target) ? -1 : 0;
        return TSR_OK;
    }
    const size_t n = members_of(p, t, members);
    for (size_t i = 0; i < n; i++) {
        const tsr_calibrated *const known = tsr_calibration_find(p->o->calibration, members[i]->name);
        if (known == NULL)
            return tsr_fail(p->err, TSR_E_MISMATCH,
                            "%s: nothing about '%s', which is quantized: calibrate it, or --exclude '%s'",
                            p->o->calibration->path, members[i]->name, members[i]->name);
        if (known->scaled)
            return tsr_fail(p->err, TSR_E_MISMATCH,
                            "%s: '%s' has an int8 input_scale; %s needs the range itself: input_min and input_max "
                            "(JSON: min and max)",
                            p->o->calibration->path, known->module, kTargets[p->o->target].name);
        amax = fmaxf(amax, fmaxf(-known->least, known->largest));
    }
    *input = tsr_nvfp4_global(&p->scheme, (tsr_dtype)members[0]->dtype, &amax, 1);
    return TSR_OK;
}

static tsr_status plan_weight(const planning *p, const tsr_tensor *t)
{
    const tsr_amax *amax;
    float input;
    TSR_TRY(find_amax(p, t, &amax));
    TSR_TRY(find_input(p, t, &input));
    return tsr_plan_mx(p->plan, t, &p->scheme, p->names, amax, input, p->err);
}

static tsr_status plan_tensors(const planning *p)
{
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        const tsr_tensor *const t = &p->c->tensors.items[i];
        const tsr_decision *const d = &p->decisions[i];
        const bool codes = becomes_codes(p, t);
        TSR_TRY(codes ? plan_weight(p, t) : tsr_plan_copy(p->plan, t, t->name, p->err));
        TSR_TRY(tsr_plan_add_note(
            p->plan, t, codes ? "quantize" : "copy",
            !codes && d->treatment == TSR_QUANTIZE ? "a stack of experts: the format has no place for it" : d->reason,
            p->err));
    }
    return TSR_OK;
}

/* ---- what stays unquantized ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Appends the names under which loaders may ask for a quantized module, a line each: its own, and that of the layer that
 * it is joined into. Of the experts of a layer the first stands for all. */
static void add_names(tsr_text *names, const tsr_tensor *t)
{
    static const char kExperts[] = ".experts.";
    const int length = (int)tsr_module_length(t->name);
    const char *const expert = strstr(t->name, kExperts);
    if (expert != NULL && strchr("123456789", expert[sizeof kExperts - 1]) != NULL)
        return;
    tsr_text_printf(names, "%.*s\n", length, t->name);
    char module[1024];
    snprintf(module, sizeof module, "%.*s", length, t->name);
    char *const dot = strrchr(module, '.');
    const tsr_fused *const fused = tsr_fused_find(dot == NULL ? module : dot + 1);
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

static tsr_status list_unquantized(const planning *p, const char **list, size_t *n)
{
    tsr_text quantized = {0};
    const bool parts = p->o->dialect == TSR_MX_DIALECT_MODELOPT;
    for (size_t i = 0; i < p->c->tensors.count && parts; i++) {
        if (becomes_codes(p, &p->c->tensors.items[i]))
            add_names(&quantized, &p->c->tensors.items[i]);
    }
    tsr_status status = tsr_text_status(&quantized, p->err);
    for (size_t i = 0; i < p->c->tensors.count && status == TSR_OK; i++) {
        const tsr_tensor *const t = &p->c->tensors.items[i];
        if (t->rank < 2 || !tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || becomes_codes(p, t) ||
            p->decisions[i].treatment == TSR_KEEP_EMBEDDING)
            continue;
        const char *const module = tsr_arena_printf(&p->plan->arena, "%.*s", (int)tsr_module_length(t->name), t->name);
        const char *const entry = module == NULL ? NULL : entry_of(p, module, &quantized);
        if (entry == NULL)
            status = tsr_out_of_memory(p->err, "while planning");
        else
            list[(*n)++] = entry;
    }
    tsr_text_free(&quantized);
    if (*n > 0)
        qsort(list, *n, sizeof *list, by_text);
    return status;
}

/* ---- configuration ---- */

static tsr_status write_configs(const planning *p, const char *const *unquantized, size_t n)
{
    const struct target *const target = &kTargets[p->o->target];
    const tsr_mx_config config = {
        .name = kPairs[p->o->target][p->o->dialect].name,
        .bits = target->bits,
        .group = p->scheme.group,
        .global = p->scheme.scale != TSR_MX_E8M0,
        .inputs = target->inputs,
        .unquantized = unquantized,
        .n_unquantized = n,
    };
    tsr_text value = {0}, file = {0}, whole = {0};
    if (p->o->dialect == TSR_MX_DIALECT_MODELOPT) {
        tsr_mx_config_write_modelopt_file(&file, &config);
        const tsr_status status = tsr_text_status(&file, p->err);
        TSR_TRY(tsr_plan_take_text(p->plan, "", MODELOPT_FILE, &file, status, p->err));
    }
    tsr_mx_config_write(&value, p->o->dialect, &config);
    tsr_status status = tsr_text_status(&value, p->err);
    if (status == TSR_OK)
        status = tsr_quantization_set(&whole, p->c, value.data, p->err);
    tsr_text_free(&value);
    return tsr_plan_take_text(p->plan, "", TSR_CONFIG_NAME, &whole, status, p->err);
}

static tsr_status plan_config(const planning *p)
{
    if (p->c->config == NULL)
        return TSR_OK;
    size_t n = 0;
    const char **const unquantized = calloc(p->c->tensors.count + 1, sizeof *unquantized);
    if (unquantized == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    tsr_status status = list_unquantized(p, unquantized, &n);
    if (status == TSR_OK)
        status = write_configs(p, unquantized, n);
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

static tsr_status make_plan(const planning *p)
{
    tsr_policy_options policy = p->o->policy;
    policy.block_rows = 1;
    policy.group = p->scheme.group;
    policy.not_fp8 = policy.four_bits = p->scheme.element == TSR_MX_E2M1;
    TSR_TRY(tsr_quantize_check_source(p->c, p->err));
    TSR_TRY(spell_command(p));
    TSR_TRY(tsr_plan_decide(p->plan, &policy, p->decisions, p->err));
    TSR_TRY(plan_tensors(p));
    TSR_TRY(tsr_plan_warn_of_share(p->plan, p->err));
    TSR_TRY(tsr_plan_pack(p->plan, "", p->o->max_shard_bytes, p->err));
    TSR_TRY(tsr_plan_side_files(p->plan, "", "*", (const char *const[]){MODELOPT_FILE, NULL}, p->err));
    TSR_TRY(tsr_plan_index(p->plan, "", false, p->err));
    TSR_TRY(plan_config(p));
    return tsr_plan_finish(p->plan, p->err);
}

tsr_status tsr_mx_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_mx_options *options, tsr_err *err)
{
    const struct dialect *const dialect = &kDialects[options->dialect];
    const size_t count = (*source)->tensors.count + 1;
    planning p = {
        .plan = plan,
        .c = *source,
        .o = options,
        .scheme = tsr_mx_scheme_of(kTargets[options->target].kind, dialect->producer),
        .names = kTargets[options->target].bits == 8 ? &dialect->bytes : &dialect->packed,
        .decisions = calloc(count, sizeof *p.decisions),
        .amaxes = calloc(count, sizeof *p.amaxes),
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
    const tsr_status status =
        p.decisions == NULL || p.amaxes == NULL ? tsr_out_of_memory(err, "while planning") : make_plan(&p);
    free(p.decisions);
    free(p.amaxes);
    if (status != TSR_OK)
        tsr_plan_free(plan);
    return status;
}
