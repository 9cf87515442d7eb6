/* Checks in one pass each tensor that may be a layer. */
#include "convert/plans/experts/gpt_oss_layout.h"

#include "formats/names/expert_stacks.h"

#include <stdio.h>
#include <string.h>

const char *const tsr_gpt_oss_kept[] = {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                        "lm_head"};
const size_t tsr_gpt_oss_n_kept = sizeof tsr_gpt_oss_kept / sizeof *tsr_gpt_oss_kept;

bool tsr_is_gpt_oss(const tsr_checkpoint *checkpoint)
{
    tsr_arena arena = {0};
    const char *const type = tsr_policy_model_type(checkpoint, &arena);
    const bool same = type != NULL && strcmp(type, "gpt_oss") == 0;
    tsr_arena_free(&arena);
    return same;
}

static bool is_stack(const tsr_tensor *t)
{
    return t->rank == 3 && tsr_stack_find(t->name) != NULL && tsr_dtype_is_weight_float((tsr_dtype)t->dtype);
}

/* Rejects a layer that has only one of the two stacks, because loaders need both. */
static tsr_status check_pair(const tsr_checkpoint *c, const tsr_tensor *stack, tsr_err *err)
{
    static const char *const kBoth[] = {"gate_up_proj", "down_proj"};
    const char *const dot = strrchr(stack->name, '.');
    const size_t before = dot == NULL ? 0 : (size_t)(dot + 1 - stack->name);
    for (size_t i = 0; i < 2; i++) {
        char name[1200];
        if (snprintf(name, sizeof name, "%.*s%s", (int)before, stack->name, kBoth[i]) >= (int)sizeof name)
            continue;
        const tsr_tensor *const t = tsr_checkpoint_find(c, name);
        if (t == NULL || !is_stack(t))
            return tsr_fail_as(
                err, TSR_ERROR_DAMAGED, TSR_E_FORMAT,
                "%s: '%s' is a stack of experts, but '%s' is not: the checkpoint is damaged or incomplete",
                c->files[stack->file].path, stack->name, name);
    }
    return TSR_OK;
}

static tsr_status check_tensor(const tsr_checkpoint *c, const tsr_tensor *t, const tsr_decision *d, tsr_err *err)
{
    const char *const path = c->files[t->file].path;
    tsr_stacked_expert place;
    if (t->rank == 2 && tsr_stack_place(t->name, &place))
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is a single expert, but --dialect gpt-oss stores stacks; run 'tessera convert --to "
                        "bf16 --experts stack' first",
                        path, t->name);
    if (is_stack(t) && d->treatment != TSR_QUANTIZE)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' would be kept (%s), but loaders of --dialect gpt-oss need all experts quantized",
                        path, t->name, d->reason);
    if (!is_stack(t) && d->treatment == TSR_QUANTIZE)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s' would be quantized (%s), but --dialect gpt-oss stores codes of experts only", path,
                        t->name, d->reason);
    return is_stack(t) ? check_pair(c, t, err) : TSR_OK;
}

tsr_status tsr_gpt_oss_check(const tsr_checkpoint *c, const tsr_decision *decisions, tsr_err *err)
{
    if (!tsr_is_gpt_oss(c))
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: --dialect gpt-oss supports model_type gpt_oss only; use --dialect compressed-tensors for other models",
            c->path);
    for (size_t i = 0; i < c->tensors.count; i++)
        TSR_TRY(check_tensor(c, &c->tensors.items[i], &decisions[i], err));
    return TSR_OK;
}

tsr_status tsr_gpt_oss_warn(tsr_plan *plan, tsr_err *err)
{
    if (!tsr_is_gpt_oss(plan->sources[0]))
        return TSR_OK;
    return tsr_plan_warn(
        plan, err,
        "no known loader reads gpt_oss with separate experts; they read plain stacks, and the codes of --scheme "
        "mxfp4-weight-only --dialect gpt-oss");
}
