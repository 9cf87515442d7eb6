/* Writes and reads interleaved weight layouts. A unit is a band of output features: some rows of one part. */
#include "convert/ops/layout_op.h"

#include "common/float_bits.h"
#include "convert/ops/rows/rows.h"
#include "quantize/fp8_decode.h"
#include "quantize/integer_decode.h"

#include <string.h>

/* ---- bands ---- */

/* Returns the number of output features that bands must be a multiple of: whole interleave periods, or whole words of a
 * row-major run. */
static uint64_t grain(const tsr_ft_format *f)
{
    return f->row_major ? 32u / (unsigned)f->bits : (uint64_t)f->columns;
}

/* Returns the features of a band: a multiple of 64 if possible, which suits the vector kernels and is a multiple of
 * every layout's period; otherwise a multiple of grain(). */
static uint64_t band_of(const tsr_ft_format *f, uint64_t k, uint64_t element_bytes)
{
    const uint64_t fit = TSR_UNIT_BYTES / (k * element_bytes);
    return fit >= 64 ? fit / 64 * 64 : tsr_max_u64(fit / grain(f), 1) * grain(f);
}

/* Returns the window of the codes of features [first, first + count) in the layout. */
static tsr_window codes_window(const tsr_ft_format *f, uint64_t k, uint64_t n, uint64_t first, uint64_t count)
{
    const uint64_t bits = (unsigned)f->bits;
    if (f->row_major)
        return (tsr_window){
            .offset = first * bits / 8, .rows = k, .row_bytes = count * bits / 8, .pitch = n * bits / 8};
    return tsr_run_window(first * k * bits / 8, count * k * bits / 8);
}

static bool is_packed(const tsr_layout *l)
{
    return l->parts[0].coding == TSR_CODED_PACKED;
}

tsr_status tsr_layout_check(const tsr_layout *l, const char *name, tsr_err *err)
{
    tsr_err why = {0};
    const char *const advice =
        is_packed(l) ? "quantize the original again with --exclude for it" : "--exclude keeps it as it is";
    if (tsr_ft_format_check(&l->format, (int64_t)l->k, (int64_t)l->n, &why) != TSR_OK)
        return tsr_fail(err, TSR_E_SHAPE, "'%s' [%llu, %llu]: %s; %s", name, U64(l->n), U64(l->k), why.msg, advice);
    for (size_t i = 0; i < l->n_parts; i++) {
        const uint64_t rows = l->parts[i].values->shape[0], step = grain(&l->format);
        if (rows % step != 0)
            return tsr_fail(err, TSR_E_SHAPE,
                            "'%s' has %llu output features, not a multiple of %llu; %llu and %llu would fit; %s",
                            l->parts[i].values->name, U64(rows), U64(step), U64(rows / step * step),
                            U64((rows / step + 1) * step), advice);
    }
    const uint64_t group = l->scheme.group;
    if (group == 0 || l->k % group == 0)
        return TSR_OK;
    uint64_t fits = group;
    while (l->k % fits != 0)
        fits /= 2;
    return tsr_fail(err, TSR_E_SHAPE, "groups of %llu do not divide the %llu input features of '%s': groups of %llu do",
                    U64(group), U64(l->k), name, U64(fits));
}

/* ---- to a layout ---- */

static uint64_t layout_band(const tsr_layout *l)
{
    return band_of(&l->format, l->k, is_packed(l) ? 1 : tsr_dtype_bytes((tsr_dtype)l->parts[0].data->dtype));
}

static uint64_t groups_of(const tsr_layout *l)
{
    return l->scheme.group == 0 ? 1 : l->k / l->scheme.group;
}

/* A unit: rows of one part. */
typedef struct band {
    size_t part;
    uint64_t row, rows;
    uint64_t first; /* index of the output feature in the whole matrix */
} band;

static band band_at(const tsr_layout *l, uint64_t unit)
{
    const uint64_t height = layout_band(l);
    band b = {0};
    for (;; b.part++) {
        const uint64_t rows = l->parts[b.part].values->shape[0], units = tsr_ceil_div(rows, height);
        if (unit < units) {
            b.row = unit * height;
            b.rows = tsr_min_u64(height, rows - b.row);
            b.first += b.row;
            return b;
        }
        unit -= units;
        b.first += rows;
    }
}

static uint64_t layout_units(const tsr_step *step)
{
    const tsr_layout *const l = step->params;
    uint64_t units = 0;
    for (size_t i = 0; i < l->n_parts; i++)
        units += tsr_ceil_div(l->parts[i].values->shape[0], layout_band(l));
    return units;
}

static void layout_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_layout *const l = step->params;
    const band b = band_at(l, unit);
    const tsr_weight *const w = &l->parts[b.part];
    const uint32_t per_part = is_packed(l) ? 2 : 1;
    u->from[0] = (uint32_t)b.part * per_part;
    u->in[0] = tsr_rows_window(w->data, b.row, b.rows);
    if (is_packed(l)) {
        u->from[1] = (uint32_t)b.part * per_part + 1;
        u->in[1] = w->grid_rows == w->rows ? tsr_rows_window(w->scale, b.row, b.rows) : tsr_whole_window(w->scale);
    }
    u->out[0] = codes_window(&l->format, l->k, l->n, b.first, b.rows);
}

/* Scratch of a unit, in this order. */
typedef struct scratch {
    uint64_t quantizing, codes, scales; /* bytes */
} scratch;

static scratch layout_parts(const tsr_layout *l)
{
    return (scratch){.quantizing = tsr_round_up(tsr_int_scratch(&l->scheme, l->k), 64),
                     .codes = tsr_round_up(layout_band(l) * l->k, 64),
                     .scales = layout_band(l) * groups_of(l) * sizeof(float)};
}

static uint64_t layout_scratch(const tsr_step *step)
{
    const scratch s = layout_parts(step->params);
    return s.quantizing + s.codes + s.scales;
}

static tsr_status quantize(const tsr_layout *l, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           int8_t *codes, float *scales, tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_int_rows rows = {.tensor = l->parts[b->part].data,
                               .row = b->row,
                               .rows = b->rows,
                               .x = u->in_data[0],
                               .codes = codes,
                               .scales = scales,
                               .scratch = u->scratch,
                               .notes = u->notes,
                               .rows_before = b->first - b->row};
    tsr_quant_stats cost = {0};
    TSR_TRY(tsr_int_quantize(&l->scheme, kernels, &rows, &cost, err));
    cost.max_error_at += rows.rows_before * l->k; /* rows are numbered through all parts */
    cost.worst_at += rows.rows_before * l->k;
    tsr_quant_stats_add(stats, &cost);
    return TSR_OK;
}

static tsr_status unpack(const tsr_layout *l, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                         int8_t *codes, float *scales, tsr_err *err)
{
    const tsr_weight *const w = &l->parts[b->part];
    const tsr_int_span span = {.weight = w, .row = b->row, .rows = b->rows, .codes = u->in_data[0]};
    const uint64_t n = groups_of(l);
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    tsr_int_unpack(kernels, &span, codes);
    for (uint64_t r = 0; r < b->rows; r++) {
        const uint64_t row = w->grid_rows == w->rows ? r : 0;
        tsr_widen_to_f32(kernels, (tsr_dtype)w->scale_dtype, (const char *)u->in_data[1] + row * n * width, n,
                         scales + r * n);
        TSR_TRY(tsr_check_scales(w, 0, w->grid_rows == w->rows ? b->row + r : 0, 0, scales + r * n, n, err));
    }
    return TSR_OK;
}

static void store(tsr_dtype dtype, float x, void *to, uint64_t at)
{
    if (dtype == TSR_F32)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] = dtype == TSR_BF16 ? tsr_bf16_from_f32(x) : tsr_f16_from_f32(x);
}

static tsr_status check_stored(const tsr_layout *l, const band *b, const float *scales, tsr_err *err)
{
    const uint64_t groups = groups_of(l);
    for (uint64_t i = 0; l->scale_dtype == TSR_F16 && i < b->rows * groups; i++) {
        if (scales[i] >= 65520)
            return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, l->parts[b->part].values->name,
                                   "the scale of output feature %llu is %g, beyond F16: choose --scale-dtype bf16",
                                   U64(b->row + i / groups), (double)scales[i]);
    }
    return TSR_OK;
}

static tsr_status layout_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_layout *const l = step->params;
    const scratch s = layout_parts(l);
    const band b = band_at(l, unit);
    int8_t *const codes = (int8_t *)u->scratch + s.quantizing;
    float *const scales = (float *)((char *)u->scratch + s.quantizing + s.codes);
    TSR_TRY(is_packed(l) ? unpack(l, &b, u, kernels, codes, scales, err)
                         : quantize(l, &b, u, kernels, codes, scales, stats, err));
    TSR_TRY(check_stored(l, &b, scales, err));
    const tsr_interleave_args args = {.format = &l->format, .k = l->k, .n = b.rows, .order = TSR_CODES_NK, .ld = l->k};
    kernels->interleave(&args, (const uint8_t *)codes, u->out_data[0]);
    const uint64_t groups = groups_of(l);
    for (uint64_t g = 0; g < groups; g++) {
        for (uint64_t r = 0; r < b.rows; r++)
            store(l->scale_dtype, scales[r * groups + g], u->out_data[1], g * l->n + b.first + r);
    }
    return TSR_OK;
}

static void layout_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    const tsr_layout *const l = step->params;
    *map = (tsr_block_map){.shape = {1, l->n, l->k}, .block = {1, 1, l->scheme.group == 0 ? l->k : l->scheme.group}};
    *bins = l->scheme.bits == 8 ? TSR_BINS_INT8 : TSR_BINS_INT4;
}

/* Weights that were packed already have no statistics. */
static const tsr_op kLayOp = {.name = "lay out packed integers",
                              .units = {layout_units, layout_windows, layout_scratch, layout_run}};

static const tsr_op kQuantizeOp = {.name = "quantize and lay out",
                                   .units = {layout_units, layout_windows, layout_scratch, layout_run},
                                   .stats_of = TSR_STATS_SOURCE,
                                   .blocks = layout_blocks};

tsr_status tsr_plan_layout(tsr_plan *plan, const tsr_layout *layout, const tsr_layout_tensors *to,
                           const tsr_tensor *reported, tsr_err *err)
{
    const tsr_tensor *in[2 * TSR_LAYOUT_PARTS];
    uint32_t n_in = 0;
    tsr_layout *const copy = tsr_arena_alloc(&plan->arena, sizeof *copy);
    if (copy == NULL)
        return tsr_out_of_memory(err, "while planning");
    *copy = *layout;
    for (size_t i = 0; i < layout->n_parts; i++) {
        const tsr_weight *const w = &layout->parts[i];
        tsr_tensor *const values = tsr_plan_tensor(plan, w->values);
        if (values == NULL)
            return tsr_out_of_memory(err, "while planning");
        copy->parts[i].values = values; /* the caller's weights no longer exist when the plan runs */
        in[n_in++] = w->data;
        if (is_packed(layout))
            in[n_in++] = w->scale;
    }
    to->codes->bytes = layout->k * layout->n * (unsigned)layout->format.bits / 8;
    tsr_tensor *const small[] = {to->scales, to->zeros};
    const bool channel = layout->scheme.group == 0;
    for (size_t i = 0; i < 2 && small[i] != NULL; i++) {
        small[i]->dtype = (uint8_t)layout->scale_dtype;
        small[i]->rank = channel ? 1 : 2;
        small[i]->shape[0] = channel ? layout->n : groups_of(layout);
        small[i]->shape[1] = channel ? 0 : layout->n;
        small[i]->bytes = groups_of(layout) * layout->n * tsr_dtype_bytes(layout->scale_dtype);
    }
    const tsr_step step = {.op = is_packed(layout) ? &kLayOp : &kQuantizeOp,
                           .params = copy,
                           .in = in,
                           .n_in = n_in,
                           .out = {to->codes, to->scales, to->zeros},
                           .n_out = to->zeros == NULL ? 2 : 3,
                           .buffered = 6,
                           .reported = reported};
    return tsr_plan_step(plan, &step, err);
}

/* ---- from a layout ---- */

static uint64_t unlayout_band(const tsr_unlayout *x)
{
    return band_of(&x->format, x->k, 1);
}

static uint64_t unlayout_rows(const tsr_unlayout *x, uint64_t unit)
{
    return tsr_min_u64(unlayout_band(x), x->columns - unit * unlayout_band(x));
}

static uint64_t unlayout_groups(const tsr_unlayout *x)
{
    return x->group == 0 ? 1 : x->k / x->group;
}

static uint64_t unlayout_units(const tsr_step *step)
{
    const tsr_unlayout *const x = step->params;
    return tsr_ceil_div(x->columns, unlayout_band(x));
}

static void unlayout_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_unlayout *const x = step->params;
    const uint64_t row = unit * unlayout_band(x), rows = unlayout_rows(x, unit), groups = unlayout_groups(x);
    const uint64_t width = tsr_dtype_bytes((tsr_dtype)x->scales.dtype), first = x->first + row;
    u->in[0] = codes_window(&x->format, x->k, x->n, first, rows);
    u->in[1] = (tsr_window){.offset = first * width, .rows = groups, .row_bytes = rows * width, .pitch = x->n * width};
    u->out[0] = tsr_rows_window(step->out[0], row, rows);
    u->out[1] = tsr_rows_window(step->out[1], row, rows);
}

static uint64_t unlayout_scratch(const tsr_step *step)
{
    const tsr_unlayout *const x = step->params;
    return unlayout_band(x) * x->k;
}

static bool all_zero(const void *data, uint64_t bytes)
{
    const char *const p = data;
    return bytes == 0 || (p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0);
}

static tsr_status unlayout_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                               tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats, (void)err;
    const tsr_unlayout *const x = step->params;
    const uint64_t rows = unlayout_rows(x, unit), groups = unlayout_groups(x);
    const size_t width = tsr_dtype_bytes((tsr_dtype)x->scales.dtype);
    int8_t *const codes = u->scratch;
    const tsr_interleave_args args = {.format = &x->format, .k = x->k, .n = rows, .order = TSR_CODES_NK, .ld = x->k};
    kernels->deinterleave(&args, u->in_data[0], (uint8_t *)codes);
    tsr_int_pack(kernels, (unsigned)x->format.bits, codes, rows * x->k, u->out_data[0]);
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t g = 0; g < groups; g++) {
            const char *const scale = (const char *)u->in_data[1] + (g * rows + r) * width;
            const uint64_t n = x->k / groups;
            if (all_zero(scale, width) && all_zero(codes + r * x->k + g * n, n))
                store((tsr_dtype)x->scales.dtype, 1, u->out_data[1], r * groups + g);
            else
                memcpy((char *)u->out_data[1] + (r * groups + g) * width, scale, width);
        }
    }
    if (unit == 0) {
        const int64_t shape[2] = {(int64_t)x->columns, (int64_t)x->k};
        memcpy(u->out_data[2], shape, sizeof shape);
    }
    return TSR_OK;
}

static const tsr_op kUnlayOp = {.name = "take out of the layout",
                                .units = {unlayout_units, unlayout_windows, unlayout_scratch, unlayout_run}};

static tsr_tensor *new_member(tsr_plan *plan, const char *weight, const char *ending, tsr_dtype dtype, unsigned rank,
                              uint64_t a, uint64_t b)
{
    const char *const name = tsr_arena_printf(&plan->arena, "%s%s", weight, ending);
    return tsr_plan_new_tensor(plan, name, dtype, rank, (const uint64_t[]){a, b});
}

tsr_status tsr_plan_unlayout(tsr_plan *plan, const tsr_unlayout *from, tsr_err *err)
{
    tsr_unlayout *const x = tsr_arena_alloc(&plan->arena, sizeof *x);
    if (x == NULL)
        return tsr_out_of_memory(err, "while planning");
    *x = *from;
    tsr_step step = {.op = &kUnlayOp, .params = x, .n_in = 2, .n_out = 3, .buffered = 4};
    const tsr_tensor *const in[] = {&x->codes, &x->scales};
    step.in = in;
    step.out[0] = new_member(plan, x->name, "_packed", TSR_I32, 2, x->columns, x->k * (unsigned)x->format.bits / 32);
    step.out[1] = new_member(plan, x->name, "_scale", (tsr_dtype)x->scales.dtype, 2, x->columns, unlayout_groups(x));
    step.out[2] = new_member(plan, x->name, "_shape", TSR_I64, 1, 2, 0);
    if (step.out[0] == NULL || step.out[1] == NULL || step.out[2] == NULL)
        return tsr_out_of_memory(err, "while planning");
    return tsr_plan_step(plan, &step, err);
}
