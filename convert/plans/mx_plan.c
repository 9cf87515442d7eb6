/* Plans MXFP4, MXFP8, NVFP4 and FP8 per tensor: which weights become codes, the scales that they share, and the
 * configuration. */
#include "convert/plans/mx_plan.h"

#include "convert/configs/ct_config.h"
#include "convert/configs/deepseek_v4_config.h"
#include "convert/configs/fp8_config.h"
#include "convert/ops/quantize_op.h"
#include "convert/plans/experts/gpt_oss_layout.h"
#include "convert/plans/mx_layers.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_plan.h"
#include "convert/plans/quantize_report.h"
#include "formats/names/fused.h"
#include "formats/names/model.h"
#include "formats/weights/weights.h"

#include <stdlib.h>
#include <string.h>

/* ---- a scheme in a dialect ---- */

bool tsr_mx_needs_ranges(tsr_scheme scheme)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
    return row->form == TSR_FORM_GROUPS && row->kind == TSR_NVFP4 && row->inputs;
}

tsr_dialect tsr_mx_default_dialect(tsr_scheme scheme, const tsr_checkpoint *source)
{
    return tsr_scheme_row_of(scheme)->dialects[TSR_DIALECT_GPT_OSS].name != NULL && tsr_is_gpt_oss(source)
               ? TSR_DIALECT_GPT_OSS
               : TSR_DIALECT_COMPRESSED_TENSORS;
}

/* Returns true for DeepSeek-V4's own layout: experts in FP4, other layers in FP8. */
static bool is_native(tsr_scheme scheme, tsr_dialect dialect)
{
    return scheme == TSR_SCHEME_MXFP4 && dialect == TSR_DIALECT_DEEPSEEK;
}

tsr_mx_description tsr_mx_describe(tsr_scheme scheme, tsr_dialect dialect, bool static_inputs)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
    const tsr_dialect_row *const d = tsr_dialect_row_of(dialect);
    if (row->form == TSR_FORM_FP8_TENSOR)
        return (tsr_mx_description){
            .names = &d->bytes,
            .config = {.name = row->dialects[dialect].name, .bits = 8, .inputs = true, .static_inputs = static_inputs}};
    const bool bytes = row->kind == TSR_MXFP8;
    tsr_mx_scheme groups = tsr_mx_scheme_of(row->kind, d->modelopt);
    /* Only ModelOpt itself rounds ties toward zero. */
    groups.ties_down = groups.ties_down && dialect != TSR_DIALECT_GPT_OSS && !is_native(scheme, dialect);
    return (tsr_mx_description){
        .scheme = groups,
        .names = bytes ? &d->bytes : &d->packed,
        .config = {.name = row->dialects[dialect].name,
                   .bits = bytes ? 8 : 4,
                   .group = groups.group,
                   .global = groups.scale != TSR_MX_E8M0,
                   .inputs = row->inputs},
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
    tsr_decision *beside;    /* [tensors]: those that become FP8 in DeepSeek-V4's layout; NULL for other layouts */
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
    return p->o->dialect == TSR_DIALECT_GPT_OSS ? t->rank == 3
                                                : t->rank == 2 && t->name[tsr_module_length(t->name)] != '\0';
}

static tsr_status plan_weight(const planning *p, const tsr_tensor *t)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(p->o->scheme);
    const tsr_mx_step step = {row->name, row->form == TSR_FORM_GROUPS ? &p->scheme : NULL, p->names,
                              tsr_mx_needs_ranges(p->o->scheme)};
    return tsr_mx_layers_plan(&p->layers, t, &step, p->err);
}

static tsr_fp8_block native_block(const planning *p)
{
    const tsr_block b = p->o->native_block;
    return (tsr_fp8_block){.block_rows = b.rows == 0 ? 128 : (uint32_t)b.rows,
                           .block_cols = b.cols == 0 ? 128 : (uint32_t)b.cols,
                           .scale_fmt = TSR_SCALE_UE8M0};
}

/* Returns true if the tensor is not an expert and becomes block FP8. */
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
            TSR_TRY(tsr_plan_deepseek_v4_table(p->plan, t, p->err));
            continue;
        }
        if (!codes && becomes_fp8(p, t)) {
            TSR_TRY(plan_fp8(p, t));
            continue;
        }
        TSR_TRY(codes ? plan_weight(p, t) : tsr_plan_copy(p->plan, t, t->name, p->err));
        TSR_TRY(tsr_plan_add_note(p->plan, t, codes ? "quantize" : "copy",
                                  !codes && d->treatment == TSR_QUANTIZE ? tsr_reason_without_place(t) : d->reason,
                                  p->err));
    }
    return TSR_OK;
}

/* ---- unquantized tensors ---- */

/* Appends the names by which loaders may look up a quantized module, one per line: its own and that of its fused
 * layer. The first expert of a layer represents all of them. */
static void add_names(tsr_text *names, const tsr_tensor *t)
{
    const int length = (int)tsr_module_length(t->name);
    size_t digits;
    const size_t number = tsr_experts_length(t->name, &digits);
    if (digits > 0 && t->name[number] != '0')
        return;
    tsr_text_printf(names, "%.*s\n", length, t->name);
    const char *const dot = memrchr(t->name, '.', (size_t)length);
    const tsr_fused *const fused = tsr_fused_find_in(t->name, (size_t)length);
    if (fused != NULL)
        tsr_text_printf(names, "%.*s%s\n", dot == NULL ? 0 : (int)(dot + 1 - t->name), t->name, fused->name);
}

/* Returns the entry for a module in ModelOpt's exclude list. An entry also matches modules that contain it:
 * "….mlp.gate" would match gate_proj. To avoid that, the last letter of such an entry is put in brackets:
 * "….mlp.gat[e]" matches only that name as a pattern, and no name as plain text. */
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

/* Fills `list` with the sorted entries for the *n tensors. Sets *n to the number of entries: the list of
 * compressed-tensors also has names of fused layers. */
static tsr_status list_entries(const planning *p, const tsr_tensor **tensors, size_t *count, const char **list)
{
    tsr_text quantized = {0};
    size_t found = 0;
    const size_t n = *count;
    char joined[TSR_MODULE_NAME];
    const bool parts = p->o->dialect == TSR_DIALECT_MODELOPT;
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
        if (p->o->dialect == TSR_DIALECT_COMPRESSED_TENSORS && tsr_joined_module(tensors, n, i, joined))
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

static bool has_static_inputs(const tsr_mx_options *o)
{
    return o->calibration != NULL || o->input_scale != 0;
}

static tsr_status write_configs(const planning *p, const char *const *unquantized, size_t n)
{
    tsr_mx_config config = tsr_mx_describe(p->o->scheme, p->o->dialect, has_static_inputs(p->o)).config;
    config.unquantized = unquantized;
    config.n_unquantized = n;
    tsr_text value = {0}, file = {0};
    if (p->o->dialect == TSR_DIALECT_MODELOPT) {
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
    if (is_native(p->o->scheme, p->o->dialect)) {
        const tsr_fp8_block block = native_block(p);
        TSR_TRY(tsr_plan_fp8_config(p->plan, &block, TSR_DIALECT_DEEPSEEK_V4, kept, p, p->c->tensors.count, p->err));
        return tsr_plan_expert_dtype(p->plan, "fp4", p->err);
    }
    if (p->o->dialect == TSR_DIALECT_GPT_OSS)
        return write_configs(p, tsr_gpt_oss_kept, tsr_gpt_oss_n_kept);
    const size_t count = p->c->tensors.count;
    const tsr_tensor **const unquantized = calloc(count + 1, sizeof *unquantized);
    const char **const entries = calloc(2 * count + 2, sizeof *entries);
    tsr_status status = unquantized == NULL || entries == NULL ? tsr_out_of_memory(p->err, "while planning") : TSR_OK;
    size_t n = status == TSR_OK ? tsr_list_unquantized(kept, p, count, unquantized) : 0;
    if (status == TSR_OK)
        n = tsr_list_head(p->c, unquantized, n);
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
    tsr_text_printf(&t, "quantize --scheme %s --dialect %s", tsr_scheme_row_of(p->o->scheme)->name,
                    p->plan->made.dialect);
    if (p->plan->made.rule != NULL)
        tsr_text_printf(&t, " --mx-scale %s", p->plan->made.rule);
    tsr_text_printf(&t, " --scales %s --max-shard-size %llu", tsr_scale_search_name(p->o->search),
                    U64(p->o->max_shard_bytes));
    if (p->o->calibration != NULL)
        tsr_text_printf(&t, " --activations %016llx", U64(p->o->calibration->hash));
    if (p->o->input_scale != 0)
        tsr_text_printf(&t, " --input-scale %.9g", (double)p->o->input_scale);
    tsr_spell_kv_scales(&t, &p->o->kv);
    tsr_spell_policy(&t, &p->o->policy);
    return tsr_plan_take_command(p->plan, &t, p->err);
}

/* Decides the weights that are not experts, by the policy for 8 bits. */
static tsr_status decide_beside(planning *p)
{
    tsr_policy_options policy = p->o->policy;
    policy.block_rows = native_block(p).block_rows;
    if (!is_native(p->o->scheme, p->o->dialect))
        return TSR_OK;
    if (!tsr_has_deepseek_v4_names(p->c))
        return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                        "%s: --dialect deepseek supports MXFP4 for model_type deepseek_v4 and deepseek_v41 only; use "
                        "--dialect compressed-tensors for other models",
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
    tsr_scheme_policy(p->o->scheme, &policy);
    if (!policy.as_source)
        TSR_TRY(tsr_quantize_check_source(p->c, p->err));
    TSR_TRY(spell_command(p));
    TSR_TRY(tsr_plan_decide(p->plan, &policy, p->decisions, p->err));
    TSR_TRY(decide_beside(p));
    if (p->o->dialect == TSR_DIALECT_GPT_OSS)
        TSR_TRY(tsr_gpt_oss_check(p->c, p->decisions, p->err));
    for (size_t i = 0; i < p->c->tensors.count; i++)
        p->layers.coded[i] = becomes_codes(p, &p->c->tensors.items[i]);
    TSR_TRY(plan_tensors(p));
    TSR_TRY(tsr_plan_warn_of_share(p->plan, p->err));
    TSR_TRY(tsr_plan_kv_scales(p->plan, &p->o->kv, p->o->dialect, p->err));
    TSR_TRY(tsr_plan_model_files(p->plan, p->o->max_shard_bytes, (const char *const[]){TSR_HF_QUANT_CONFIG_NAME, NULL},
                                 p->err));
    TSR_TRY(plan_config(p));
    TSR_TRY(tsr_plan_state_kv_scales(p->plan, &p->o->kv, p->o->dialect, p->err));
    return tsr_plan_finish(p->plan, p->err);
}

tsr_status tsr_mx_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_mx_options *options, tsr_err *err)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(options->scheme);
    const tsr_mx_description described = tsr_mx_describe(options->scheme, options->dialect, false);
    const size_t count = (*source)->tensors.count + 1;
    planning p = {
        .plan = plan,
        .c = *source,
        .o = options,
        .scheme = described.scheme,
        .names = described.names,
        .decisions = calloc(count, sizeof *p.decisions),
        .layers = {.plan = plan, .calibration = options->calibration, .input_scale = options->input_scale},
        .err = err,
    };
    p.scheme.search = options->search;
    if (options->rule != NULL)
        p.scheme.rule = *options->rule;
    *plan = tsr_plan_begin(source, 1);
    plan->report = tsr_quantize_report;
    plan->importance = options->importance;
    plan->made = (tsr_plan_made){
        .scheme = row->name,
        .dialect = tsr_dialect_name(options->dialect),
        .rule = row->form == TSR_FORM_GROUPS && p.scheme.scale == TSR_MX_E8M0 ? tsr_mx_rule_name(p.scheme.rule) : NULL,
        .readers = row->dialects[options->dialect].readers};
    const bool enough = p.decisions != NULL && tsr_mx_layers_make(&p.layers, (*source)->tensors.count);
    const tsr_status status = enough ? make_plan(&p) : tsr_out_of_memory(err, "while planning");
    free(p.decisions);
    free(p.beside);
    tsr_mx_layers_free(&p.layers);
    return tsr_plan_ended(plan, status);
}
