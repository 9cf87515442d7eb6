/* Computes windows over scales, and copies scales. */
#include "convert/ops/rows/scale_op.h"

#include "common/checked.h"

tsr_window tsr_scale_window(const tsr_fp8_rect *rect)
{
    const tsr_weight *const w = rect->weight;
    const uint64_t row_bytes = w->grid_cols * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    uint64_t first, rows;
    tsr_fp8_rect_grid(rect, &first, &rows);
    return (tsr_window){.offset = (rect->matrix * w->grid_rows + first) * row_bytes,
                        .rows = 1,
                        .row_bytes = rows * row_bytes,
                        .pitch = rows * row_bytes};
}

/* ---- scales as FP32; a unit is the grid of one matrix ---- */

static uint64_t scales_units(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    return w->matrices;
}

static void scales_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_weight *const w = step->params;
    const uint64_t in = w->grid_rows * w->grid_cols * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    const uint64_t out = step->out[0]->bytes / w->matrices;
    u->in[0] = (tsr_window){.offset = unit * in, .rows = 1, .row_bytes = in, .pitch = in};
    u->out[0] = (tsr_window){.offset = unit * out, .rows = 1, .row_bytes = out, .pitch = out};
}

static tsr_status scales_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const tsr_weight *const w = step->params;
    const uint64_t cols = tsr_ceil_div(w->cols, w->block.cols), rows = tsr_ceil_div(w->rows, w->block.rows);
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    for (uint64_t r = 0; r < rows; r++) {
        float *const to = (float *)u->out_data[0] + r * cols;
        tsr_widen_to_f32(kernels, (tsr_dtype)w->scale_dtype, (const char *)u->in_data[0] + r * w->grid_cols * width,
                         cols, to);
        TSR_TRY(tsr_check_scales(w, unit, r, 0, to, cols, err));
    }
    return TSR_OK;
}

static const tsr_op kScalesOp = {.name = "scales to f32", .units = {scales_units, scales_windows, NULL, scales_run}};

tsr_status tsr_plan_scales(tsr_plan *plan, const tsr_weight *weight, const char *name, tsr_err *err)
{
    tsr_weight *const copy = tsr_arena_alloc(&plan->arena, sizeof *copy);
    tsr_tensor *const out = tsr_plan_tensor(plan, weight->data);
    if (copy == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    *copy = *weight;
    out->name = name;
    out->dtype = TSR_F32;
    out->shape[out->rank - 2] = tsr_ceil_div(weight->rows, weight->block.rows);
    out->shape[out->rank - 1] = tsr_ceil_div(weight->cols, weight->block.cols);
    out->bytes = tsr_tensor_elements(out) * sizeof(float);
    const tsr_step step = {.op = &kScalesOp, .params = copy, .in = &weight->scale, .n_in = 1, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
