/* Wraps an operation: decodes rows to scratch, where the inner operation finds its input. */
#include "convert/ops/recode_op.h"

#include "common/float_bits.h"
#include "convert/ops/rows/rows.h"

#include <string.h>

typedef struct params {
    tsr_step inner;
    const tsr_decoded *decoded;
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

static uint64_t recode_units(const tsr_step *step)
{
    const tsr_step *const inner = &params_of(step)->inner;
    return inner->op->units.count(inner);
}

/* Computes which rows of the whole matrix the unit's input is. */
static void rows_of(const tsr_step *inner, const tsr_unit *u, uint64_t *row, uint64_t *rows)
{
    const tsr_tensor *const t = inner->in[0];
    const uint64_t row_bytes = t->shape[t->rank - 1] * tsr_dtype_bytes((tsr_dtype)t->dtype);
    *row = u->in[0].offset / row_bytes;
    *rows = tsr_window_bytes(&u->in[0]) / row_bytes;
}

static void recode_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = params_of(step);
    const tsr_unit inner = tsr_step_unit(&p->inner, unit);
    uint64_t row, rows;
    rows_of(&p->inner, &inner, &row, &rows);
    p->decoded->windows(p->decoded, row, rows, u->in);
    for (unsigned i = 0; i < step->n_out; i++)
        u->out[i] = inner.out[i];
}

static uint64_t decoding(const tsr_step *step, const tsr_unit *inner)
{
    uint64_t row, rows;
    rows_of(&params_of(step)->inner, inner, &row, &rows);
    return tsr_round_up(params_of(step)->decoded->memory(params_of(step)->decoded, rows), 64);
}

/* A unit that begins inside a tile or block reads more than the first unit, which has the same number of rows. */
static uint64_t recode_largest(const tsr_step *step)
{
    uint64_t largest = 0, most = 0;
    for (uint64_t unit = 0; unit < recode_units(step); unit++) {
        tsr_unit u = {.scratch = NULL};
        uint64_t bytes = 0;
        recode_windows(step, unit, &u);
        for (unsigned i = 0; i < step->n_in; i++)
            bytes += tsr_round_up(tsr_window_bytes(&u.in[i]), 64);
        for (unsigned i = 0; i < step->n_out; i++)
            bytes += tsr_round_up(tsr_window_bytes(&u.out[i]), 64);
        largest = bytes > most ? unit : largest;
        most = tsr_max_u64(most, bytes);
    }
    return largest;
}

/* The first unit has the most rows. */
static uint64_t recode_scratch(const tsr_step *step)
{
    const tsr_step *const inner = &params_of(step)->inner;
    const tsr_unit first = tsr_step_unit(inner, 0);
    return decoding(step, &first) +
           (inner->op->units.scratch_bytes == NULL ? 0 : inner->op->units.scratch_bytes(inner));
}

static tsr_status recode_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    tsr_unit inner = tsr_step_unit(&p->inner, unit);
    const void *x;
    uint64_t row, rows;
    rows_of(&p->inner, &inner, &row, &rows);
    TSR_TRY(p->decoded->decode(p->decoded, row, rows, u->in_data, u->scratch, kernels, &x, err));
    inner.in_data[0] = (void *)(uintptr_t)x;
    for (unsigned i = 0; i < step->n_out; i++)
        inner.out_data[i] = u->out_data[i];
    memcpy(inner.coproduced_data, u->coproduced_data, sizeof inner.coproduced_data);
    inner.scratch = (char *)u->scratch + decoding(step, &inner);
    inner.amax = u->amax;
    inner.notes = u->notes;
    return p->inner.op->units.run(&p->inner, unit, &inner, kernels, stats, err);
}

static void recode_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    params_of(step)->inner.op->blocks(&params_of(step)->inner, map, bins);
}

static void recode_seal(const tsr_step *step, void *const *buffered)
{
    params_of(step)->inner.op->seal(&params_of(step)->inner, buffered);
}

static tsr_status recode_finish(const tsr_step *step, void *const *buffered, tsr_quant_stats *stats, tsr_err *err)
{
    return params_of(step)->inner.op->finish(&params_of(step)->inner, buffered, stats, err);
}

tsr_status tsr_step_decode(tsr_plan *plan, tsr_step *step, const tsr_decoded *decoded, tsr_err *err)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    tsr_op *const op = tsr_arena_alloc(&plan->arena, sizeof *op);
    const char *const name = tsr_arena_printf(&plan->arena, "decode, %s", step->op->name);
    if (p == NULL || op == NULL || name == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (params){.inner = *step, .decoded = decoded};
    *op = (tsr_op){.name = name,
                   .units = {recode_units, recode_windows, recode_scratch, recode_run},
                   .largest = recode_largest,
                   .seal = step->op->seal == NULL ? NULL : recode_seal,
                   .finish = step->op->finish == NULL ? NULL : recode_finish,
                   .stats_of = step->op->stats_of,
                   .blocks = step->op->blocks == NULL ? NULL : recode_blocks};
    step->op = op;
    step->params = p;
    step->in = decoded->in;
    step->n_in = decoded->n_in;
    step->reported = p->inner.in[0];
    return TSR_OK;
}

/* ---- writing rows, rounded to BF16 or unchanged ---- */

static uint64_t keep_rows(const tsr_step *step)
{
    const tsr_tensor *const t = step->in[0];
    const uint64_t row_bytes = t->shape[t->rank - 1] * tsr_dtype_bytes((tsr_dtype)t->dtype);
    return tsr_max_u64(1, TSR_UNIT_BYTES / row_bytes);
}

static uint64_t all_rows(const tsr_tensor *t)
{
    return tsr_tensor_elements(t) / tsr_max_u64(1, t->shape[t->rank - 1]);
}

static uint64_t keep_units(const tsr_step *step)
{
    return tsr_ceil_div(all_rows(step->out[0]), keep_rows(step));
}

static tsr_window rows_window(const tsr_tensor *t, uint64_t row, uint64_t rows)
{
    const uint64_t bytes = t->shape[t->rank - 1] * tsr_dtype_bytes((tsr_dtype)t->dtype);
    return tsr_run_window(row * bytes, rows * bytes);
}

static void keep_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t row = unit * keep_rows(step);
    const uint64_t rows = tsr_min_u64(keep_rows(step), all_rows(step->out[0]) - row);
    u->in[0] = rows_window(step->in[0], row, rows);
    u->out[0] = rows_window(step->out[0], row, rows);
}

static tsr_status keep_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit, (void)kernels, (void)stats;
    const float *const x = u->in_data[0];
    uint16_t *const y = u->out_data[0];
    for (uint64_t i = 0; i < u->out[0].row_bytes / sizeof *y; i++) {
        y[i] = tsr_bf16_from_f32(x[i]);
        if ((y[i] & 0x7F80) == 0x7F80)
            return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, step->out[0]->name,
                                   "a value is beyond the range of BF16");
    }
    return TSR_OK;
}

static const tsr_op kKeepOp = {.name = "to bf16", .units = {keep_units, keep_windows, NULL, keep_run}};

static tsr_status take_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)step, (void)unit, (void)kernels, (void)stats, (void)err;
    memcpy(u->out_data[0], u->in_data[0], u->out[0].row_bytes);
    return TSR_OK;
}

static const tsr_op kTakeOp = {.name = "take", .units = {keep_units, keep_windows, NULL, take_run}};

/* Makes the step write decoded rows of this dtype. */
static tsr_status write_rows(tsr_plan *plan, tsr_step *step, const tsr_op *op, tsr_dtype dtype,
                             const tsr_decoded *decoded, tsr_err *err)
{
    tsr_tensor *const values = tsr_plan_tensor(plan, step->in[0]);
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, sizeof *in);
    if (values == NULL || in == NULL)
        return tsr_out_of_memory(err, "while planning");
    values->dtype = (uint8_t)dtype;
    in[0] = values;
    step->op = op;
    step->in = in;
    step->n_in = 1;
    return tsr_step_decode(plan, step, decoded, err);
}

tsr_status tsr_step_keep(tsr_plan *plan, tsr_step *step, const tsr_decoded *decoded, tsr_err *err)
{
    return write_rows(plan, step, &kKeepOp, TSR_F32, decoded, err);
}

tsr_status tsr_step_take(tsr_plan *plan, tsr_step *step, const tsr_decoded *decoded, tsr_err *err)
{
    return write_rows(plan, step, &kTakeOp, (tsr_dtype)step->in[0]->dtype, decoded, err);
}

/* ---- taking elements ---- */

typedef struct picking {
    uint64_t first, stride;
} picking;

static uint64_t element_bytes(const tsr_step *step)
{
    return tsr_dtype_bytes((tsr_dtype)step->out[0]->dtype);
}

static void pick_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const picking *const p = step->params;
    const uint64_t bytes = element_bytes(step), n = step->out[0]->bytes / bytes;
    (void)unit;
    u->in[0] = tsr_run_window(p->first * bytes, ((n - 1) * p->stride + 1) * bytes);
    u->out[0] = tsr_run_window(0, step->out[0]->bytes);
}

static tsr_status pick_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit, (void)kernels, (void)stats, (void)err;
    const picking *const p = step->params;
    const uint64_t bytes = element_bytes(step), n = step->out[0]->bytes / bytes;
    for (uint64_t i = 0; i < n; i++)
        memcpy((char *)u->out_data[0] + i * bytes, (const char *)u->in_data[0] + i * p->stride * bytes, bytes);
    return TSR_OK;
}

static const tsr_op kPickOp = {.name = "pick", .units = {tsr_one_unit, pick_windows, NULL, pick_run}};

tsr_status tsr_step_pick(tsr_plan *plan, tsr_step *step, const tsr_tensor *from, uint64_t first, uint64_t stride,
                         tsr_err *err)
{
    picking *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, sizeof *in);
    if (p == NULL || in == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (picking){.first = first, .stride = stride};
    in[0] = from;
    step->op = &kPickOp;
    step->params = p;
    step->in = in;
    step->n_in = 1;
    return TSR_OK;
}
