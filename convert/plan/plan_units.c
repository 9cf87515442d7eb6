/* Computes what units of a plan read and write. */
#include "convert/plan/plan.h"

tsr_unit tsr_step_unit(const tsr_step *step, uint64_t unit)
{
    tsr_unit u = {0};
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++)
        u.from[i] = i;
    step->op->units.windows(step, unit, &u);
    return u;
}

uint64_t tsr_step_input(const tsr_step *step)
{
    uint64_t bytes = 0;
    for (uint64_t unit = 0, n = step->op->units.count(step); unit < n; unit++) {
        const tsr_unit u = tsr_step_unit(step, unit);
        for (unsigned i = 0; i < TSR_MAX_INPUTS; i++)
            bytes += tsr_window_bytes(&u.in[i]);
    }
    return bytes;
}

uint64_t tsr_plan_bounded_bytes(const tsr_plan *plan)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->n_files; i++)
        bytes += plan->files[i].appended ? plan->files[i].bytes : 0;
    return bytes;
}
