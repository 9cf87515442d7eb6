/* Visits the windows of all units and sums their bytes. */
#include "convert/io/plan_reads.h"

#include "common/checked.h"

#include <stdlib.h>

tsr_status tsr_step_reads(const tsr_step *step, uint64_t unit, tsr_visit_window *visit, void *data, tsr_err *err)
{
    const tsr_unit u = tsr_step_unit(step, unit);
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        if (u.in[i].rows > 0)
            TSR_TRY(visit(data, step->in[u.from[i]], &u.in[i], err));
    }
    return TSR_OK;
}

const tsr_tensor *tsr_amax_input(const tsr_amax_rows *at, uint32_t i)
{
    return at->decoded == NULL ? at->tensor : at->decoded->in[i];
}

tsr_status tsr_amax_reads(const tsr_amax *amax, uint64_t unit, tsr_visit_window *visit, void *data, tsr_err *err)
{
    const tsr_amax_rows at = tsr_amax_unit(amax, unit);
    for (uint32_t i = 0; i < at.n_in; i++) {
        if (at.in[i].rows > 0)
            TSR_TRY(visit(data, tsr_amax_input(&at, i), &at.in[i], err));
    }
    return TSR_OK;
}

/* ---- all units ---- */

typedef struct announcing {
    const tsr_plan *plan;
    tsr_shared_reads *shared;
    uint64_t wanted, widest;
} announcing;

static tsr_status announce(void *data, const tsr_tensor *t, const tsr_window *w, tsr_err *err)
{
    announcing *const a = data;
    if (tsr_tensor_is_made(t))
        return TSR_OK; /* a plan over a view; its steps will be replaced */
    a->wanted += tsr_window_bytes(w);
    if (w->rows > 1 && w->pitch > w->row_bytes)
        a->widest = tsr_max_u64(a->widest, (w->rows - 1) * w->pitch + w->row_bytes);
    return tsr_shared_announce(a->shared, a->plan->sources[t->source], t, w, err);
}

static tsr_status announce_amax(announcing *a, const tsr_amax *amax, tsr_err *err)
{
    for (uint64_t unit = 0, n = tsr_amax_units(amax); unit < n; unit++)
        TSR_TRY(tsr_amax_reads(amax, unit, announce, a, err));
    return TSR_OK;
}

static tsr_status announce_step(announcing *a, const tsr_step *step, bool *known, tsr_err *err)
{
    if (step->amax != NULL && !known[step->amax->index])
        TSR_TRY(announce_amax(a, step->amax, err));
    if (step->amax != NULL)
        known[step->amax->index] = true;
    for (uint64_t unit = 0, n = step->op->units.count(step); unit < n; unit++)
        TSR_TRY(tsr_step_reads(step, unit, announce, a, err));
    return TSR_OK;
}

static tsr_status announce_all(announcing *a, const bool *chosen, tsr_err *err)
{
    bool *const known = calloc(a->plan->n_amaxes + 1, sizeof *known);
    tsr_status status = known == NULL ? tsr_out_of_memory(err, "for what is read") : TSR_OK;
    for (size_t s = 0; s < a->plan->n_steps && status == TSR_OK; s++) {
        const tsr_step *const step = &a->plan->steps[s];
        if (step->coproduced_by > 0 && (chosen == NULL || chosen[a->plan->steps[step->coproduced_by - 1].file]))
            continue;
        if (chosen == NULL || chosen[step->file])
            status = announce_step(a, step, known, err);
    }
    free(known);
    return status;
}

tsr_status tsr_plan_announce(const tsr_plan *plan, const bool *chosen, tsr_shared_reads *shared, uint64_t *wanted,
                             tsr_err *err)
{
    announcing a = {.plan = plan, .shared = shared};
    const tsr_status status = announce_all(&a, chosen, err);
    if (wanted != NULL)
        *wanted = a.wanted;
    return status;
}

tsr_status tsr_plan_count_reads(tsr_plan *plan, tsr_err *err)
{
    announcing a = {.plan = plan, .shared = tsr_shared_begin(0)};
    const tsr_status status = a.shared == NULL ? tsr_out_of_memory(err, "while planning") : announce_all(&a, NULL, err);
    if (status == TSR_OK) {
        plan->bytes_in = tsr_shared_announced(a.shared);
        plan->bytes_wanted = a.wanted;
        plan->widest = a.widest;
        plan->bytes_again = 0;
        for (size_t i = 0; i < plan->n_amaxes; i++)
            plan->bytes_again += tsr_amax_bytes(plan->amaxes[i]);
    }
    tsr_shared_end(a.shared);
    return status;
}
