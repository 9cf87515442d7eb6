/* Builds stacks of experts. A unit is a band of rows of one expert's projection, or of both if they are interleaved. */
#include "convert/ops/stack_op.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "convert/ops/rows/rows.h"

#include <string.h>

typedef struct params {
    tsr_stack_shape shape;
    const tsr_decoded **parts;
    uint32_t *first; /* first index of each part's inputs in step->in */
    bool codes;
} params;

/* Some rows of `count` projections of one expert, beginning with projection `part`. */
typedef struct band {
    uint64_t expert, projection, count, row, rows;
} band;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

static uint64_t together(const params *p)
{
    return p->shape.interleaved ? p->shape.projections : 1;
}

/* Multiples of 64, so that no unit begins in the middle of a decoder's tile. */
static uint64_t band_rows(const params *p)
{
    const uint64_t bytes = p->shape.cols * sizeof(float) * together(p);
    return tsr_max_u64(64, TSR_UNIT_BYTES / tsr_max_u64(1, bytes) / 64 * 64);
}

static uint64_t bands(const params *p)
{
    return tsr_ceil_div(p->shape.rows, band_rows(p));
}

static uint64_t stack_units(const tsr_step *step)
{
    const params *const p = params_of(step);
    return p->shape.experts * p->shape.projections / together(p) * bands(p);
}

static band band_of(const params *p, uint64_t unit)
{
    const uint64_t group = unit / bands(p), row = unit % bands(p) * band_rows(p);
    const uint64_t groups = p->shape.projections / together(p);
    return (band){.expert = group / groups,
                  .projection = group % groups,
                  .count = together(p),
                  .row = row,
                  .rows = tsr_min_u64(band_rows(p), p->shape.rows - row)};
}

static uint64_t part_of(const params *p, const band *b, uint64_t i)
{
    return b->expert * p->shape.projections + b->projection + i;
}

static tsr_window out_window(const params *p, const band *b, uint64_t bytes)
{
    const tsr_stack_shape *const s = &p->shape;
    const uint64_t all = s->projections * s->rows, first = b->projection * s->rows + b->row * b->count;
    if (!s->turned)
        return tsr_run_window((b->expert * all + first) * s->cols * bytes, b->rows * b->count * s->cols * bytes);
    return (tsr_window){.offset = (b->expert * s->cols * all + first) * bytes,
                        .rows = s->cols,
                        .row_bytes = b->rows * b->count * bytes,
                        .pitch = all * bytes};
}

static void stack_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = params_of(step);
    const band b = band_of(p, unit);
    uint32_t n = 0;
    for (uint64_t i = 0; i < b.count; i++) {
        const uint64_t part = part_of(p, &b, i);
        const tsr_decoded *const d = p->parts[part];
        d->windows(d, b.row, b.rows, u->in + n);
        for (uint32_t k = 0; k < d->n_in; k++)
            u->from[n + k] = p->first[part] + k;
        n += d->n_in;
    }
    u->out[0] = out_window(p, &b, tsr_dtype_bytes((tsr_dtype)step->out[0]->dtype));
}

/* Returns the scratch of one part. */
static uint64_t part_memory(const params *p, uint64_t part, uint64_t rows)
{
    return tsr_round_up(p->parts[part]->memory(p->parts[part], rows), 64);
}

static uint64_t stack_scratch(const tsr_step *step)
{
    const params *const p = params_of(step);
    const uint64_t rows = tsr_min_u64(band_rows(p), p->shape.rows);
    uint64_t most = 0;
    for (uint64_t part = 0; part < p->shape.experts * p->shape.projections; part++)
        most = tsr_max_u64(most, part_memory(p, part, rows));
    return most * together(p);
}

/* ---- the arithmetic ---- */

/* Stores one value as `dtype`. Returns false if it is out of range. */
static bool store(float x, tsr_dtype dtype, void *out, uint64_t at)
{
    const uint16_t half = dtype == TSR_BF16 ? tsr_bf16_from_f32(x) : dtype == TSR_F16 ? tsr_f16_from_f32(x) : 0;
    const uint16_t infinite = dtype == TSR_BF16 ? 0x7F80 : 0x7C00;
    if (dtype == TSR_F32)
        ((float *)out)[at] = x;
    else
        ((uint16_t *)out)[at] = half;
    return dtype == TSR_F32 || (half & infinite) != infinite;
}

/* Copies the rows of projection i of the band to their position in the unit's output. */
static bool place_codes(const params *p, const band *b, uint64_t i, const float *x, tsr_dtype dtype, void *out)
{
    const uint64_t cols = p->shape.cols, width = b->rows * b->count;
    bool fits = true;
    for (uint64_t r = 0; r < b->rows; r++) {
        for (uint64_t c = 0; c < cols; c++)
            fits = store(x[r * cols + c], dtype, out,
                         p->shape.turned ? c * width + r * b->count + i : (r * b->count + i) * cols + c) &&
                   fits;
    }
    return fits;
}

static void place_plain(const params *p, const band *b, uint64_t i, const char *x, uint64_t bytes, char *out)
{
    const uint64_t cols = p->shape.cols, width = b->rows * b->count;
    for (uint64_t r = 0; r < b->rows && !p->shape.turned; r++)
        memcpy(out + (r * b->count + i) * cols * bytes, x + r * cols * bytes, cols * bytes);
    for (uint64_t r = 0; r < b->rows && p->shape.turned; r++) {
        for (uint64_t c = 0; c < cols; c++)
            memcpy(out + (c * width + r * b->count + i) * bytes, x + (r * cols + c) * bytes, bytes);
    }
}

/* Rejects scales that are NaN. */
static tsr_status check_powers(const params *p, const tsr_decoded *part, const band *b, const uint8_t *x, tsr_err *err)
{
    const uint64_t n = b->rows * p->shape.cols;
    const uint8_t *const nan = p->shape.powers ? memchr(x, 255, n) : NULL;
    const uint64_t at = nan == NULL ? 0 : (uint64_t)(nan - x);
    return nan == NULL ? TSR_OK
                       : tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, part->in[0]->name,
                                         "the scale at [%llu, %llu] is 255, which is NaN",
                                         U64(b->row + at / p->shape.cols), U64(at % p->shape.cols));
}

static tsr_status stack_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                            tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const params *const p = params_of(step);
    const band b = band_of(p, unit);
    const tsr_dtype dtype = (tsr_dtype)step->out[0]->dtype;
    char *memory = u->scratch;
    uint32_t n = 0;
    for (uint64_t i = 0; i < b.count; i++) {
        const uint64_t part = part_of(p, &b, i);
        const void *x;
        TSR_TRY(p->parts[part]->decode(p->parts[part], b.row, b.rows, u->in_data + n, memory, kernels, &x, err));
        TSR_TRY(check_powers(p, p->parts[part], &b, x, err));
        if (!p->codes)
            place_plain(p, &b, i, x, tsr_dtype_bytes(dtype), u->out_data[0]);
        else if (!place_codes(p, &b, i, x, dtype, u->out_data[0]))
            return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, step->out[0]->name,
                                   "a value is beyond the range of %s", tsr_dtype_name(dtype));
        memory += part_memory(p, part, b.rows);
        n += p->parts[part]->n_in;
    }
    return TSR_OK;
}

static const tsr_op kStackOp = {.name = "stack", .units = {stack_units, stack_windows, stack_scratch, stack_run}};

tsr_status tsr_plan_stack(tsr_plan *plan, const tsr_decoded *const *parts, bool codes, const tsr_stack_shape *shape,
                          const tsr_tensor *out, tsr_err *err)
{
    const size_t n = shape->experts * shape->projections;
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    const tsr_decoded **const kept = tsr_arena_alloc(&plan->arena, (n + 1) * sizeof *kept);
    uint32_t *const first = tsr_arena_alloc(&plan->arena, (n + 1) * sizeof *first);
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, (n * TSR_DECODED_INPUTS + 1) * sizeof *in);
    uint32_t n_in = 0;
    if (p == NULL || kept == NULL || first == NULL || in == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (size_t i = 0; i < n; i++) {
        kept[i] = parts[i];
        first[i] = n_in;
        for (uint32_t k = 0; k < parts[i]->n_in; k++)
            in[n_in++] = parts[i]->in[k];
    }
    *p = (params){.shape = *shape, .parts = kept, .first = first, .codes = codes};
    const tsr_step step = {.op = &kStackOp, .params = p, .in = in, .n_in = n_in, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
