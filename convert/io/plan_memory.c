/* Computes the memory use of a plan. */
#include "convert/plan/plan.h"

#include "common/checked.h"
#include "convert/io/io.h"
#include "convert/records/digests.h"

/* Returns the most memory that one unit of the step needs: inputs, outputs that are not buffered, scratch. */
static uint64_t step_unit_bytes(const tsr_step *step)
{
    if (step->op->units.count(step) == 0)
        return 0;
    const tsr_unit unit = tsr_step_unit(step, step->op->largest == NULL ? 0 : step->op->largest(step));
    uint64_t bytes = step->op->units.scratch_bytes == NULL ? 0 : step->op->units.scratch_bytes(step);
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++)
        bytes += tsr_io_room(tsr_window_bytes(&unit.in[i]));
    for (unsigned i = 0; i < step->n_out; i++)
        bytes += tsr_is_buffered(step, i) ? 0 : tsr_io_room(tsr_window_bytes(&unit.out[i]));
    return bytes;
}

uint64_t tsr_plan_unit_bytes(const tsr_plan *plan)
{
    uint64_t most = 0;
    for (size_t s = 0; s < plan->n_steps; s++)
        most = tsr_max_u64(most, step_unit_bytes(&plan->steps[s]));
    for (size_t i = 0; i < plan->n_amaxes; i++)
        most = tsr_max_u64(most, tsr_amax_unit_bytes(plan->amaxes[i]));
    return most;
}

static uint64_t buffered_bytes(const tsr_step *step)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < step->n_out; i++)
        bytes += tsr_is_buffered(step, i) ? step->out[i]->bytes : 0;
    return bytes;
}

uint64_t tsr_plan_memory(const tsr_plan *plan, unsigned threads)
{
    const uint64_t unit = tsr_plan_unit_bytes(plan);
    uint64_t buffered = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        const tsr_step *const step = &plan->steps[s];
        uint64_t kept = step->op->units.count(step) * sizeof(tsr_quant_stats) + tsr_step_block_memory(plan, s);
        kept += buffered_bytes(step) + (step->coproduces > 0 ? buffered_bytes(&plan->steps[step->coproduces - 1]) : 0);
        buffered = tsr_max_u64(buffered, kept);
    }
    uint64_t waiting = 0; /* block statistics of a file's steps are kept until the file is finished */
    for (size_t i = 0; i < plan->n_files; i++)
        waiting = tsr_max_u64(waiting, tsr_plan_block_bytes(plan, i));
    uint64_t tables = plan->arena.bytes + plan->view_bytes + plan->factor_bytes + waiting +
                      plan->steps_capacity * sizeof *plan->steps + plan->notes_capacity * sizeof *plan->notes +
                      plan->n_steps * sizeof(tsr_quant_stats) + plan->amaxes_capacity * sizeof *plan->amaxes +
                      tsr_digests_memory(plan);
    for (size_t k = 0; k < plan->n_sources; k++)
        tables += tsr_checkpoint_memory(plan->sources[k]);
    return tables + threads * (unit + buffered);
}
