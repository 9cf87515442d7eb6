/* Makes the scheme's plan for a view, then replaces the inputs of its steps by source tensors. */
#include "convert/plans/split_plan.h"

#include "convert/ops/recode_op.h"
#include "convert/plans/experts/gpt_oss_layout.h"
#include "convert/plans/quantize_plan.h"

#include <stdlib.h>
#include <string.h>

const tsr_tensor *tsr_split_source(const tsr_decoded_part *part)
{
    return part->view.weight != NULL ? part->view.weight->data : part->gather.from;
}

tsr_status tsr_split_set_input(tsr_plan *plan, tsr_step *step, const tsr_decoded_part *part, tsr_err *err)
{
    if (part->gather.cols == 0)
        return tsr_step_pick(plan, step, part->gather.from, part->gather.first, part->gather.step, err);
    const tsr_decoded *const rows = tsr_gather_rows(plan, &part->gather);
    if (rows == NULL)
        return tsr_out_of_memory(err, "while planning");
    return step->op == &tsr_copy_op ? tsr_step_take(plan, step, rows, err) : tsr_step_decode(plan, step, rows, err);
}

/* ---- values that several steps share ---- */

/* Replaces the members of an amax: all of them are parts of stacks, or none. */
static tsr_status gather_amax(tsr_plan *plan, const tsr_decoded_view *view, tsr_amax *amax, tsr_err *err)
{
    const tsr_decoded **const decoded = tsr_arena_alloc(&plan->arena, (amax->n + 1) * sizeof *decoded);
    if (decoded == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (uint32_t i = 0; i < amax->n; i++) {
        const tsr_decoded_part *const part = tsr_decoded_part_of(view, amax->of[i]);
        if (part == NULL)
            return i == 0 ? TSR_OK
                          : tsr_fail(err, TSR_E_UNSUPPORTED, "'%s' is a separate tensor, but '%s' is in a stack",
                                     amax->of[i]->name, amax->of[0]->name);
        decoded[i] = tsr_gather_rows(plan, &part->gather);
        if (decoded[i] == NULL)
            return tsr_out_of_memory(err, "while planning");
    }
    amax->decoded = decoded;
    return TSR_OK;
}

static tsr_status gather_amaxes(tsr_plan *plan, const tsr_decoded_view *view, tsr_err *err)
{
    tsr_amax *const instead = calloc(plan->n_amaxes + 1, sizeof *instead);
    tsr_status status = instead == NULL ? tsr_out_of_memory(err, "while planning") : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < plan->n_amaxes; i++) {
        instead[i] = *plan->amaxes[i];
        status = gather_amax(plan, view, &instead[i], err);
    }
    if (status == TSR_OK)
        status = tsr_plan_replace_amaxes(plan, instead, err);
    free(instead);
    return status;
}

/* ---- steps and notes ---- */

static tsr_status give_sources(tsr_plan *plan, const tsr_decoded_view *view, tsr_err *err)
{
    TSR_TRY(gather_amaxes(plan, view, err));
    for (size_t i = 0; i < plan->n_steps; i++) {
        tsr_step *const step = &plan->steps[i];
        const tsr_decoded_part *const part = tsr_decoded_part_of(view, step->in[0]);
        if (part == NULL)
            continue;
        step->n_in = 1; /* the other inputs are members of the same layer, for the amax */
        TSR_TRY(tsr_split_set_input(plan, step, part, err));
        if (step->amax != NULL)
            TSR_TRY(tsr_plan_add_amax_inputs(plan, step, err));
    }
    return TSR_OK;
}

static tsr_status note_stack(tsr_plan *plan, const tsr_tensor *stack, bool together, const char *action,
                             const char *reason, tsr_err *err)
{
    if (together)
        return tsr_plan_add_note(plan, stack, action, reason, err);
    const char *const whole = tsr_arena_printf(&plan->arena, "%s; one tensor for each expert", reason);
    return whole == NULL ? tsr_out_of_memory(err, "while planning")
                         : tsr_plan_add_note(plan, stack, action, whole, err);
}

/* Makes one note per source tensor from the notes of the scheme's plan, which has one per tensor of the view. */
static tsr_status rewrite_notes(tsr_plan *plan, const tsr_decoded_view *view, bool together, bool *any, tsr_err *err)
{
    const size_t n = plan->n_notes;
    tsr_plan_note *const notes = plan->notes;
    const tsr_tensor *last = NULL;
    tsr_status status = TSR_OK;
    plan->notes = NULL;
    plan->n_notes = plan->notes_capacity = 0;
    *any = false;
    for (size_t i = 0; i < n && status == TSR_OK; i++) {
        const tsr_decoded_part *const part = tsr_decoded_part_of(view, notes[i].source);
        const tsr_tensor *const from = part == NULL ? notes[i].source : tsr_split_source(part);
        const bool copied = strcmp(notes[i].action, "copy") == 0;
        const bool again = part != NULL && from == last;
        *any = *any || (part != NULL && !copied);
        if (part == NULL)
            status = tsr_plan_add_note(plan, from, notes[i].action, notes[i].reason, err);
        else if (!again)
            status = note_stack(plan, from, together, copied ? "split" : notes[i].action, notes[i].reason, err);
        last = from;
    }
    free(notes);
    return status;
}

/* ---- the plan ---- */

static tsr_status finish(tsr_plan *plan, const tsr_decoded_view *view, bool together, bool *any, tsr_err *err)
{
    TSR_TRY(give_sources(plan, view, err));
    TSR_TRY(rewrite_notes(plan, view, together, any, err));
    if (!together && *any)
        TSR_TRY(tsr_gpt_oss_warn(plan, err));
    plan->command = tsr_arena_printf(&plan->arena, "%s --experts %s", plan->command, together ? "stack" : "split");
    return plan->command == NULL ? tsr_out_of_memory(err, "while planning") : tsr_plan_finish(plan, err);
}

tsr_status tsr_split_plan(tsr_plan *plan, tsr_decoded_view *view, const tsr_checkpoint *const *source,
                          tsr_experts experts, tsr_scheme_maker *make, const void *options, tsr_err *err)
{
    bool any = false;
    const bool together = experts == TSR_EXPERTS_TURN;
    *plan = (tsr_plan){0};
    if (experts == TSR_EXPERTS_STACK)
        return make(plan, source, options, err);
    TSR_TRY(tsr_quantize_check_source(*source, err));
    TSR_TRY(tsr_decoded_view_open_plain(view, *source,
                                        together                       ? TSR_SPLIT_TURN
                                        : experts == TSR_EXPERTS_SPLIT ? TSR_SPLIT_ALL
                                                                       : TSR_SPLIT_KNOWN,
                                        err));
    tsr_status status = TSR_OK;
    if (view->has_stacks) {
        status = make(plan, view->sources, options, err);
        if (status == TSR_OK)
            status = finish(plan, view, together, &any, err);
        plan->view_bytes = tsr_decoded_view_memory(view);
    }
    /* A kept tensor keeps its name and form, unless splitting was requested. */
    if (status == TSR_OK && !(any || (experts == TSR_EXPERTS_SPLIT && view->has_stacks))) {
        tsr_plan_free(plan);
        tsr_decoded_view_free(view);
        return make(plan, source, options, err);
    }
    if (status != TSR_OK) {
        tsr_plan_free(plan);
        tsr_decoded_view_free(view);
    }
    return status;
}
