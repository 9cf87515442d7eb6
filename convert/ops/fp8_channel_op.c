/* Quantizes to e4m3 with one scale per row. A unit is some whole rows. */
#include "convert/ops/fp8_channel_op.h"

#include "convert/ops/rows/buffered_scales.h"
#include "convert/ops/rows/rows.h"

static const tsr_fp8_block *scheme_of(const tsr_step *step)
{
    return step->params;
}

static uint64_t unit_rows(const tsr_step *step)
{
    return tsr_unit_rows(step->in[0], 1);
}

static uint64_t channel_units(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->shape[0], unit_rows(step));
}

static void channel_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t row = unit * unit_rows(step), rows = tsr_min_u64(unit_rows(step), step->in[0]->shape[0] - row);
    u->in[0] = tsr_rows_window(step->in[0], row, rows);
    u->out[0] = tsr_rows_window(step->out[0], row, rows);
}

static uint64_t channel_scratch(const tsr_step *step)
{
    return tsr_fp8_block_scratch(scheme_of(step), (tsr_dtype)step->in[0]->dtype);
}

static tsr_status channel_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                              tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_tensor *const t = step->in[0];
    const uint64_t cols = t->shape[1], first = unit * unit_rows(step);
    const uint64_t rows = tsr_min_u64(unit_rows(step), t->shape[0] - first);
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
                                  .scratch = u->scratch,
                                  .notes = u->notes};
        TSR_TRY(tsr_fp8_block_quantize(scheme_of(step), kernels, &row, stats, err));
        tsr_buffered_scales_store((tsr_dtype)step->out[1]->dtype, &scale, 1, u->out_data[1], first + r);
    }
    return TSR_OK;
}

static void channel_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    const uint64_t *const shape = step->in[0]->shape;
    *map = (tsr_block_map){.shape = {1, shape[0], shape[1]}, .block = {1, 1, shape[1]}};
    *bins = TSR_BINS_E4M3;
}

static const tsr_op kChannelOp = {.name = "quantize fp8-channel",
                                  .units = {channel_units, channel_windows, channel_scratch, channel_run},
                                  .finish = tsr_buffered_scales_finish,
                                  .stats_of = TSR_STATS_SOURCE,
                                  .blocks = channel_blocks};

tsr_status tsr_plan_fp8_channel(tsr_plan *plan, const tsr_tensor *weight, tsr_scale_fmt scale_fmt, bool search,
                                tsr_err *err)
{
    tsr_fp8_block *const scheme = tsr_arena_alloc(&plan->arena, sizeof *scheme);
    tsr_tensor *const codes = tsr_plan_tensor(plan, weight), *const scales = tsr_plan_tensor(plan, weight);
    const char *const name = tsr_arena_printf(&plan->arena, "%s_scale", weight->name);
    if (scheme == NULL || codes == NULL || scales == NULL || name == NULL)
        return tsr_out_of_memory(err, "while planning");
    *scheme = (tsr_fp8_block){
        .block_rows = 1, .block_cols = (uint32_t)weight->shape[1], .scale_fmt = scale_fmt, .search = search};
    codes->dtype = TSR_F8_E4M3;
    codes->bytes = weight->shape[0] * weight->shape[1];
    scales->name = name;
    scales->dtype = scale_fmt == TSR_SCALE_BF16 ? TSR_BF16 : TSR_F32;
    scales->shape[1] = 1;
    scales->bytes = weight->shape[0] * tsr_dtype_bytes((tsr_dtype)scales->dtype);
    const tsr_step step = {.op = &kChannelOp,
                           .params = scheme,
                           .in = &weight,
                           .n_in = 1,
                           .out = {codes, scales},
                           .n_out = 2,
                           .buffered = 2};
    return tsr_plan_step(plan, &step, err);
}
