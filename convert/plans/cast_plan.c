/* Plans the decoding of every weight of codes, and the configuration of an unquantized model. */
#include "convert/plans/cast_plan.h"

#include "convert/configs/fp8_config.h"
#include "convert/ops/cast_op.h"
#include "convert/plans/experts/stack_experts.h"
#include "convert/plans/weights_plan.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "formats/names/expert_stacks.h"
#include "formats/weights/kv_names.h"

/* ---- the plan ---- */

static tsr_status plan_tensors(tsr_plan *plan, const tsr_weights *weights, const tsr_cast_options *o, tsr_err *err)
{
    bool any = !o->stack;
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        bool stacked = false;
        tsr_kv_name name;
        if (weights->n_scaled > 0 && w->scale == NULL && tsr_kv_name_read(w->data->name, &name)) {
            TSR_TRY(tsr_plan_add_note(plan, w->data, "drop",
                                      "a scale of the KV cache, which loaders refuse in an unquantized model", err));
            continue;
        }
        if (o->stack)
            TSR_TRY(tsr_stack_experts(plan, weights, w, o->dtype, &stacked, err));
        any = any || stacked || (weights->n_scaled > 0 && tsr_stack_find(w->values->name) != NULL);
        if (stacked)
            continue;
        if (w->scale == NULL) {
            TSR_TRY(tsr_plan_copy(plan, w->data, w->data->name, err));
            TSR_TRY(tsr_plan_add_note(plan, w->data, "copy", tsr_plain_reason(w), err));
            continue;
        }
        const tsr_tensor *companions[TSR_MAX_COMPANIONS];
        const size_t n = tsr_weight_companions(w, companions, NULL);
        const char *const decoded =
            tsr_arena_printf(&plan->arena, "%s to %s", w->kind->title, tsr_dtype_name(o->dtype));
        if (decoded == NULL)
            return tsr_out_of_memory(err, "while planning");
        TSR_TRY(tsr_plan_cast(plan, w, o->dtype, err));
        TSR_TRY(tsr_plan_add_note(plan, w->data, "dequantize", decoded, err));
        for (size_t k = 0; k < n; k++)
            TSR_TRY(tsr_plan_add_note(plan, companions[k], "consume", "belongs to a weight that is dequantized", err));
    }
    return any ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED, "%s: --experts stack has no effect: no expert is a separate tensor%s",
                          plan->sources[0]->path,
                          weights->n_scaled == 0 ? ", and no tensor is quantized: nothing to convert" : "");
}

/* Writes config.json without quantization_config, and with the new dtype if the source states one ("torch_dtype" or
 * "dtype"). */
static tsr_status plan_config(tsr_plan *plan, tsr_dtype dtype, tsr_err *err)
{
    static const char *const kKeys[] = {"torch_dtype", "dtype"};
    const tsr_checkpoint *const c = plan->sources[0];
    const char *const value = dtype == TSR_BF16 ? "\"bfloat16\"" : dtype == TSR_F16 ? "\"float16\"" : "\"float32\"";
    if (c->config == NULL)
        return TSR_OK;
    tsr_text config = {0};
    tsr_status status = tsr_fp8_config_remove(&config, c, err);
    for (size_t i = 0; status == TSR_OK && i < sizeof kKeys / sizeof *kKeys; i++) {
        tsr_json_text old;
        tsr_text edited = {0};
        if (!tsr_json_find(config.data, config.size, kKeys[i], &old))
            continue;
        status = tsr_json_edit_set(&edited, config.data, config.size, kKeys[i], value, err);
        tsr_text_free(&config);
        config = edited;
    }
    return tsr_plan_take_text(plan, "", TSR_CONFIG_NAME, &config, status, err);
}

/* Copies config.json of a model without codes. */
static tsr_status copy_config(tsr_plan *plan, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    return c->config == NULL ? TSR_OK : tsr_plan_text_file(plan, "", TSR_CONFIG_NAME, c->config, c->config_size, err);
}

static tsr_status make_plan(tsr_plan *plan, const tsr_weights *weights, const void *options, tsr_err *err)
{
    const tsr_cast_options *const o = options;
    TSR_TRY(tsr_plan_warn_of(plan, weights, err));
    plan->command =
        tsr_arena_printf(&plan->arena, "convert --to bf16 --dtype %s --block %llux%llu --max-shard-size %llu%s",
                         tsr_dtype_name(o->dtype), U64(o->block.rows), U64(o->block.cols),
                         (unsigned long long)o->max_shard_bytes, o->stack ? " --experts stack" : "");
    if (o->block.rows != 0) /* `verify` needs the block size too */
        plan->next = tsr_arena_printf(&plan->arena, "tessera verify DST --against SRC --source-block %llux%llu",
                                      U64(o->block.rows), U64(o->block.cols));
    if (plan->command == NULL || (o->block.rows != 0 && plan->next == NULL))
        return tsr_out_of_memory(err, "while planning");
    if (weights->n_scaled == 0 && !o->stack)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: no tensor is quantized: nothing to dequantize",
                        plan->sources[0]->path);
    TSR_TRY(plan_tensors(plan, weights, o, err));
    TSR_TRY(tsr_plan_model_files(plan, o->max_shard_bytes, tsr_quantization_files, err));
    TSR_TRY(weights->n_scaled == 0 ? copy_config(plan, err) : plan_config(plan, o->dtype, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_cast_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_cast_options *options,
                         tsr_err *err)
{
    return tsr_plan_by_weights(plan, source, options->block, "dequantizing", make_plan, options, err);
}
