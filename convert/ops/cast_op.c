/* Decodes codes to floating point. A unit is some whole rows of one matrix. gpt-oss stacks are transposed: the codes
 * are [out, in], but its loaders expect values as [in, out]. */
#include "convert/ops/cast_op.h"

#include "common/checked.h"
#include "convert/ops/rows/row_decoder.h"
#include "convert/ops/rows/rows.h"

#include <string.h>

/* Rows that are transposed at a time: a tile of them fits the processor's cache. */
enum { TILE = 32 };

typedef struct params {
    tsr_weight weight;
    tsr_row_view view; /* all of it */
    const tsr_row_decoder *decoder;
    tsr_dtype dtype;
    uint64_t row_bytes; /* bytes of a row of values */
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

/* Whole blocks and tiles if they fit, so that few scales are read twice. */
static uint64_t unit_rows(const params *p)
{
    const bool fp8 = p->weight.kind->family == TSR_FAMILY_FP8;
    const uint64_t least = tsr_max_u64(p->decoder->begin, p->weight.transposed ? TILE : 1);
    const uint64_t whole = tsr_max_u64(least, fp8 ? p->weight.block.rows : TILE);
    const uint64_t fit = tsr_max_u64(least, TSR_UNIT_BYTES / tsr_max_u64(1, p->row_bytes));
    const uint64_t step = fit < whole ? least : whole;
    return tsr_min_u64(fit / step * step, tsr_max_u64(1, p->weight.rows));
}

/* The rows of a unit, numbered through all matrices. */
typedef struct band {
    uint64_t row, rows;
} band;

static band band_of(const params *p, uint64_t unit)
{
    const uint64_t rows = unit_rows(p), units = tsr_ceil_div(p->weight.rows, rows), row = unit % units * rows;
    return (band){.row = unit / units * p->weight.rows + row, .rows = tsr_min_u64(rows, p->weight.rows - row)};
}

static uint64_t cast_units(const tsr_step *step)
{
    const params *const p = params_of(step);
    return step->out[0]->bytes == 0 ? 0 : p->weight.matrices * tsr_ceil_div(p->weight.rows, unit_rows(p));
}

static void cast_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = params_of(step);
    const tsr_weight *const w = &p->weight;
    const band b = band_of(p, unit);
    const uint64_t value = tsr_dtype_bytes(p->dtype), matrix = b.row / w->rows;
    p->decoder->windows(&p->view, b.row, b.rows, u->in);
    u->out[0] = w->transposed ? (tsr_window){.offset = (matrix * w->cols * w->rows + b.row % w->rows) * value,
                                             .rows = w->cols,
                                             .row_bytes = b.rows * value,
                                             .pitch = w->rows * value}
                              : tsr_run_window(b.row * p->row_bytes, b.rows * p->row_bytes);
}

static uint64_t decoding(const params *p)
{
    return tsr_round_up(p->decoder->scratch(&p->weight), 64);
}

static uint64_t cast_scratch(const tsr_step *step)
{
    const params *const p = params_of(step);
    return decoding(p) + (p->weight.transposed ? TILE * p->row_bytes : 0);
}

/* Transposes rows x cols values of 2 or 4 bytes into `out`, whose rows are `ld` values long. */
static void turn(const tsr_cpu_kernels *k, const void *x, uint64_t rows, uint64_t cols, size_t value, void *out,
                 uint64_t ld)
{
    if (value == 2)
        k->transpose16(x, rows, cols, cols, out, ld);
    else
        k->transpose32(x, rows, cols, cols, out, ld);
}

static tsr_status decode_turned(const params *p, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                                tsr_err *err)
{
    const size_t value = tsr_dtype_bytes(p->dtype);
    void *const tile = (char *)u->scratch + decoding(p);
    for (uint64_t row = 0; row < b->rows; row += TILE) {
        void *in[TSR_DECODED_INPUTS];
        memcpy(in, u->in_data, sizeof in);
        for (unsigned i = 0; i < 2; i++)
            in[i] = (char *)in[i] + tsr_window_bytes(&u->in[i]) / b->rows * row;
        const tsr_coded_rows rows = {
            .view = &p->view, .row = b->row + row, .rows = tsr_min_u64(TILE, b->rows - row), .in = in};
        TSR_TRY(p->decoder->decode(&rows, kernels, p->dtype, tile, u->scratch, err));
        turn(kernels, tile, rows.rows, p->weight.cols, value, (char *)u->out_data[0] + row * value, b->rows);
    }
    return TSR_OK;
}

/* Returns how many rows of a band are decoded at a time, so that they are still in the cache when they are digested and
 * written. Returns all rows if fewer are not contiguous in the inputs, as for AWQ and GPTQ. */
static uint64_t piece_rows(const params *p, const band *b)
{
    const uint64_t fit = TSR_PIECE_BYTES / tsr_max_u64(1, p->row_bytes);
    const uint64_t least = tsr_max_u64(p->decoder->begin, p->decoder->end);
    const uint64_t rows = tsr_max_u64(least, fit / least * least);
    tsr_window part[TSR_DECODED_INPUTS] = {{0}};
    if (rows >= b->rows)
        return b->rows;
    p->decoder->windows(&p->view, b->row, rows, part);
    for (unsigned i = 0; i < TSR_DECODED_INPUTS; i++) {
        if (part[i].rows > 1 && part[i].pitch != part[i].row_bytes)
            return b->rows;
    }
    return rows;
}

/* Finds the unit's inputs for some of its rows. */
static void find_inputs(const params *p, const tsr_unit *u, uint64_t row, uint64_t rows, void *in[TSR_DECODED_INPUTS])
{
    tsr_window part[TSR_DECODED_INPUTS] = {{0}};
    p->decoder->windows(&p->view, row, rows, part);
    for (unsigned i = 0; i < TSR_DECODED_INPUTS; i++)
        in[i] = part[i].rows == 0 ? u->in_data[i] : (char *)u->in_data[i] + (part[i].offset - u->in[i].offset);
}

static tsr_status decode_rows(const params *p, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                              tsr_err *err)
{
    const uint64_t step = piece_rows(p, b);
    for (uint64_t row = 0; row < b->rows; row += step) {
        void *in[TSR_DECODED_INPUTS];
        const tsr_coded_rows rows = {
            .view = &p->view, .row = b->row + row, .rows = tsr_min_u64(step, b->rows - row), .in = in};
        find_inputs(p, u, rows.row, rows.rows, in);
        TSR_TRY(
            p->decoder->decode(&rows, kernels, p->dtype, (char *)u->out_data[0] + row * p->row_bytes, u->scratch, err));
        tsr_unit_made(u, (row + rows.rows) * p->row_bytes);
    }
    return TSR_OK;
}

static tsr_status cast_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const params *const p = params_of(step);
    const band b = band_of(p, unit);
    return p->weight.transposed ? decode_turned(p, &b, u, kernels, err) : decode_rows(p, &b, u, kernels, err);
}

static const tsr_op kCastOp = {.name = "dequantize", .units = {cast_units, cast_windows, cast_scratch, cast_run}};

/* ---- the step ---- */

tsr_status tsr_plan_cast(tsr_plan *plan, const tsr_weight *weight, tsr_dtype dtype, tsr_err *err)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    tsr_tensor *const out = tsr_plan_tensor(plan, weight->values);
    if (p == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    out->name = tsr_arena_dup(&plan->arena, out->name, strlen(out->name));
    if (out->name == NULL)
        return tsr_out_of_memory(err, "while planning");
    out->dtype = (uint8_t)dtype;
    if (!tsr_mul_u64(tsr_tensor_elements(out), tsr_dtype_bytes(dtype), &out->bytes))
        return tsr_fail(err, TSR_E_SHAPE, "'%s' is too large to be %s", out->name, tsr_dtype_name(dtype));
    *p = (params){.weight = *weight,
                  .decoder = tsr_row_decoder_of(weight),
                  .dtype = dtype,
                  .row_bytes = weight->cols * tsr_dtype_bytes(dtype)};
    p->weight.values = out; /* the caller's weights no longer exist when the plan runs */
    p->view = tsr_view_whole(&p->weight);
    const tsr_tensor *in[TSR_DECODED_INPUTS];
    const uint32_t n = tsr_row_decoder_inputs(weight, in);
    const tsr_step step = {.op = &kCastOp, .params = p, .in = in, .n_in = n, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
