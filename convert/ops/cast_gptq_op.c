/* Decoding AWQ and GPTQ: a unit is some outputs with all their inputs. These formats store a row for each input, so that a
 * unit reads a piece of every row. */
#include "common/checked.h"
#include "convert/ops/cast_op.h"
#include "convert/ops/rows.h"
#include "quantize/awq_gptq_decode.h"

static uint64_t unit_rows(const tsr_weight *w)
{
    const uint64_t row_bytes = w->cols * tsr_dtype_bytes((tsr_dtype)w->values->dtype);
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, row_bytes) / TSR_GPTQ_TILE * TSR_GPTQ_TILE;
    return tsr_min_u64(tsr_max_u64(TSR_GPTQ_TILE, fit), tsr_max_u64(1, w->rows));
}

static uint64_t gptq_units(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    return step->out[0]->bytes == 0 ? 0 : tsr_ceil_div(w->rows, unit_rows(w));
}

/* `bytes` bytes from `first` on of each row of a matrix. */
static tsr_window columns_window(const tsr_tensor *t, uint64_t first, uint64_t bytes)
{
    return (tsr_window){.offset = first, .rows = t->shape[0], .row_bytes = bytes, .pitch = t->bytes / t->shape[0]};
}

static void gptq_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_weight *const w = step->params;
    const uint64_t row = unit * unit_rows(w), rows = tsr_min_u64(unit_rows(w), w->rows - row);
    const uint64_t words = sizeof(uint32_t), scale = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    const uint64_t packed = w->coding == TSR_CODED_AWQ ? 8 : 1; /* outputs in a word of codes */
    u->in[0] = columns_window(w->data, row / packed * words, rows / packed * words);
    u->in[1] = columns_window(w->scale, row * scale, rows * scale);
    u->in[2] = columns_window(w->zero_point, tsr_gptq_zero_words(w, row) * words, tsr_gptq_zero_words(w, rows) * words);
    if (w->reordered)
        u->in[3] = tsr_whole_window(w->group_index);
    u->out[0] = tsr_rows_window(step->out[0], row, rows);
}

static uint64_t gptq_scratch(const tsr_step *step)
{
    return tsr_gptq_decode_scratch(step->params);
}

static tsr_status gptq_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const tsr_weight *const w = step->params;
    const uint64_t row = unit * unit_rows(w);
    const tsr_gptq_span span = {.weight = w,
                                .row = row,
                                .rows = tsr_min_u64(unit_rows(w), w->rows - row),
                                .codes = u->in_data[0],
                                .scales = u->in_data[1],
                                .zero_points = u->in_data[2],
                                .group_index = w->reordered ? u->in_data[3] : NULL};
    return tsr_gptq_decode(kernels, &span, (tsr_dtype)step->out[0]->dtype, u->out_data[0], u->scratch, err);
}

const tsr_op tsr_cast_gptq_op = {.name = "dequantize AWQ or GPTQ",
                                 .units = gptq_units,
                                 .windows = gptq_windows,
                                 .scratch_bytes = gptq_scratch,
                                 .run = gptq_run};
