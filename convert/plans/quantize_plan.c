/* Plans block FP8: a step for each tensor, and the configuration. */
#include "convert/plans/quantize_plan.h"

#include "convert/configs/deepseek_v4_config.h"
#include "convert/configs/fp8_config.h"
#include "convert/ops/quantize_op.h"
#include "convert/plans/policy_plan.h"
#include "convert/schemes/dialects.h"

#include <stdlib.h>

/* ---- configuration ---- */

static const tsr_tensor *kept(const void *context, size_t i)
{
    const tsr_decided *const d = context;
    return d->decisions[i].treatment == TSR_KEEP ? &d->c->tensors.items[i] : NULL;
}

/* ---- rejecting quantized sources ---- */

static bool has_fp8(const tsr_checkpoint *c)
{
    for (size_t i = 0; i < c->tensors.count; i++) {
        if (c->tensors.items[i].dtype >= TSR_F8_E5M2 && c->tensors.items[i].dtype <= TSR_F8_E5M2FNUZ)
            return true;
    }
    return false;
}

tsr_status tsr_quantize_check_source(const tsr_checkpoint *c, tsr_err *err)
{
    static const char kAdvice[] =
        "already quantized; start from the BF16 original, or dequantize it: tessera convert SRC -o DST --to bf16";
    tsr_weights weights;
    tsr_status status = tsr_weights_pair(&weights, c, (tsr_block){0, 0}, err);
    if (status == TSR_E_USAGE) /* a quantized source that states no block size */
        status = tsr_weights_pair(&weights, c, (tsr_block){128, 128}, err);
    if (status != TSR_OK && status != TSR_E_NOMEM && tsr_quantization_path(c) != NULL)
        return tsr_prepend(err, status, "already quantized (%s)", tsr_quantization_path(c));
    if (status != TSR_OK && status != TSR_E_NOMEM && has_fp8(c))
        return tsr_prepend(err, status, "already quantized");
    TSR_TRY(status);
    if (weights.method != NULL)
        status = tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": %s (quant_method %s): %s", c->path,
                          tsr_quantization_path(c), weights.method, kAdvice);
    for (size_t i = 0; status == TSR_OK && i < weights.count; i++) {
        const tsr_tensor *const t = weights.items[i].data;
        if (weights.items[i].scale != NULL)
            status = tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s with a scale: %s", c->files[t->file].path,
                              t->name, tsr_dtype_name((tsr_dtype)t->dtype), kAdvice);
    }
    tsr_weights_free(&weights);
    return status;
}

/* ---- the plan ---- */

static tsr_status plan_quantize(tsr_plan *plan, const tsr_tensor *t, const tsr_quantize_options *o, tsr_err *err)
{
    const char *const scale = tsr_fp8_scale_name(plan, t->name, o->dialect);
    if (scale != NULL && tsr_checkpoint_find(plan->sources[0], scale) != NULL)
        return tsr_fail_as(err, TSR_ERROR_QUANTIZED_ALREADY, TSR_E_FORMAT,
                           "%s: '%s' already exists; is the checkpoint quantized?",
                           plan->sources[0]->files[t->file].path, scale);
    return tsr_plan_quantize(plan, &(tsr_weight){.data = t}, &o->block, o->dialect, err);
}

static tsr_status plan_tensors(tsr_plan *plan, const tsr_quantize_options *o, const tsr_decision *decisions,
                               tsr_err *err)
{
    const tsr_tensors *const all = &plan->sources[0]->tensors;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = &all->items[i];
        const bool quantize = decisions[i].treatment == TSR_QUANTIZE;
        if (o->dialect == TSR_DIALECT_DEEPSEEK_V4 && tsr_is_plain_table(t)) {
            TSR_TRY(tsr_plan_deepseek_v4_table(plan, t, err));
            continue;
        }
        TSR_TRY(quantize ? plan_quantize(plan, t, o, err) : tsr_plan_copy(plan, t, t->name, err));
        TSR_TRY(tsr_plan_add_note(plan, t, quantize ? "quantize" : "copy", decisions[i].reason, err));
    }
    return TSR_OK;
}

/* Spells the options that determine the output in a canonical form. */
static tsr_status spell_command(tsr_plan *plan, const tsr_quantize_options *o, tsr_err *err)
{
    tsr_text t = {0};
    tsr_text_printf(&t,
                    "quantize --scheme fp8-block --block %ux%u --scale-fmt %s --scales %s --dialect %s "
                    "--max-shard-size %llu",
                    o->block.block_rows, o->block.block_cols, o->block.scale_fmt == TSR_SCALE_UE8M0 ? "ue8m0" : "f32",
                    tsr_scale_search_name(o->block.search), tsr_dialect_name(o->dialect),
                    (unsigned long long)o->max_shard_bytes);
    tsr_spell_kv_scales(&t, &o->kv);
    tsr_spell_policy(&t, &o->policy);
    return tsr_plan_take_command(plan, &t, err);
}

static tsr_status make_plan(tsr_plan *plan, const void *options, tsr_decision *decisions, tsr_err *err)
{
    tsr_quantize_options own = *(const tsr_quantize_options *)options;
    const tsr_quantize_options *const o = &own;
    tsr_policy_options policy = o->policy;
    if (own.dialect == TSR_DIALECT_DEEPSEEK && tsr_has_deepseek_v4_names(plan->sources[0]))
        own.dialect = TSR_DIALECT_DEEPSEEK_V4;
    policy.block_rows = o->block.block_rows;
    plan->importance = o->importance;
    if (!policy.as_source) /* in that case the source was inspected and may have codes that stay */
        TSR_TRY(tsr_quantize_check_source(plan->sources[0], err));
    TSR_TRY(spell_command(plan, o, err));
    TSR_TRY(tsr_plan_decide(plan, &policy, decisions, err));
    TSR_TRY(plan_tensors(plan, o, decisions, err));
    TSR_TRY(tsr_plan_warn_of_share(plan, err));
    TSR_TRY(tsr_plan_kv_scales(plan, &o->kv, o->dialect, err));
    TSR_TRY(tsr_plan_model_files(plan, o->max_shard_bytes, NULL, err));
    const tsr_checkpoint *const c = plan->sources[0];
    TSR_TRY(
        tsr_plan_fp8_config(plan, &o->block, o->dialect, kept, &(tsr_decided){c, decisions}, c->tensors.count, err));
    TSR_TRY(tsr_plan_state_kv_scales(plan, &o->kv, o->dialect, err));
    if (o->dialect == TSR_DIALECT_DEEPSEEK_V4)
        TSR_TRY(tsr_plan_expert_dtype(plan, "fp8", err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_quantize_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_quantize_options *options,
                             tsr_err *err)
{
    return tsr_plan_by_policy(plan, source, make_plan, options, err);
}
