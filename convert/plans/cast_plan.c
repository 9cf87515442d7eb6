/* Decoding in units of whole rows, and the configuration of an unquantized model. */
#include "convert/plans/cast_plan.h"

#include "common/checked.h"
#include "convert/ops/rows.h"
#include "convert/ops/scale_op.h"
#include "convert/plans/fp8_config.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "quantize/int_decode.h"

#include <string.h>

/* ---- the operation on e4m3: a unit is some rows of one matrix ---- */

static uint64_t rows_per_unit(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    const uint64_t row_bytes = tsr_max_u64(1, w->cols * tsr_dtype_bytes(step->out[0]->dtype));
    const uint64_t fit = tsr_max_u64(1, TSR_UNIT_BYTES / row_bytes);
    /* Whole blocks where they fit, so that few scales are read twice. */
    return fit < w->block_rows ? fit : tsr_min_u64(fit - fit % w->block_rows, tsr_max_u64(1, w->rows));
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

static const tsr_op kCastOp = {
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

static const tsr_op kIntOp = {.name = "dequantize integers",
                              .units = int_units,
                              .windows = int_windows,
                              .scratch_bytes = int_scratch,
                              .run = int_run};

/* ---- the plan ---- */

static tsr_status plan_cast(tsr_plan *plan, const tsr_weight *weight, tsr_dtype dtype, tsr_err *err)
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
    const tsr_tensor *const in[] = {weight->data, weight->scale, weight->zero_point};
    const tsr_step step = {.op = weight->coding == TSR_CODED_E4M3 ? &kCastOp : &kIntOp,
                           .params = params,
                           .in = in,
                           .n_in = weight->zero_point == NULL ? 2 : 3,
                           .out = {out},
                           .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}

static tsr_status plan_tensors(tsr_plan *plan, const tsr_weights *weights, const tsr_cast_options *o, tsr_err *err)
{
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->scale == NULL) {
            TSR_TRY(tsr_plan_copy(plan, w->data, w->data->name, err));
            TSR_TRY(tsr_plan_add_note(plan, w->data, "copy", tsr_plain_reason(w), err));
            continue;
        }
        const tsr_tensor *companions[TSR_MAX_COMPANIONS];
        const size_t n = tsr_weight_companions(w, companions);
        const char *const decoded =
            w->coding == TSR_CODED_E4M3
                ? tsr_arena_printf(&plan->arena, "F8_E4M3 to %s", tsr_dtype_name(o->dtype))
                : tsr_arena_printf(&plan->arena, "int%u to %s", w->bits, tsr_dtype_name(o->dtype));
        if (decoded == NULL)
            return tsr_out_of_memory(err, "while planning");
        TSR_TRY(plan_cast(plan, w, o->dtype, err));
        TSR_TRY(tsr_plan_add_note(plan, w->data, "dequantize", decoded, err));
        for (size_t k = 0; k < n; k++)
            TSR_TRY(tsr_plan_add_note(plan, companions[k], "consume", "stands with a weight that is dequantized", err));
    }
    return TSR_OK;
}

/* Without quantization_config; with the dtype, where config.json states one ("torch_dtype", lately "dtype"). */
static tsr_status plan_config(tsr_plan *plan, tsr_dtype dtype, tsr_err *err)
{
    static const char *const kKeys[] = {"torch_dtype", "dtype"};
    const tsr_checkpoint *const c = plan->sources[0];
    const char *const value = dtype == TSR_BF16 ? "\"bfloat16\"" : dtype == TSR_F16 ? "\"float16\"" : "\"float32\"";
    if (c->config == NULL)
        return TSR_OK;
    tsr_text config = {0};
    tsr_status status = tsr_fp8_config_remove(&config, c, err);
    for (size_t i = 0; status == TSR_OK && i < sizeof kKeys / sizeof *kKeys; i++) {
        tsr_json_text old;
        tsr_text edited = {0};
        if (!tsr_json_find(config.data, config.size, kKeys[i], &old))
            continue;
        status = tsr_json_edit_set(&edited, config.data, config.size, kKeys[i], value, err);
        tsr_text_free(&config);
        config = edited;
    }
    return tsr_plan_take_text(plan, "", TSR_CONFIG_NAME, &config, status, err);
}

static tsr_status make_plan(tsr_plan *plan, const tsr_weights *weights, const tsr_cast_options *o, tsr_err *err)
{
    plan->command = tsr_arena_printf(
        &plan->arena, "convert --to bf16 --dtype %s --block %llux%llu --max-shard-size %llu", tsr_dtype_name(o->dtype),
        U64(o->block.rows), U64(o->block.cols), (unsigned long long)o->max_shard_bytes);
    if (o->block.rows != 0) /* who compares has to be told as well */
        plan->next = tsr_arena_printf(&plan->arena, "tessera verify DST --against SRC --source-block %llux%llu",
                                      U64(o->block.rows), U64(o->block.cols));
    if (plan->command == NULL || (o->block.rows != 0 && plan->next == NULL))
        return tsr_out_of_memory(err, "while planning");
    if (weights->n_scaled == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: no tensor is codes: there is nothing to dequantize",
                        plan->sources[0]->path);
    TSR_TRY(plan_tensors(plan, weights, o, err));
    TSR_TRY(tsr_plan_pack(plan, "", o->max_shard_bytes, err));
    TSR_TRY(tsr_plan_side_files(plan, "", "*", TSR_AZP_NAME, err));
    TSR_TRY(tsr_plan_index(plan, "", false, err));
    TSR_TRY(plan_config(plan, o->dtype, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_cast_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_cast_options *options,
                         tsr_err *err)
{
    tsr_weights weights;
    *plan = tsr_plan_begin(source, 1);
    TSR_TRY(tsr_weights_pair(&weights, *source, options->block.rows, options->block.cols, err));
    tsr_status status = tsr_weights_refuse_parts(&weights, *source, "dequantizing", err);
    if (status == TSR_OK)
        status = make_plan(plan, &weights, options, err);
    tsr_weights_free(&weights);
    if (status != TSR_OK)
        tsr_plan_free(plan);
    return status;
}
