/* Multiplies whole rows of a tensor. A unit is some of them. */
#include "convert/ops/fold_op.h"

#include "common/checked.h"
#include "convert/ops/rows/rows.h"

#include <string.h>

typedef struct params {
    const tsr_fold *fold;
    uint64_t rows, cols, row_bytes;
} params;

static uint64_t unit_rows(const params *p)
{
    return tsr_max_u64(1, TSR_UNIT_BYTES / 2 / tsr_max_u64(1, p->row_bytes));
}

static uint64_t fold_units(const tsr_step *step)
{
    const params *const p = step->params;
    return step->out[0]->bytes == 0 ? 0 : tsr_ceil_div(p->rows, unit_rows(p));
}

static void fold_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = step->params;
    const uint64_t row = unit * unit_rows(p), rows = tsr_min_u64(unit_rows(p), p->rows - row);
    u->in[0] = u->out[0] = tsr_run_window(row * p->row_bytes, rows * p->row_bytes);
}

static tsr_status fold_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = step->params;
    const uint64_t row = unit * unit_rows(p), rows = tsr_min_u64(unit_rows(p), p->rows - row);
    (void)kernels, (void)stats;
    memcpy(u->out_data[0], u->in_data[0], rows * p->row_bytes);
    return tsr_fold_rows(p->fold, step->in[0], row, rows, p->cols, u->out_data[0], err);
}

static const tsr_op kFoldOp = {.name = "fold", .units = {fold_units, fold_windows, NULL, fold_run}};

tsr_status tsr_plan_fold(tsr_plan *plan, const tsr_tensor *tensor, const tsr_fold *fold, tsr_err *err)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    tsr_tensor *const out = tsr_plan_tensor(plan, tensor);
    if (p == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    const uint64_t cols = tensor->shape[tensor->rank - 1];
    *p = (params){.fold = fold,
                  .rows = tensor->rank == 2 ? tensor->shape[0] : 1,
                  .cols = cols,
                  .row_bytes = cols * tsr_dtype_bytes((tsr_dtype)tensor->dtype)};
    const tsr_step step = {.op = &kFoldOp, .params = p, .in = &tensor, .n_in = 1, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
