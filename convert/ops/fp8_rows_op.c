/* Quantizes to e4m3 with one scale per row, or one for the whole tensor. A unit is some whole rows. */
#include "convert/ops/fp8_rows_op.h"

#include "convert/ops/rows/buffered_scales.h"
#include "convert/ops/rows/rows.h"

#include <string.h>

typedef struct params {
    tsr_fp8_block scheme; /* a block is a row */
    float input;          /* stored scale of the input; 0: none */
    tsr_column_importance importance;
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

static const tsr_fp8_block *scheme_of(const tsr_step *step)
{
    return &params_of(step)->scheme;
}

static uint64_t unit_rows(const tsr_step *step)
{
    return tsr_unit_rows(step->in[0], 1);
}

static uint64_t rows_units(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->shape[0], unit_rows(step));
}

static void rows_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t row = unit * unit_rows(step), rows = tsr_min_u64(unit_rows(step), step->in[0]->shape[0] - row);
    u->in[0] = tsr_rows_window(step->in[0], row, rows);
    u->out[0] = tsr_rows_window(step->out[0], row, rows);
}

static uint64_t quantizing_scratch(const tsr_step *step)
{
    return tsr_fp8_block_scratch(scheme_of(step), (tsr_dtype)step->in[0]->dtype);
}

/* Scratch: that of quantizing, and the importance of the columns. */
static uint64_t rows_scratch(const tsr_step *step)
{
    return quantizing_scratch(step) +
           (params_of(step)->importance.entry == NULL ? 0 : step->in[0]->shape[1] * sizeof(float));
}

/* Stores the scale of the whole tensor, and that of the input if there is one. */
static void store_shared(const tsr_step *step, const tsr_unit *u, const tsr_cpu_kernels *kernels)
{
    const float scale = tsr_fp8_scale(scheme_of(step), kernels, u->amax);
    memcpy(u->out_data[1], &scale, sizeof scale);
    if (step->n_out > 2)
        memcpy(u->out_data[2], &params_of(step)->input, sizeof(float));
}

static tsr_status rows_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_tensor *const t = step->in[0];
    const uint64_t cols = t->shape[1], first = unit * unit_rows(step);
    const uint64_t rows = tsr_min_u64(unit_rows(step), t->shape[0] - first);
    float *const importance = (float *)((char *)u->scratch + quantizing_scratch(step));
    const bool weighted = tsr_importance_of(&params_of(step)->importance, 0, 0, cols, importance);
    for (uint64_t r = 0; r < rows; r++) {
        float scale;
        const tsr_fp8_band row = {.tensor = t,
                                  .first = (first + r) * cols,
                                  .x = (const char *)u->in_data[0] + r * cols * tsr_dtype_bytes((tsr_dtype)t->dtype),
                                  .rows = 1,
                                  .cols = cols,
                                  .ld = cols,
                                  .codes = (uint8_t *)u->out_data[0] + r * cols,
                                  .ld_codes = cols,
                                  .scales = &scale,
                                  .importance = weighted ? importance : NULL,
                                  .amax = step->amax == NULL ? NULL : &u->amax,
                                  .scratch = u->scratch,
                                  .notes = u->notes};
        TSR_TRY(tsr_fp8_block_quantize(scheme_of(step), kernels, &row, stats, err));
        if (step->amax == NULL)
            tsr_buffered_scales_store((tsr_dtype)step->out[1]->dtype, &scale, 1, u->out_data[1], first + r);
    }
    if (unit == 0 && step->amax != NULL)
        store_shared(step, u, kernels);
    return TSR_OK;
}

static void rows_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    const uint64_t *const shape = step->in[0]->shape;
    *map = (tsr_block_map){.shape = {1, shape[0], shape[1]}, .block = {1, 1, shape[1]}};
    *bins = TSR_BINS_E4M3;
}

static const tsr_op kChannelOp = {.name = "quantize fp8-channel",
                                  .units = {rows_units, rows_windows, rows_scratch, rows_run},
                                  .finish = tsr_buffered_scales_finish,
                                  .stats_of = TSR_STATS_SOURCE,
                                  .blocks = rows_blocks};

static const tsr_op kTensorOp = {.name = "quantize fp8-tensor",
                                 .units = {rows_units, rows_windows, rows_scratch, rows_run},
                                 .finish = tsr_buffered_scales_finish,
                                 .stats_of = TSR_STATS_SOURCE,
                                 .blocks = rows_blocks};

static tsr_status make_params(tsr_plan *plan, const tsr_tensor *weight, tsr_scale_fmt fmt, tsr_scale_search search,
                              float input, params **made, tsr_err *err)
{
    params *const p = *made = tsr_arena_alloc(&plan->arena, sizeof *p);
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (params){
        .scheme = {.block_rows = 1, .block_cols = (uint32_t)weight->shape[1], .scale_fmt = fmt, .search = search},
        .input = input};
    return tsr_plan_weigh(plan, weight, &p->importance, err);
}

static tsr_tensor *codes_of(tsr_plan *plan, const tsr_tensor *weight)
{
    return tsr_plan_new_tensor(plan, weight->name, TSR_F8_E4M3, 2, weight->shape);
}

tsr_status tsr_plan_fp8_channel(tsr_plan *plan, const tsr_tensor *weight, tsr_scale_fmt scale_fmt,
                                tsr_scale_search search, tsr_err *err)
{
    params *p;
    TSR_TRY(make_params(plan, weight, scale_fmt, search, 0, &p, err));
    const tsr_step step = {.op = &kChannelOp,
                           .params = p,
                           .in = &weight,
                           .n_in = 1,
                           .out = {codes_of(plan, weight),
                                   tsr_plan_new_tensor(plan, tsr_arena_printf(&plan->arena, "%s_scale", weight->name),
                                                       scale_fmt == TSR_SCALE_BF16 ? TSR_BF16 : TSR_F32, 2,
                                                       (const uint64_t[]){weight->shape[0], 1})},
                           .n_out = 2,
                           .buffered = 2};
    if (step.out[0] == NULL || step.out[1] == NULL)
        return tsr_out_of_memory(err, "while planning");
    return tsr_plan_step(plan, &step, err);
}

static tsr_tensor *scalar(tsr_plan *plan, const tsr_tensor *weight, const char *ending, unsigned rank)
{
    return tsr_plan_new_member(plan, weight, ending, TSR_F32, rank, (const uint64_t[]){1});
}

tsr_status tsr_plan_fp8_tensor(tsr_plan *plan, const tsr_tensor *weight, const tsr_mx_names *names,
                               const tsr_amax *amax, float input, tsr_err *err)
{
    const tsr_tensor *in[TSR_MAX_INPUTS] = {weight};
    params *p;
    TSR_TRY(make_params(plan, weight, TSR_SCALE_F32, TSR_SCALES_AMAX, input, &p, err));
    const tsr_step step = {.op = &kTensorOp,
                           .params = p,
                           .in = in,
                           .n_in = tsr_amax_inputs(amax, weight, in),
                           .amax = amax,
                           .out = {codes_of(plan, weight), scalar(plan, weight, names->scales, names->global_rank),
                                   input == 0 ? NULL : scalar(plan, weight, names->input, names->global_rank)},
                           .n_out = input == 0 ? 2 : 3,
                           .buffered = 6};
    if (step.out[0] == NULL || step.out[1] == NULL || (input != 0 && step.out[2] == NULL))
        return tsr_out_of_memory(err, "while planning");
    return tsr_plan_step(plan, &step, err);
}
