/* Decoding MXFP4, MXFP8 and NVFP4: a unit is some whole rows of one matrix. gpt-oss' are turned on the way: its loaders
 * know the values as [in, out] where the codes are [out, in]. */
#include "common/checked.h"
#include "common/float_bits.h"
#include "convert/ops/cast_op.h"
#include "convert/ops/rows.h"
#include "quantize/mx_decode.h"

#include <string.h>

/* Rows that are turned at a time: a tile of them stays in a processor's cache. */
enum { TILE = 32 };

static uint64_t row_bytes(const tsr_weight *w)
{
    return w->cols * tsr_dtype_bytes((tsr_dtype)w->values->dtype);
}

static uint64_t unit_rows(const tsr_weight *w)
{
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, row_bytes(w)) / TILE * TILE;
    return tsr_min_u64(tsr_max_u64(TILE, fit), tsr_max_u64(1, w->rows));
}

/* The rows of a unit. */
typedef struct band {
    uint64_t matrix, row, rows;
} band;

static band band_of(const tsr_weight *w, uint64_t unit)
{
    const uint64_t rows = unit_rows(w), units = tsr_ceil_div(w->rows, rows), row = unit % units * rows;
    return (band){.matrix = unit / units, .row = row, .rows = tsr_min_u64(rows, w->rows - row)};
}

static uint64_t mx_units(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    return step->out[0]->bytes == 0 ? 0 : w->matrices * tsr_ceil_div(w->rows, unit_rows(w));
}

static void mx_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_weight *const w = step->params;
    const band b = band_of(w, unit);
    const uint64_t first = b.matrix * w->rows + b.row, all = w->matrices * w->rows;
    const uint64_t codes = w->data->bytes / all, value = tsr_dtype_bytes((tsr_dtype)step->out[0]->dtype);
    u->in[0] = tsr_run_window(first * codes, b.rows * codes);
    u->in[1] = tsr_run_window(first * w->grid_cols, b.rows * w->grid_cols);
    if (w->global_scale != NULL)
        u->in[2] =
            tsr_run_window(tsr_tensor_elements(w->global_scale) == 1 ? 0 : b.matrix * sizeof(float), sizeof(float));
    u->out[0] = w->transposed ? (tsr_window){.offset = (b.matrix * w->cols * w->rows + b.row) * value,
                                             .rows = w->cols,
                                             .row_bytes = b.rows * value,
                                             .pitch = w->rows * value}
                              : tsr_run_window(first * row_bytes(w), b.rows * row_bytes(w));
}

static uint64_t mx_scratch(const tsr_step *step)
{
    const tsr_weight *const w = step->params;
    return tsr_round_up(tsr_mx_decode_scratch(w->cols), 64) + (w->transposed ? TILE * row_bytes(w) : 0);
}

/* rows x cols values of 2 or 4 bytes to the columns of `out`, whose rows are `ld` values apart. */
static void turn(const void *x, uint64_t rows, uint64_t cols, size_t value, void *out, uint64_t ld)
{
    for (uint64_t c = 0; value == 2 && c < cols; c++) {
        for (uint64_t r = 0; r < rows; r++)
            ((uint16_t *)out)[c * ld + r] = ((const uint16_t *)x)[r * cols + c];
    }
    for (uint64_t c = 0; value == 4 && c < cols; c++) {
        for (uint64_t r = 0; r < rows; r++)
            ((uint32_t *)out)[c * ld + r] = ((const uint32_t *)x)[r * cols + c];
    }
}

static tsr_mx_span span_of(const tsr_weight *w, const band *b, const tsr_unit *u)
{
    tsr_mx_span span = {.codes_of = w->data,
                        .scales_of = w->scale,
                        .row = b->matrix * w->rows + b->row,
                        .rows = b->rows,
                        .cols = w->cols,
                        .group = w->block.cols,
                        .element = w->coding == TSR_CODED_E2M1 ? TSR_MX_E2M1 : TSR_MX_E4M3,
                        .scale = w->scale_dtype == TSR_F8_E8M0 ? TSR_MX_E8M0
                                 : w->global_divides           ? TSR_MX_E4M3_DIVIDED
                                                               : TSR_MX_E4M3_TIMES,
                        .codes = u->in_data[0],
                        .scales = u->in_data[1]};
    if (w->global_scale != NULL)
        memcpy(&span.global, u->in_data[2], sizeof span.global);
    return span;
}

static tsr_status mx_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                         tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const tsr_weight *const w = step->params;
    const tsr_dtype dtype = (tsr_dtype)step->out[0]->dtype;
    const band b = band_of(w, unit);
    const tsr_mx_span all = span_of(w, &b, u);
    if (!w->transposed)
        return tsr_mx_decode(kernels, &all, dtype, u->out_data[0], u->scratch, err);
    const size_t value = tsr_dtype_bytes(dtype);
    char *const tile = (char *)u->scratch + tsr_round_up(tsr_mx_decode_scratch(w->cols), 64);
    for (uint64_t row = 0; row < b.rows; row += TILE) {
        tsr_mx_span span = all;
        span.row += row;
        span.rows = tsr_min_u64(TILE, b.rows - row);
        span.codes += row * (w->cols / 2);
        span.scales += row * w->grid_cols;
        TSR_TRY(tsr_mx_decode(kernels, &span, dtype, tile, u->scratch, err));
        turn(tile, span.rows, w->cols, value, (char *)u->out_data[0] + row * value, b.rows);
    }
    return TSR_OK;
}

const tsr_op tsr_cast_mx_op = {
    .name = "dequantize groups", .units = mx_units, .windows = mx_windows, .scratch_bytes = mx_scratch, .run = mx_run};
