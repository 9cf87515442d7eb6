/* Plans a checkpoint with several schemes: a scheme per weight by rules, checks of fused layers, steps and
 * configuration. */
#include "convert/search/rules_plan.h"

#include "convert/ops/fp8_rows_op.h"
#include "convert/ops/int_op.h"
#include "convert/ops/quantize_op.h"
#include "convert/plans/mx_layers.h"
#include "convert/plans/policy_plan.h"
#include "convert/plans/quantize_plan.h"
#include "convert/plans/quantize_report.h"
#include "convert/search/mixed_config.h"
#include "convert/search/rules_match.h"
#include "quantize/policy/policy_groups.h"

#include <stdlib.h>
#include <string.h>

typedef struct planning {
    tsr_plan *plan;
    const tsr_checkpoint *c;
    const tsr_rules_options *o;
    uint8_t *schemes;        /* [tensors]: tsr_scheme */
    tsr_decision *decisions; /* [tensors]: the result with its reason */
    tsr_decision *by_scheme; /* [tensors]: the policy's decisions for one scheme */
    uint32_t *first;         /* [tensors]: tsr_policy_together */
    tsr_rules_match *match;  /* in `scratch` */
    tsr_arena *scratch;
    tsr_mx_layers layers;
    tsr_err *err;
} planning;

/* ---- choosing schemes ---- */

static tsr_status note_items(const planning *p, bool used[TSR_SCHEMES])
{
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        p->decisions[i] = (tsr_decision){TSR_KEEP, "no rule fits it"};
        if (p->match->of[i] == NULL)
            continue;
        used[p->match->of[i]->scheme] = true;
        p->decisions[i].reason = tsr_arena_printf(&p->plan->arena, "rule '%s': %s", p->match->of[i]->pattern,
                                                  tsr_scheme_spelling(p->match->of[i]->scheme));
        if (p->decisions[i].reason == NULL)
            return tsr_out_of_memory(p->err, "while planning");
    }
    return TSR_OK;
}

/* Warns about rules that match nothing. */
static tsr_status check_items(const planning *p)
{
    const tsr_scheme_rules *const rules = p->o->rules;
    for (size_t k = 0; k < rules->count; k++) {
        if (p->match->fits[k])
            continue;
        if (tsr_rules_is_name(&rules->items[k]))
            return tsr_fail(p->err, TSR_E_MISMATCH, "%s: %s has no '%s'", rules->path, p->c->path,
                            rules->items[k].pattern);
        TSR_TRY(tsr_plan_warn(p->plan, p->err, "%s: '%s' matches no tensor", rules->path, rules->items[k].pattern));
    }
    return TSR_OK;
}

/* Assigns the scheme to the weights whose rules request it, if the policy and their shapes allow it. */
static tsr_status decide_scheme(const planning *p, tsr_scheme scheme)
{
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        const tsr_tensor *const t = &p->c->tensors.items[i];
        if (p->match->of[i] == NULL || p->match->of[i]->scheme != scheme)
            continue;
        const bool allowed = p->by_scheme[i].treatment == TSR_QUANTIZE;
        if (allowed && tsr_mixed_scheme_takes(scheme, p->c, t)) {
            p->schemes[i] = (uint8_t)scheme;
            p->decisions[i].treatment = TSR_QUANTIZE;
            continue;
        }
        const char *const why = !allowed       ? p->by_scheme[i].reason
                                : t->rank == 3 ? "a stack of experts: the format cannot store it"
                                               : "its columns are not a multiple of the group or word size";
        if (tsr_rules_is_name(p->match->of[i]) && t->rank >= 2)
            return tsr_fail(p->err, TSR_E_MISMATCH, "%s: '%s' cannot become %s: %s", p->o->rules->path, t->name,
                            tsr_scheme_spelling(scheme), why);
        p->decisions[i] = (tsr_decision){allowed ? TSR_KEEP : p->by_scheme[i].treatment, why};
    }
    return TSR_OK;
}

/* Marks embeddings: they are not linear layers, so the configuration does not list them even if a rule keeps them. */
static void note_embeddings(const planning *p)
{
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        if (p->decisions[i].treatment == TSR_KEEP && tsr_policy_is_embedding(p->c->tensors.items[i].name))
            p->decisions[i].treatment = TSR_KEEP_EMBEDDING;
    }
}

/* Checks that the members of a fused layer, and the experts of a layer, have one scheme. */
static tsr_status check_together(const planning *p)
{
    TSR_TRY(tsr_policy_together(p->c, p->first, p->err));
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        const size_t k = p->first[i];
        const char *const path = p->o->rules->path;
        if (p->schemes[i] != p->schemes[k])
            return tsr_fail(p->err, TSR_E_MISMATCH,
                            "%s: loaders run '%s' and '%s' as one layer, or as experts of one scheme, but the first "
                            "would be %s (%s) and the second %s (%s)",
                            path, p->c->tensors.items[k].name, p->c->tensors.items[i].name,
                            tsr_scheme_spelling((tsr_scheme)p->schemes[k]), p->decisions[k].reason,
                            tsr_scheme_spelling((tsr_scheme)p->schemes[i]), p->decisions[i].reason);
    }
    return TSR_OK;
}

static bool has_static_inputs(const planning *p)
{
    return p->o->calibration != NULL || p->o->input_scale != 0;
}

static tsr_status decide(const planning *p)
{
    bool used[TSR_SCHEMES] = {false};
    TSR_TRY(tsr_rules_match_all(p->match, p->o->rules, p->c, p->scratch, p->err));
    TSR_TRY(note_items(p, used));
    TSR_TRY(check_items(p));
    const tsr_status mixed = tsr_mixed_schemes_check(used, p->o->rules->dialect, p->err);
    if (mixed != TSR_OK)
        return tsr_prepend(p->err, mixed, "%s", p->o->rules->path);
    const bool needs =
        used[TSR_SCHEME_NVFP4] || (used[TSR_SCHEME_FP8_TENSOR] && p->o->rules->dialect == TSR_DIALECT_MODELOPT);
    if (needs && !has_static_inputs(p))
        return tsr_fail_as(p->err, TSR_ERROR_ACTIVATION_RANGES, TSR_E_MISMATCH,
                           "%s: %s and needs their ranges: give --activations FILE "
                           "(tessera calibrate makes it) or --input-scale X, or use %s",
                           p->o->rules->path,
                           used[TSR_SCHEME_NVFP4] ? "nvfp4 also quantizes activations"
                                                  : "fp8-tensor of dialect modelopt has static scales of activations",
                           used[TSR_SCHEME_NVFP4] ? "nvfp4-weight-only" : "mxfp8");
    tsr_policy_options policy = {.include = p->o->include, .n_include = p->o->n_include};
    tsr_scheme_policy(TSR_SCHEME_FP8_CHANNEL, &policy);
    TSR_TRY(tsr_plan_decide(p->plan, &policy, p->by_scheme, p->err));
    for (size_t k = 1; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        if (!used[scheme])
            continue;
        tsr_scheme_policy(scheme, &policy);
        TSR_TRY(tsr_policy_decide(p->c, p->plan->model_type, &policy, &p->plan->arena, p->by_scheme, p->err));
        TSR_TRY(decide_scheme(p, scheme));
    }
    note_embeddings(p);
    return check_together(p);
}

/* ---- steps ---- */

/* Returns how scales of a scheme are chosen: as its variant says, or by --scales, unless all are plain. Schemes whose
 * scales are FP32 have no best ones. */
static tsr_scale_search search_of(const planning *p, tsr_scheme scheme)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
    if (p->o->plain)
        return TSR_SCALES_AMAX;
    if (tsr_scheme_row_search(row) != TSR_SCALES_AMAX)
        return tsr_scheme_row_search(row);
    const tsr_dtype stored = row->form == TSR_FORM_BLOCKS ? TSR_F32 : row->ints.scale_dtype;
    const tsr_scale_search search = tsr_scheme_search(scheme, p->o->search);
    return search == TSR_SCALES_BEST && tsr_scheme_check_scales(scheme, search, stored, NULL) != TSR_OK
               ? TSR_SCALES_AMAX
               : search;
}

static tsr_status plan_small_groups(const planning *p, const tsr_tensor *t, tsr_scheme scheme)
{
    tsr_mx_layers layers = p->layers;
    tsr_mx_description d = tsr_mx_describe(scheme, p->o->rules->dialect, has_static_inputs(p));
    const bool fp8 = d.config.group == 0, has_scale = fp8 || tsr_mx_needs_ranges(scheme);
    d.scheme.search = search_of(p, scheme);
    layers.calibration = has_scale ? p->o->calibration : NULL;
    layers.input_scale = has_scale ? p->o->input_scale : 0;
    return tsr_mx_layers_plan(
        &layers, t, &(tsr_mx_step){tsr_scheme_spelling(scheme), fp8 ? NULL : &d.scheme, d.names, false}, p->err);
}

static tsr_status plan_blocks(const planning *p, const tsr_tensor *t, tsr_scheme scheme)
{
    tsr_fp8_block blocks = tsr_scheme_row_of(scheme)->fp8;
    blocks.search = search_of(p, scheme);
    return tsr_plan_quantize(p->plan, &(tsr_weight){.data = t}, &blocks, TSR_DIALECT_COMPRESSED_TENSORS, p->err);
}

static tsr_status plan_weight(const planning *p, const tsr_tensor *t, tsr_scheme scheme)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
    tsr_int_scheme ints = row->ints;
    ints.search = search_of(p, scheme);
    switch (row->form) {
    case TSR_FORM_GROUPS:
    case TSR_FORM_FP8_TENSOR:
        return plan_small_groups(p, t, scheme);
    case TSR_FORM_BLOCKS:
        return plan_blocks(p, t, scheme);
    case TSR_FORM_FP8_ROWS:
        return tsr_plan_fp8_channel(p->plan, t, TSR_SCALE_F32, search_of(p, scheme), p->err);
    default:
        return tsr_plan_packed(p->plan, t, &ints, p->err);
    }
}

/* Rejects --scales four-six for rules that give no weight NVFP4. */
static tsr_status check_four_six(const planning *p)
{
    for (size_t i = 0; i < p->c->tensors.count && p->o->search == TSR_SCALES_FOUR_SIX; i++) {
        if (p->schemes[i] != TSR_SCHEME_KEEP &&
            tsr_scheme_search((tsr_scheme)p->schemes[i], TSR_SCALES_FOUR_SIX) == TSR_SCALES_FOUR_SIX)
            return TSR_OK;
    }
    return p->o->search != TSR_SCALES_FOUR_SIX
               ? TSR_OK
               : tsr_fail(p->err, TSR_E_USAGE, "--scales four-six is for nvfp4, which the rules give to no weight");
}

static tsr_status plan_tensors(const planning *p)
{
    TSR_TRY(check_four_six(p));
    for (size_t i = 0; i < p->c->tensors.count; i++)
        p->layers.coded[i] = p->schemes[i] != TSR_SCHEME_KEEP;
    for (size_t i = 0; i < p->c->tensors.count; i++) {
        const tsr_tensor *const t = &p->c->tensors.items[i];
        const bool codes = p->schemes[i] != TSR_SCHEME_KEEP;
        TSR_TRY(codes ? plan_weight(p, t, (tsr_scheme)p->schemes[i]) : tsr_plan_copy(p->plan, t, t->name, p->err));
        TSR_TRY(tsr_plan_add_note(p->plan, t, codes ? "quantize" : "copy", p->decisions[i].reason, p->err));
    }
    return TSR_OK;
}

/* ---- the plan ---- */

static tsr_status spell_command(const planning *p)
{
    tsr_text t = {0};
    tsr_text_printf(&t, "quantize --rules %016llx --scales %s --max-shard-size %llu", U64(p->o->rules->hash),
                    tsr_scale_search_name(p->o->search), U64(p->o->max_shard_bytes));
    if (p->o->rules->dialect != TSR_DIALECT_COMPRESSED_TENSORS)
        tsr_text_printf(&t, " --dialect %s", p->plan->made.dialect);
    if (p->o->calibration != NULL)
        tsr_text_printf(&t, " --activations %016llx", U64(p->o->calibration->hash));
    if (p->o->input_scale != 0)
        tsr_text_printf(&t, " --input-scale %.9g", (double)p->o->input_scale);
    tsr_spell_kv_scales(&t, &p->o->kv);
    tsr_spell_policy(&t, &(tsr_policy_options){.include = p->o->include, .n_include = p->o->n_include});
    return tsr_plan_take_command(p->plan, &t, p->err);
}

static tsr_status make_plan(const planning *p)
{
    TSR_TRY(tsr_quantize_check_source(p->c, p->err));
    TSR_TRY(spell_command(p));
    TSR_TRY(decide(p));
    TSR_TRY(plan_tensors(p));
    TSR_TRY(tsr_plan_kv_scales(p->plan, &p->o->kv, p->o->rules->dialect, p->err));
    TSR_TRY(tsr_plan_model_files(p->plan, p->o->max_shard_bytes, (const char *const[]){TSR_HF_QUANT_CONFIG_NAME, NULL},
                                 p->err));
    TSR_TRY(
        tsr_plan_mixed_config(p->plan, p->schemes, p->decisions, p->o->rules->dialect, has_static_inputs(p), p->err));
    TSR_TRY(tsr_plan_state_kv_scales(p->plan, &p->o->kv, p->o->rules->dialect, p->err));
    return tsr_plan_finish(p->plan, p->err);
}

tsr_status tsr_rules_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_rules_options *options,
                          tsr_err *err)
{
    const size_t count = (*source)->tensors.count + 1;
    tsr_rules_match match;
    tsr_arena scratch = {0};
    planning p = {
        .plan = plan,
        .c = *source,
        .o = options,
        .schemes = calloc(count, sizeof *p.schemes),
        .decisions = calloc(count, sizeof *p.decisions),
        .by_scheme = calloc(count, sizeof *p.by_scheme),
        .first = calloc(count, sizeof *p.first),
        .match = &match,
        .scratch = &scratch,
        .layers = {.plan = plan},
        .err = err,
    };
    *plan = tsr_plan_begin(source, 1);
    plan->report = tsr_quantize_report;
    plan->importance = options->importance;
    plan->made = (tsr_plan_made){.scheme = "mixed", .dialect = tsr_dialect_name(options->rules->dialect)};
    const bool enough = p.schemes != NULL && p.decisions != NULL && p.by_scheme != NULL && p.first != NULL &&
                        tsr_mx_layers_make(&p.layers, count);
    const tsr_status status = enough ? make_plan(&p) : tsr_out_of_memory(err, "while planning");
    free(p.schemes);
    free(p.decisions);
    free(p.by_scheme);
    free(p.first);
    tsr_arena_free(&scratch);
    tsr_mx_layers_free(&p.layers);
    return tsr_plan_ended(plan, status);
}
