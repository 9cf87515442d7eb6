/* Plans block FP8 from FP8: codes that stay, codes that are computed again, and the configuration. */
#include "convert/plans/requantize_plan.h"

#include "convert/configs/deepseek_v4_config.h"
#include "convert/configs/fp8_config.h"
#include "convert/configs/kv_scales.h"
#include "convert/ops/quantize_op.h"
#include "convert/ops/rows/scale_op.h"
#include "convert/plans/quantize_report.h"
#include "convert/schemes/schemes.h"
#include "quantize/policy/policy.h"

#include <string.h>

typedef struct target {
    tsr_fp8_block block;
    tsr_dialect dialect;
} target;

tsr_status tsr_requantize_settle(tsr_requantize_options *o, const tsr_checkpoint *source, const tsr_weights *weights,
                                 tsr_err *err)
{
    if (weights->n_scaled == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: no tensor is F8_E4M3; 'tessera quantize' makes FP8 from BF16, F16 or F32", source->path);
    if (o->block.rows == 0)
        o->block = weights->block;
    if (o->block.rows == 0)
        o->block = (tsr_block){128, 128}; /* the block size that every loader supports */
    if (o->scale_fmt < 0)
        o->scale_fmt = weights->ue8m0 ? TSR_SCALE_UE8M0 : TSR_SCALE_F32;
    if (o->dialect < 0)
        o->dialect = (int)weights->dialect;
    return TSR_OK;
}

static target target_of(const tsr_plan *plan, const tsr_requantize_options *o)
{
    const bool native = o->dialect == TSR_DIALECT_DEEPSEEK && tsr_has_deepseek_v4_names(plan->sources[0]);
    return (target){.block = {.block_rows = (uint32_t)o->block.rows,
                              .block_cols = (uint32_t)o->block.cols,
                              .scale_fmt = (tsr_scale_fmt)o->scale_fmt,
                              .search = o->search},
                    .dialect = native ? TSR_DIALECT_DEEPSEEK_V4 : (tsr_dialect)o->dialect};
}

/* Returns the reason to compute the weight's codes again, or NULL if they stay. */
static const char *reason_to_requantize(const tsr_weights *weights, const tsr_weight *w, const target *to)
{
    if (w->block.rows != to->block.block_rows || w->block.cols != to->block.block_cols)
        return "other blocks";
    if (to->block.scale_fmt == TSR_SCALE_UE8M0 && !weights->ue8m0 && w->scale_dtype != TSR_F8_E8M0)
        return "scales become powers of two";
    return to->block.search != TSR_SCALES_AMAX ? "scales of least squared error" : NULL;
}

/* Finds the weight in the unquantized original. */
static tsr_status find_original(tsr_plan *plan, const tsr_weight *w, const tsr_tensor **original, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[1];
    const tsr_tensor *const found = tsr_checkpoint_find(c, w->data->name);
    if (found == NULL)
        return tsr_fail(err, TSR_E_MISMATCH, "%s: no tensor '%s' to compare with", c->path, w->data->name);
    if (!tsr_dtype_is_weight_float(found->dtype) || !tsr_same_shape(found, w->data))
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: '%s' is %s; it needs the shape of the tensor in '%s', and BF16, F16 or F32", c->path,
                        found->name, tsr_dtype_name(found->dtype), plan->sources[0]->path);
    tsr_tensor *const copy = tsr_plan_tensor(plan, found);
    if (copy == NULL)
        return tsr_out_of_memory(err, "while planning");
    copy->source = 1;
    *original = copy;
    return TSR_OK;
}

static tsr_status plan_weight(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *w, const target *to,
                              tsr_err *err)
{
    const tsr_tensor *original = NULL;
    const char *const reason = reason_to_requantize(weights, w, to);
    const char *const scale = tsr_fp8_scale_name(plan, w->data->name, to->dialect);
    if (scale == NULL)
        return tsr_out_of_memory(err, "while planning");
    if (reason == NULL || w->data->bytes == 0) {
        TSR_TRY(tsr_plan_copy(plan, w->data, w->data->name, err));
        TSR_TRY(tsr_plan_scales(plan, w, scale, err));
        TSR_TRY(tsr_plan_add_note(plan, w->data, "copy", "the codes stay", err));
        TSR_TRY(tsr_plan_add_note(plan, w->scale, "rename", "the same scales, as FP32", err));
    } else {
        plan->report = tsr_quantize_report;
        TSR_TRY(tsr_plan_quantize(plan, w, &to->block, to->dialect, err));
        TSR_TRY(tsr_plan_add_note(plan, w->data, "requantize", reason, err));
        TSR_TRY(tsr_plan_add_note(plan, w->scale, "consume", "the scale of a weight that is requantized", err));
    }
    if (w->input_scale != NULL)
        TSR_TRY(tsr_plan_add_note(plan, w->input_scale, "drop",
                                  "input scale: by the configuration, inputs are quantized dynamically", err));
    if (w->data->bytes == 0 || plan->n_sources < 2)
        return TSR_OK;
    plan->report = tsr_quantize_report;
    TSR_TRY(find_original(plan, w, &original, err));
    return tsr_plan_measure(plan, w, reason == NULL ? NULL : &to->block, original, err);
}

static tsr_status plan_plain(tsr_plan *plan, const tsr_weights *weights, const tsr_weight *w, const target *to,
                             tsr_err *err)
{
    const char *names[2];
    size_t n;
    TSR_TRY(tsr_kv_names(weights, plan->sources[0], w->data, to->dialect, &plan->arena, names, &n, err));
    for (size_t i = 0; i < n; i++)
        TSR_TRY(tsr_plan_copy(plan, w->data, names[i], err));
    if (n > 0)
        return tsr_plan_add_note(plan, w->data, "rename", "a scale of the KV cache", err);
    TSR_TRY(tsr_plan_copy(plan, w->data, w->data->name, err));
    return tsr_plan_add_note(plan, w->data, "copy", tsr_plain_reason(w), err);
}

static tsr_status plan_tensors(tsr_plan *plan, const tsr_weights *weights, const target *to, tsr_err *err)
{
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->scale != NULL) {
            TSR_TRY(plan_weight(plan, weights, w, to, err));
            continue;
        }
        TSR_TRY(plan_plain(plan, weights, w, to, err));
    }
    return TSR_OK;
}

static const tsr_tensor *kept(const void *context, size_t i)
{
    const tsr_weight *const w = &((const tsr_weights *)context)->items[i];
    return w->scale == NULL && !tsr_policy_is_embedding(w->data->name) ? w->data : NULL;
}

static tsr_status make_plan(tsr_plan *plan, const tsr_weights *weights, const tsr_requantize_options *o, tsr_err *err)
{
    const target to = target_of(plan, o);
    TSR_TRY(tsr_scheme_check_scales(TSR_SCHEME_FP8_BLOCK, o->search,
                                    o->scale_fmt == TSR_SCALE_UE8M0 ? TSR_F8_E8M0 : TSR_F32, err));
    plan->command = tsr_arena_printf(
        &plan->arena,
        "convert --to fp8-block --block %ux%u --source-block %llux%llu --scale-fmt %s --scales %s --dialect %s "
        "--max-shard-size %llu%s",
        to.block.block_rows, to.block.block_cols, U64(o->source_block.rows), U64(o->source_block.cols),
        to.block.scale_fmt == TSR_SCALE_UE8M0 ? "ue8m0" : "f32", tsr_scale_search_name(to.block.search),
        to.dialect == TSR_DIALECT_COMPRESSED_TENSORS ? "compressed-tensors" : "deepseek",
        (unsigned long long)o->max_shard_bytes, plan->n_sources > 1 ? " --against" : "");
    if (o->source_block.rows != 0) /* `verify` needs the block size too */
        plan->next = tsr_arena_printf(&plan->arena, "tessera verify DST --against SRC --source-block %llux%llu",
                                      U64(o->source_block.rows), U64(o->source_block.cols));
    if (plan->command == NULL || (o->source_block.rows != 0 && plan->next == NULL))
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(tsr_plan_warn_of(plan, weights, err));
    TSR_TRY(plan_tensors(plan, weights, &to, err));
    TSR_TRY(tsr_plan_model_files(plan, o->max_shard_bytes, tsr_quantization_files, err));
    TSR_TRY(tsr_plan_fp8_config(plan, &to.block, to.dialect, kept, weights, weights->count, err));
    TSR_TRY(tsr_plan_kv_cache(plan, weights, to.dialect, err));
    if (to.dialect == TSR_DIALECT_DEEPSEEK_V4)
        TSR_TRY(tsr_plan_expert_dtype(plan, "fp8", err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_requantize_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, size_t n_sources,
                               const tsr_weights *weights, const tsr_requantize_options *options, tsr_err *err)
{
    tsr_requantize_options settled = *options;
    *plan = tsr_plan_begin(sources, n_sources);
    tsr_status status = tsr_weights_refuse_parts(weights, *sources, "requantizing to FP8", err);
    if (status == TSR_OK)
        status = tsr_requantize_settle(&settled, *sources, weights, err);
    if (status == TSR_OK)
        status = make_plan(plan, weights, &settled, err);
    return tsr_plan_ended(plan, status);
}
