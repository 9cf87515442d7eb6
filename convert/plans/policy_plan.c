/* Applies the policy to a plan: decisions, warnings, and an error if nothing would be quantized. */
#include "convert/plans/policy_plan.h"

#include "common/glob.h"
#include "convert/plans/quantize_report.h"
#include "formats/checkpoint/config.h"
#include "formats/names/coding.h"
#include "formats/names/model.h"
#include "quantize/policy/policy_rules.h"

#include <stdlib.h>
#include <string.h>

static const char kExclude[] = "--exclude";

void tsr_spell_policy(tsr_text *command, const tsr_policy_options *options)
{
    for (size_t i = 0; i < options->n_include; i++)
        tsr_text_printf(command, " --include %s", options->include[i]);
    for (size_t i = 0; i < options->n_exclude; i++)
        tsr_text_printf(command, " %s %s", kExclude, options->exclude[i]);
}

static tsr_status check_globs(tsr_plan *plan, const char *option, const char *const *globs, size_t n,
                              const tsr_decision *decisions, tsr_err *err)
{
    const tsr_tensors *const all = &plan->sources[0]->tensors;
    for (size_t i = 0; i < n; i++) {
        size_t matched = 0, quantized = 0;
        for (size_t k = 0; k < all->count; k++) {
            if (!tsr_glob_match(globs[i], all->items[k].name))
                continue;
            matched++;
            quantized += decisions[k].treatment == TSR_QUANTIZE;
        }
        if (matched == 0)
            return tsr_fail(err, TSR_E_USAGE, "%s '%s' matches no tensor of %s: " TSR_GLOB_HELP, option, globs[i],
                            plan->sources[0]->path);
        else if (quantized == 0 && strcmp(option, kExclude) != 0)
            TSR_TRY(tsr_plan_warn(plan, err,
                                  "%s '%s' matches %zu tensors, none of which can be quantized: --dry-run says why",
                                  option, globs[i], matched));
    }
    return TSR_OK;
}

/* Warns if the general rules keep stacks of experts, which may be most of a model's weights. */
static tsr_status warn_of_stacks(tsr_plan *plan, const tsr_decision *decisions, tsr_err *err)
{
    const tsr_tensors *const all = &plan->sources[0]->tensors;
    const tsr_tensor *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = &all->items[i];
        if (t->rank != 3 || decisions[i].treatment != TSR_KEEP || tsr_part_of(t->name) != TSR_PART_ROUTED_EXPERTS)
            continue;
        first = n++ == 0 ? t : first;
    }
    if (n == 0)
        return TSR_OK;
    return tsr_plan_warn(plan, err,
                         "%zu stacks of experts stay %s, the first is '%s': no loader is known to read codes of "
                         "this model_type's stacks",
                         n, tsr_dtype_name((tsr_dtype)first->dtype), first->name);
}

/* Rejects a diffusers model, whose layers the general rules do not know, unless the user selects what to quantize. */
static tsr_status check_kind(const tsr_checkpoint *c, const tsr_policy_options *options, tsr_err *err)
{
    tsr_json_text value;
    if (options->n_include > 0 || options->as_source || tsr_config_find(c, "model_type", &value) ||
        !tsr_config_find(c, "_class_name", &value))
        return TSR_OK;
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%s/" TSR_CONFIG_NAME
                    ": '_class_name' is %.*s and there is no 'model_type': a diffusers model, for which Tessera has no "
                    "table of layers; name the layers to quantize with --include GLOB",
                    c->path, (int)(value.size < 80 ? value.size : 80), value.data);
}

tsr_status tsr_plan_decide(tsr_plan *plan, const tsr_policy_options *options, tsr_decision *decisions, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    TSR_TRY(check_kind(c, options, err));
    plan->by_policy = true;
    plan->model_type = tsr_policy_model_type(c, &plan->arena);
    plan->general_rules = !tsr_policy_knows(plan->model_type);
    TSR_TRY(tsr_policy_decide(c, plan->model_type, options, &plan->arena, decisions, err));
    if (options->as_source)
        return check_globs(plan, kExclude, options->exclude, options->n_exclude, decisions, err);
    if (plan->general_rules && plan->model_type != NULL)
        TSR_TRY(
            tsr_plan_warn(plan, err, "unknown model_type '%s': general rules; check with --dry-run", plan->model_type));
    else if (plan->general_rules)
        TSR_TRY(tsr_plan_warn(plan, err, "no model_type (config.json): general rules; check with --dry-run"));
    if (plan->general_rules)
        TSR_TRY(warn_of_stacks(plan, decisions, err));
    if (tsr_policy_is_unseen(plan->model_type))
        TSR_TRY(tsr_plan_warn(
            plan, err,
            "no official release of model_type '%s' in 4 or 8 bits is known: the rules are those of its parent; "
            "check with --dry-run",
            plan->model_type));
    TSR_TRY(check_globs(plan, "--include", options->include, options->n_include, decisions, err));
    return check_globs(plan, kExclude, options->exclude, options->n_exclude, decisions, err);
}

/* Returns true if the note is about a kept weight that the rules of another model might quantize. */
static bool might_be_quantized(const tsr_plan_note *n)
{
    const tsr_tensor *const t = n->source;
    const bool weight = tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || t->dtype == TSR_F64;
    return t->rank >= 2 && weight && tsr_rule_for_all(t->name) == NULL;
}

/* Bytes of weights that become codes and that stay unquantized, and the largest of the latter. */
typedef struct share {
    uint64_t quantized, kept;
    const tsr_plan_note *largest;
} share;

static share share_of(const tsr_plan *plan)
{
    share s = {0};
    for (size_t i = 0; i < plan->n_notes; i++) {
        const tsr_plan_note *const n = &plan->notes[i];
        if (strcmp(n->action, "quantize") == 0) {
            s.quantized += n->source->bytes;
        } else if (might_be_quantized(n) && strncmp(n->reason, kExclude, strlen(kExclude)) != 0) {
            s.kept += n->source->bytes;
            if (s.largest == NULL || n->source->bytes > s.largest->source->bytes)
                s.largest = n;
        }
    }
    return s;
}

tsr_status tsr_plan_by_policy(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_plan_maker *make,
                              const void *options, tsr_err *err)
{
    *plan = tsr_plan_begin(source, 1);
    plan->report = tsr_quantize_report;
    tsr_decision *const decisions = calloc((*source)->tensors.count + 1, sizeof *decisions);
    const tsr_status status =
        decisions == NULL ? tsr_out_of_memory(err, "while planning") : make(plan, options, decisions, err);
    free(decisions);
    return tsr_plan_ended(plan, status);
}

const char *tsr_reason_without_place(const tsr_tensor *t)
{
    if (t->rank == 3)
        return "a stack of experts: the format cannot store it";
    return t->name[tsr_module_length(t->name)] == '\0'
               ? "its name does not end in '.weight', which loaders expect of a layer with codes"
               : "it has no rows or no columns";
}

tsr_status tsr_plan_warn_of_share(tsr_plan *plan, tsr_err *err)
{
    const double least = 0.9;
    const share s = share_of(plan);
    const double part = (double)s.quantized / ((double)s.quantized + (double)s.kept);
    if (s.quantized == 0 || s.kept == 0 || part >= least)
        return TSR_OK;
    TSR_TRY(tsr_plan_warn(plan, err,
                          "only %.0f %% of the weights are quantized; '%s', the largest of the rest, is kept: %s",
                          100 * part, s.largest->source->name, s.largest->reason));
    plan->little = plan->warnings[plan->n_warnings - 1];
    return TSR_OK;
}

tsr_status tsr_plan_check_decoded(const tsr_plan *plan, tsr_err *err)
{
    const char *const path = plan->sources[0]->path;
    const share s = share_of(plan);
    if (!plan->by_policy || s.quantized > 0)
        return TSR_OK;
    for (size_t i = 0; i < plan->n_notes; i++) {
        if (strcmp(plan->notes[i].action, "quantize") == 0) /* an empty one */
            return TSR_OK;
    }
    if (s.largest == NULL)
        return tsr_fail_as(
            err, TSR_ERROR_NOTHING_TO_QUANTIZE, TSR_E_NOTHING,
            "%s: nothing to quantize, so nothing was written: all of its %zu tensors are kept; --dry-run gives the reasons",
            path, plan->n_notes);
    return tsr_fail_as(err, TSR_ERROR_NOTHING_TO_QUANTIZE, TSR_E_NOTHING,
                       "%s: nothing to quantize, so nothing was written; its largest weight, '%s', is kept: %s "
                       "(--dry-run gives the reason for each)",
                       path, s.largest->source->name, s.largest->reason);
}
