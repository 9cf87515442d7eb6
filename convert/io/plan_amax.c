/* Plans the units that compute the largest |x| of whole tensors. */
#include "convert/plan/plan.h"

#include "common/checked.h"
#include "common/grow.h"
#include "convert/io/io.h"

#include <stdlib.h>
#include <string.h>

const tsr_amax *tsr_plan_amax(tsr_plan *plan, const tsr_tensor *const *tensors, size_t n)
{
    return tsr_plan_amax_decoded(plan, tensors, NULL, n);
}

const tsr_amax *tsr_plan_amax_decoded(tsr_plan *plan, const tsr_tensor *const *tensors,
                                      const tsr_decoded *const *decoded, size_t n)
{
    tsr_amax *const a = tsr_arena_alloc(&plan->arena, sizeof *a);
    const tsr_tensor **const of = tsr_arena_alloc(&plan->arena, (n + 1) * sizeof *of);
    const tsr_decoded **const by = tsr_arena_alloc(&plan->arena, (n + 1) * sizeof *by);
    if (a == NULL || of == NULL || by == NULL)
        return NULL;
    if (!tsr_grow(&plan->amaxes, plan->n_amaxes, &plan->amaxes_capacity, sizeof *plan->amaxes))
        return NULL;
    memcpy(of, tensors, n * sizeof *of);
    if (decoded != NULL)
        memcpy(by, decoded, n * sizeof *by);
    *a = (tsr_amax){
        .of = of, .n = (uint32_t)n, .index = (uint32_t)plan->n_amaxes, .decoded = decoded == NULL ? NULL : by};
    return plan->amaxes[plan->n_amaxes++] = a;
}

uint32_t tsr_amax_inputs(const tsr_amax *amax, const tsr_tensor *weight, const tsr_tensor *in[TSR_MAX_INPUTS])
{
    uint32_t n = 1;
    for (uint32_t i = 0; amax != NULL && i < amax->n; i++) {
        if (amax->of[i] != weight)
            in[n++] = amax->of[i];
    }
    return n;
}

tsr_status tsr_plan_add_amax_inputs(tsr_plan *plan, tsr_step *step, tsr_err *err)
{
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, TSR_MAX_INPUTS * sizeof *in);
    if (in == NULL)
        return tsr_out_of_memory(err, "while planning");
    memcpy(in, step->in, step->n_in * sizeof *in);
    for (uint32_t i = 0; i < step->amax->n; i++) {
        const tsr_decoded *const d = step->amax->decoded[i];
        for (uint32_t k = 0; k < d->n_in && step->n_in < TSR_MAX_INPUTS; k++)
            in[step->n_in++] = d->in[k];
    }
    step->in = in;
    return TSR_OK;
}

tsr_status tsr_plan_replace_amaxes(tsr_plan *plan, const tsr_amax *instead, tsr_err *err)
{
    const tsr_amax **const made = tsr_arena_alloc(&plan->arena, (plan->n_amaxes + 1) * sizeof *made);
    size_t n = 0;
    if (made == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (size_t i = 0; i < plan->n_amaxes; i++) {
        tsr_amax *const a = tsr_arena_alloc(&plan->arena, sizeof *a);
        if (a == NULL)
            return tsr_out_of_memory(err, "while planning");
        *a = instead[i];
        a->index = (uint32_t)n;
        made[i] = a->n == 0 ? NULL : a;
        if (a->n > 0)
            plan->amaxes[n++] = a;
    }
    plan->n_amaxes = n;
    for (size_t s = 0; s < plan->n_steps; s++) {
        tsr_step *const step = &plan->steps[s];
        if (step->amax != NULL)
            step->amax = made[step->amax->index];
    }
    return TSR_OK;
}

/* Returns the rows of a unit: as many as fit TSR_UNIT_BYTES, at least one. For decoded tensors it is a multiple of 64,
 * so that no unit begins in the middle of a decoder's tile. */
static uint64_t rows_of_unit(const tsr_tensor *t)
{
    const uint64_t step = t->source == TSR_SOURCE_DECODED ? 64 : 1;
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, t->bytes / tsr_max_u64(1, t->shape[0]));
    return tsr_max_u64(step, fit / step * step);
}

uint64_t tsr_amax_units(const tsr_amax *amax)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < amax->n; i++)
        units += tsr_ceil_div(amax->of[i]->shape[0], rows_of_unit(amax->of[i]));
    return units;
}

tsr_amax_rows tsr_amax_unit(const tsr_amax *amax, uint64_t unit)
{
    uint32_t i = 0;
    for (uint64_t units; unit >= (units = tsr_ceil_div(amax->of[i]->shape[0], rows_of_unit(amax->of[i]))); i++)
        unit -= units;
    const tsr_tensor *const t = amax->of[i];
    const uint64_t row = unit * rows_of_unit(t), rows = tsr_min_u64(rows_of_unit(t), t->shape[0] - row);
    const uint64_t row_bytes = t->bytes / t->shape[0];
    tsr_amax_rows at = {.tensor = t, .row = row, .rows = rows, .n_in = 1};
    if (amax->decoded == NULL) {
        at.in[0] = (tsr_window){
            .offset = row * row_bytes, .rows = 1, .row_bytes = rows * row_bytes, .pitch = rows * row_bytes};
        return at;
    }
    at.decoded = amax->decoded[i];
    at.n_in = at.decoded->n_in;
    at.decoded->windows(at.decoded, row, rows, at.in);
    return at;
}

uint64_t tsr_amax_rows_bytes(const tsr_amax_rows *rows)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < rows->n_in; i++)
        bytes += tsr_window_bytes(&rows->in[i]);
    return bytes;
}

uint64_t tsr_amax_bytes(const tsr_amax *amax)
{
    uint64_t bytes = 0;
    const uint64_t units = amax->decoded == NULL ? 0 : tsr_amax_units(amax);
    for (uint32_t i = 0; i < amax->n && amax->decoded == NULL; i++)
        bytes += amax->of[i]->bytes;
    for (uint64_t unit = 0; unit < units; unit++) {
        const tsr_amax_rows at = tsr_amax_unit(amax, unit);
        bytes += tsr_amax_rows_bytes(&at);
    }
    return bytes;
}

/* Returns the most memory that a unit of one tensor needs. */
static uint64_t memory_of_unit(const tsr_amax *amax, uint64_t unit)
{
    const tsr_amax_rows at = tsr_amax_unit(amax, unit);
    uint64_t bytes = at.tensor->shape[1] * sizeof(float);
    for (uint32_t i = 0; i < at.n_in; i++)
        bytes += tsr_io_room(tsr_window_bytes(&at.in[i]));
    return bytes + (at.decoded == NULL ? 0 : tsr_round_up(at.decoded->memory(at.decoded, at.rows), 64));
}

uint64_t tsr_amax_unit_bytes(const tsr_amax *amax)
{
    const uint64_t units = tsr_amax_units(amax);
    uint64_t most = 0;
    for (uint64_t unit = 0; unit < units; unit++)
        most = tsr_max_u64(most, memory_of_unit(amax, unit));
    return most;
}
