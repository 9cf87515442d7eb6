/* Decoding FP8 and integers, in units of whole rows. */
#include "convert/ops/cast_op.h"

#include "common/checked.h"
#include "convert/ops/rows.h"
#include "convert/ops/scale_op.h"
#include "quantize/int_decode.h"

#include <string.h>

/* ---- the operation on e4m3: a unit is some rows of one matrix ---- */

static uint64_t rows_per_unit(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    const uint64_t row_bytes = tsr_max_u64(1, w->cols * tsr_dtype_bytes(step->out[0]->dtype));
    const uint64_t fit = tsr_max_u64(1, TSR_UNIT_BYTES / row_bytes);
    /* Whole blocks where they fit, so that few scales are read twice. */
    return fit < w->block.rows ? fit : tsr_min_u64(fit - fit % w->block.rows, tsr_max_u64(1, w->rows));
}

static tsr_fp8_rect rect_of(const tsr_step *step, uint64_t unit)
{
    const tsr_weight *const w = step->params;
    const uint64_t rows = rows_per_unit(step), units = tsr_ceil_div(w->rows, rows);
    const uint64_t row = unit % units * rows;
    return (tsr_fp8_rect){.weight = w,
                          .matrix = unit / units,
                          .row = row,
                          .rows = tsr_min_u64(rows, w->rows - row),
                          .cols = w->cols,
                          .ld_codes = w->cols};
}

static uint64_t cast_units(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    return step->out[0]->bytes == 0 ? 0 : w->matrices * tsr_ceil_div(w->rows, rows_per_unit(step));
}

static void cast_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_weight *const w = step->params;
    const tsr_fp8_rect rect = rect_of(step, unit);
    const uint64_t first = (rect.matrix * w->rows + rect.row) * w->cols, n = rect.rows * w->cols;
    const uint64_t bytes = tsr_dtype_bytes(step->out[0]->dtype);
    u->in[0] = (tsr_window){.offset = first, .rows = 1, .row_bytes = n, .pitch = n};
    u->in[1] = tsr_scale_window(&rect);
    u->out[0] = (tsr_window){.offset = first * bytes, .rows = 1, .row_bytes = n * bytes, .pitch = n * bytes};
}

static uint64_t cast_scratch(const tsr_step *step)
{
    return tsr_fp8_decode_scratch(step->params);
}

static tsr_status cast_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    tsr_fp8_rect rect = rect_of(step, unit);
    rect.codes = u->in_data[0];
    rect.scales = u->in_data[1];
    return tsr_fp8_decode(kernels, &rect, step->out[0]->dtype, u->out_data[0], rect.cols, u->scratch, err);
}

const tsr_op tsr_cast_fp8_op = {
    .name = "dequantize", .units = cast_units, .windows = cast_windows, .scratch_bytes = cast_scratch, .run = cast_run};

/* ---- the operation on integers: a unit is some whole rows ---- */

/* Multiples of 8 rows, of which no two units share a word of packed zero points. */
static uint64_t int_rows(const tsr_step *step)
{
    return tsr_unit_rows(step->out[0], 8);
}

static uint64_t int_units(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    return step->out[0]->bytes == 0 ? 0 : tsr_ceil_div(w->rows, int_rows(step));
}

static void int_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_weight *const w = step->params;
    const uint64_t row = unit * int_rows(step), rows = tsr_min_u64(int_rows(step), w->rows - row);
    const bool by_row = w->grid_rows == w->rows;
    u->in[0] = tsr_rows_window(w->data, row, rows);
    u->out[0] = tsr_rows_window(step->out[0], row, rows);
    u->in[1] = by_row ? tsr_rows_window(w->scale, row, rows) : tsr_whole_window(w->scale);
    if (w->zero_point == NULL)
        return;
    const uint64_t per_word = w->coding == TSR_CODED_PACKED ? 32u / w->bits : 1;
    u->in[2] = by_row ? tsr_rows_window(w->zero_point, row / per_word, tsr_ceil_div(rows, per_word))
                      : tsr_whole_window(w->zero_point);
}

static uint64_t int_scratch(const tsr_step *step)
{
    return tsr_int_decode_scratch(step->params);
}

static tsr_status int_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                          tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const tsr_weight *const w = step->params;
    const uint64_t row = unit * int_rows(step);
    const tsr_int_span span = {.weight = w,
                               .row = row,
                               .rows = tsr_min_u64(int_rows(step), w->rows - row),
                               .codes = u->in_data[0],
                               .scales = u->in_data[1],
                               .zero_points = w->zero_point == NULL ? NULL : u->in_data[2]};
    return tsr_int_decode(kernels, &span, step->out[0]->dtype, u->out_data[0], u->scratch, err);
}

const tsr_op tsr_cast_integers_op = {.name = "dequantize integers",
                                     .units = int_units,
                                     .windows = int_windows,
                                     .scratch_bytes = int_scratch,
                                     .run = int_run};

/* ---- the step ---- */

static const tsr_op *op_of(const tsr_weight *w)
{
    switch ((tsr_family)w->kind->family) {
    case TSR_FAMILY_FP8:
        return &tsr_cast_fp8_op;
    case TSR_FAMILY_INTEGERS:
        return &tsr_cast_integers_op;
    case TSR_FAMILY_MX:
        return &tsr_cast_mx_op;
    case TSR_FAMILY_GPTQ:
        break;
    }
    return &tsr_cast_gptq_op;
}

tsr_status tsr_plan_cast(tsr_plan *plan, const tsr_weight *weight, tsr_dtype dtype, tsr_err *err)
{
    tsr_weight *const params = tsr_arena_alloc(&plan->arena, sizeof *params);
    tsr_tensor *const out = tsr_plan_tensor(plan, weight->values);
    if (params == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    *params = *weight;
    out->name = tsr_arena_dup(&plan->arena, out->name, strlen(out->name));
    if (out->name == NULL)
        return tsr_out_of_memory(err, "while planning");
    params->values = out; /* the weights are gone when the plan is carried out */
    out->dtype = (uint8_t)dtype;
    if (!tsr_mul_u64(tsr_tensor_elements(out), tsr_dtype_bytes(dtype), &out->bytes))
        return tsr_fail(err, TSR_E_SHAPE, "'%s' is too large to be %s", out->name, tsr_dtype_name(dtype));
    const tsr_tensor *in[4] = {weight->data, weight->scale};
    const tsr_tensor *const others[] = {weight->zero_point, weight->global_scale,
                                        weight->reordered ? weight->group_index : NULL};
    uint32_t n = 2;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i] != NULL)
            in[n++] = others[i];
    }
    const tsr_step step = {.op = op_of(weight), .params = params, .in = in, .n_in = n, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
