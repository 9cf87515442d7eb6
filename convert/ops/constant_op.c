/* Writes tensors of one FP32 number. */
#include "convert/ops/constant_op.h"

#include "convert/ops/rows/rows.h"

#include <string.h>

/* Declares no input: the window has no rows. */
static void constant_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    (void)unit;
    u->in[0] = (tsr_window){0};
    u->out[0] = (tsr_window){.rows = 1, .row_bytes = step->out[0]->bytes, .pitch = step->out[0]->bytes};
}

static tsr_status constant_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                               tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit, (void)kernels, (void)stats, (void)err;
    memcpy(u->out_data[0], step->params, sizeof(float));
    return TSR_OK;
}

static const tsr_op kConstantOp = {.name = "constant", .units = {tsr_one_unit, constant_windows, NULL, constant_run}};

tsr_status tsr_plan_constant(tsr_plan *plan, const tsr_tensor *beside, const char *name, unsigned rank, float value,
                             tsr_err *err)
{
    float *const number = tsr_arena_alloc(&plan->arena, sizeof *number);
    tsr_tensor *const out = tsr_plan_new_tensor(plan, name, TSR_F32, rank, (const uint64_t[]){1});
    if (number == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    *number = value;
    const tsr_step step = {.op = &kConstantOp, .params = number, .in = &beside, .n_in = 1, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
