/* Plans the restoration of 4-bit codes: which weights, and which tensors come from which source. */
#include "convert/plans/restore_codes_plan.h"

#include "convert/configs/fp8_config.h"
#include "convert/ops/restore_codes_op.h"
#include "convert/plans/quantize_plan.h"
#include "formats/checkpoint/config.h"
#include "formats/weights/weights.h"

#include <stdlib.h>
#include <string.h>

typedef struct planning {
    tsr_plan *plan;
    const tsr_checkpoint *source, *original;
    tsr_weights weights; /* weights of the original */
    bool *paired;        /* [tensors of the source]: the original has a tensor of this name */
    tsr_err *err;
} planning;

/* ---- weights ---- */

static tsr_status check_kind(const planning *p, const tsr_weight *w)
{
    if (w->coding == TSR_CODED_PACKED && w->bits == 4 && w->grid_rows == w->rows &&
        (!w->reordered || w->group_index->dtype == TSR_I32))
        return TSR_OK;
    return tsr_fail(
        p->err, TSR_E_UNSUPPORTED,
        "%s: '%s' is %s: --scales-from takes int4 in pack-quantized form, with a scale for each row or group "
        "(of AWQ and GPTQ tessera convert --to int4-weight-only makes it)",
        p->original->files[w->data->file].path, w->data->name, w->kind->title);
}

/* Finds the tensor of the source that corresponds to a tensor of the original. */
static tsr_status find_same(const planning *p, const tsr_tensor *values, const tsr_tensor **same)
{
    const tsr_tensor *const t = tsr_checkpoint_find(p->source, values->name);
    if (t == NULL)
        return tsr_fail(p->err, TSR_E_MISMATCH, "%s: no tensor '%s', which %s has", p->source->path, values->name,
                        p->original->path);
    if (!tsr_same_shape(t, values))
        return tsr_fail(p->err, TSR_E_MISMATCH, "%s: '%s' has a different shape in %s", p->source->path, t->name,
                        p->original->path);
    p->paired[t - p->source->tensors.items] = true;
    *same = t;
    return TSR_OK;
}

static tsr_status plan_codes(const planning *p, const tsr_weight *w)
{
    const tsr_tensor *values;
    const tsr_tensor *const kept[] = {w->scale, w->zero_point, w->shape, w->group_index};
    TSR_TRY(check_kind(p, w));
    TSR_TRY(find_same(p, w->values, &values));
    if (values->dtype != TSR_BF16)
        return tsr_fail(p->err, TSR_E_MISMATCH, "%s: '%s' is %s; codes can be restored from BF16 only", p->source->path,
                        values->name, tsr_dtype_name((tsr_dtype)values->dtype));
    TSR_TRY(tsr_plan_restore_codes(p->plan, values, w, p->err));
    TSR_TRY(tsr_plan_add_note(p->plan, values, "quantize", "with the scales of the original", p->err));
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        const tsr_tensor *const t = kept[i] == NULL ? NULL : tsr_of_original(p->plan, kept[i]);
        if (kept[i] != NULL && t == NULL)
            return tsr_out_of_memory(p->err, "while planning");
        if (t != NULL)
            TSR_TRY(tsr_plan_copy(p->plan, t, t->name, p->err));
    }
    return TSR_OK;
}

static tsr_status plan_plain(const planning *p, const tsr_weight *w)
{
    const tsr_tensor *same;
    TSR_TRY(find_same(p, w->data, &same));
    TSR_TRY(tsr_plan_copy(p->plan, same, same->name, p->err));
    return tsr_plan_add_note(p->plan, same, "copy", tsr_plain_reason(w), p->err);
}

static tsr_status plan_tensors(const planning *p)
{
    for (size_t i = 0; i < p->weights.count; i++) {
        const tsr_weight *const w = &p->weights.items[i];
        TSR_TRY(w->scale != NULL ? plan_codes(p, w) : plan_plain(p, w));
    }
    for (size_t i = 0; i < p->source->tensors.count; i++) {
        if (!p->paired[i])
            return tsr_fail(p->err, TSR_E_MISMATCH, "%s: no tensor '%s', which %s has", p->original->path,
                            p->source->tensors.items[i].name, p->source->path);
    }
    return TSR_OK;
}

/* ---- the plan ---- */

static tsr_status plan_config(const planning *p)
{
    const char *const path = tsr_quantization_path(p->original);
    tsr_json_text stated;
    tsr_text config = {0};
    if (p->source->config == NULL)
        return TSR_OK;
    if (path == NULL || !tsr_config_find(p->original, path, &stated))
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: its config.json has no quantization_config to copy",
                        p->original->path);
    const char *const value = tsr_arena_dup(&p->plan->arena, stated.data, stated.size);
    if (value == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    const tsr_status status = tsr_quantization_set(&config, p->source, value, p->err);
    return tsr_plan_take_text(p->plan, "", TSR_CONFIG_NAME, &config, status, p->err);
}

static tsr_status make_plan(const planning *p, uint64_t max_shard_bytes)
{
    if (p->weights.n_scaled == 0)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: no tensor is quantized, so it has no scales",
                        p->original->path);
    p->plan->command =
        tsr_arena_printf(&p->plan->arena, "quantize --scheme int4-weight-only --scales-from --max-shard-size %llu",
                         U64(max_shard_bytes));
    if (p->plan->command == NULL)
        return tsr_out_of_memory(p->err, "while planning");
    TSR_TRY(tsr_quantize_check_source(p->source, p->err));
    TSR_TRY(plan_tensors(p));
    TSR_TRY(tsr_plan_model_files(p->plan, max_shard_bytes, NULL, p->err));
    TSR_TRY(plan_config(p));
    return tsr_plan_finish(p->plan, p->err);
}

tsr_status tsr_restore_codes_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, uint64_t max_shard_bytes,
                                  tsr_err *err)
{
    planning p = {.plan = plan, .source = sources[0], .original = sources[1], .err = err};
    *plan = tsr_plan_begin(sources, 2);
    TSR_TRY(tsr_weights_pair(&p.weights, p.original, (tsr_block){0, 0}, err));
    p.paired = calloc(p.source->tensors.count + 1, sizeof *p.paired);
    const tsr_status status =
        p.paired == NULL ? tsr_out_of_memory(err, "while planning") : make_plan(&p, max_shard_bytes);
    free(p.paired);
    tsr_weights_free(&p.weights);
    return tsr_plan_ended(plan, status);
}
