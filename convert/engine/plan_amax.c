/* The pieces in which the largest |x| of whole tensors is found. */
#include "convert/engine/plan.h"

#include "common/checked.h"

#include <stdlib.h>
#include <string.h>

const tsr_amax *tsr_plan_amax(tsr_plan *plan, const tsr_tensor *const *tensors, size_t n)
{
    tsr_amax *const a = tsr_arena_alloc(&plan->arena, sizeof *a);
    const tsr_tensor **const of = tsr_arena_alloc(&plan->arena, (n + 1) * sizeof *of);
    if (a == NULL || of == NULL)
        return NULL;
    if (plan->n_amaxes == plan->amaxes_capacity) {
        const size_t wanted = plan->amaxes_capacity == 0 ? 64 : 2 * plan->amaxes_capacity;
        const tsr_amax **const more = realloc(plan->amaxes, wanted * sizeof *more);
        if (more == NULL)
            return NULL;
        plan->amaxes = more;
        plan->amaxes_capacity = wanted;
    }
    memcpy(of, tensors, n * sizeof *of);
    *a = (tsr_amax){.of = of, .n = (uint32_t)n, .index = (uint32_t)plan->n_amaxes};
    return plan->amaxes[plan->n_amaxes++] = a;
}

/* Rows of a unit: as many as fit TSR_UNIT_BYTES, and one at least. */
static uint64_t rows_of_unit(const tsr_tensor *t)
{
    return tsr_max_u64(1, TSR_UNIT_BYTES / tsr_max_u64(1, t->bytes / tsr_max_u64(1, t->shape[0])));
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
    return (tsr_amax_rows){
        .tensor = t,
        .row = row,
        .rows = rows,
        .window = {.offset = row * row_bytes, .rows = 1, .row_bytes = rows * row_bytes, .pitch = rows * row_bytes},
    };
}

uint64_t tsr_amax_bytes(const tsr_amax *amax)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < amax->n; i++)
        bytes += amax->of[i]->bytes;
    return bytes;
}

uint64_t tsr_amax_unit_bytes(const tsr_amax *amax)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < amax->n; i++) {
        const tsr_tensor *const t = amax->of[i];
        const uint64_t row_bytes = t->bytes / tsr_max_u64(1, t->shape[0]);
        most = tsr_max_u64(most, tsr_round_up(tsr_min_u64(t->bytes, rows_of_unit(t) * row_bytes), 64) +
                                     t->shape[1] * sizeof(float));
    }
    return most;
}
