/* Plans the layout of gpt-oss releases: stacks experts, copies plain tensors, and rejects anything else. */
#include "convert/plans/layouts/gpt_oss_plan.h"

#include "convert/configs/fp8_config.h"
#include "convert/plans/experts/gpt_oss_layout.h"
#include "convert/plans/experts/stack_experts.h"
#include "convert/plans/mx_plan.h"
#include "convert/plans/weights_plan.h"

static tsr_status plan_weight(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *w, bool *any, tsr_err *err)
{
    const char *const path = plan->sources[0]->files[w->data->file].path;
    bool stacked;
    if (w->scale != NULL && w->transposed)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is already in this layout; --dialect compressed-tensors splits its experts", path,
                        w->data->name);
    TSR_TRY(tsr_stack_codes(plan, weights, w, &stacked, err));
    *any = *any || (stacked && w->scale != NULL);
    if (stacked)
        return TSR_OK;
    if (w->scale != NULL)
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: '%s' is %s, but --dialect gpt-oss stores codes of experts only; run 'tessera convert --to bf16' first",
            path, w->values->name, w->kind->title);
    TSR_TRY(tsr_plan_copy(plan, w->data, w->data->name, err));
    return tsr_plan_add_note(plan, w->data, "copy", tsr_plain_reason(w), err);
}

static tsr_status plan_weights(tsr_plan *plan, const tsr_weights *weights, tsr_err *err)
{
    bool any = false;
    for (size_t i = 0; i < weights->count; i++)
        TSR_TRY(plan_weight(plan, weights, &weights->items[i], &any, err));
    return any ? TSR_OK
               : tsr_fail(
                     err, TSR_E_UNSUPPORTED,
                     "%s: no expert is quantized; quantize BF16 with 'tessera quantize --scheme mxfp4-weight-only'",
                     plan->sources[0]->path);
}

static tsr_status plan_config(tsr_plan *plan, tsr_err *err)
{
    tsr_mx_config config = tsr_mx_describe(TSR_SCHEME_MXFP4_WEIGHT_ONLY, TSR_DIALECT_GPT_OSS, false).config;
    tsr_text value = {0};
    config.unquantized = tsr_gpt_oss_kept;
    config.n_unquantized = tsr_gpt_oss_n_kept;
    tsr_mx_config_write(&value, TSR_DIALECT_GPT_OSS, &config);
    return tsr_plan_take_quantization(plan, &value, err);
}

static tsr_status make_plan(tsr_plan *plan, const tsr_weights *weights, const void *options, tsr_err *err)
{
    const tsr_gpt_oss_options *const o = options;
    if (!tsr_is_gpt_oss(plan->sources[0]))
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: --dialect gpt-oss supports model_type gpt_oss only; use --dialect compressed-tensors for other models",
            plan->sources[0]->path);
    plan->command = tsr_arena_printf(
        &plan->arena, "convert --to mxfp4-weight-only --dialect gpt-oss --source-block %llux%llu --max-shard-size %llu",
        U64(o->source_block.rows), U64(o->source_block.cols), U64(o->max_shard_bytes));
    if (plan->command == NULL)
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(plan_weights(plan, weights, err));
    TSR_TRY(tsr_plan_model_files(plan, o->max_shard_bytes, tsr_quantization_files, err));
    TSR_TRY(plan_config(plan, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_gpt_oss_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_gpt_oss_options *options,
                            tsr_err *err)
{
    return tsr_plan_by_weights(plan, source, options->source_block, "converting", make_plan, options, err);
}
