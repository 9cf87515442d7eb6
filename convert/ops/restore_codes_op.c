/* Restores 4-bit codes from their decoded values. A unit is a multiple of 8 whole rows, so that no two share a word of
 * zero points. */
#include "convert/ops/restore_codes_op.h"

#include "convert/ops/rows/rows.h"
#include "quantize/fp8_decode.h"
#include "quantize/moves/int4_moves.h"

typedef struct params {
    tsr_weight original;
    uint32_t zero_points, order; /* input indices; 0: the original has none */
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

static uint64_t unit_rows(const tsr_step *step)
{
    return tsr_unit_rows(step->in[0], 8);
}

static uint64_t again_units(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->shape[0], unit_rows(step));
}

static void again_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = params_of(step);
    const uint64_t row = unit * unit_rows(step), rows = tsr_min_u64(unit_rows(step), step->in[0]->shape[0] - row);
    u->in[0] = tsr_rows_window(step->in[0], row, rows);
    u->in[1] = tsr_rows_window(step->in[1], row, rows);
    if (p->zero_points != 0)
        u->in[p->zero_points] = tsr_rows_window(step->in[p->zero_points], row / 8, tsr_ceil_div(rows, 8));
    if (p->order != 0)
        u->in[p->order] = tsr_whole_window(step->in[p->order]);
    u->out[0] = tsr_rows_window(step->out[0], row, rows);
}

/* Returns the scratch of a unit: scales in FP32, and one byte per zero point. */
static uint64_t again_scratch(const tsr_step *step)
{
    return unit_rows(step) * params_of(step)->original.grid_cols * (sizeof(float) + 1);
}

static tsr_status again_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                            tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const params *const p = params_of(step);
    const tsr_weight *const w = &p->original;
    const uint64_t row = unit * unit_rows(step), rows = tsr_min_u64(unit_rows(step), w->rows - row);
    const uint64_t groups = w->grid_cols;
    float *const scales = u->scratch;
    uint8_t *const zeros = (uint8_t *)(scales + rows * groups);
    tsr_widen_to_f32(kernels, (tsr_dtype)w->scale_dtype, u->in_data[1], rows * groups, scales);
    for (uint64_t r = 0; r < rows; r++)
        TSR_TRY(tsr_check_scales(w, 0, row + r, 0, scales + r * groups, groups, err));
    for (uint64_t i = 0; p->zero_points != 0 && i < rows * groups; i++) {
        const uint32_t word = ((const uint32_t *)u->in_data[p->zero_points])[i / groups / 8 * groups + i % groups];
        zeros[i] = word >> i / groups % 8 * 4 & 15;
    }
    const tsr_int4_restoring again = {.tensor = step->in[0],
                                      .row = row,
                                      .rows = rows,
                                      .cols = w->cols,
                                      .group = w->block.cols,
                                      .values = u->in_data[0],
                                      .scales = scales,
                                      .zero_points = p->zero_points == 0 ? NULL : zeros,
                                      .order = p->order == 0 ? NULL : u->in_data[p->order],
                                      .words = u->out_data[0]};
    return tsr_int4_restore_codes(&again, err);
}

static const tsr_op kAgainOp = {.name = "codes again", .units = {again_units, again_windows, again_scratch, again_run}};

const tsr_tensor *tsr_of_original(tsr_plan *plan, const tsr_tensor *tensor)
{
    tsr_tensor *const copy = tsr_plan_tensor(plan, tensor);
    if (copy != NULL)
        copy->source = 1;
    return copy;
}

tsr_status tsr_plan_restore_codes(tsr_plan *plan, const tsr_tensor *values, const tsr_weight *original, tsr_err *err)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    const tsr_tensor *in[4] = {values, tsr_of_original(plan, original->scale)};
    tsr_tensor *const out = tsr_plan_tensor(plan, original->data);
    uint32_t n = 2;
    if (p == NULL || in[1] == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (params){.original = *original};
    if (original->zero_point != NULL)
        in[p->zero_points = n++] = tsr_of_original(plan, original->zero_point);
    if (original->reordered)
        in[p->order = n++] = tsr_of_original(plan, original->group_index);
    if (in[n - 1] == NULL || in[2 < n ? 2 : 0] == NULL)
        return tsr_out_of_memory(err, "while planning");
    const tsr_step step = {.op = &kAgainOp, .params = p, .in = in, .n_in = n, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
