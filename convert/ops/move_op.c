/* Units of rows whose codes are moved: one run for each relation, in a table. */
#include "convert/ops/move_op.h"

#include "common/float_bits.h"
#include "convert/ops/row_decoder.h"
#include "convert/ops/rows.h"
#include "quantize/fp8_block.h"
#include "quantize/mx_decode.h"
#include "quantize/mx_moves.h"

#include <math.h>
#include <string.h>

typedef struct params {
    tsr_weight weight;
    tsr_row_view view;
    tsr_move move;
    tsr_tensor scales_of;   /* weight.scale with the dtype by which its bytes read */
    const tsr_tensor *made; /* the step's input by its name and shape, which no file holds: for reports */
    uint64_t matrix_rows;   /* of a matrix of the view */
} params;

/* ---- where a unit lies ---- */

typedef struct band {
    uint64_t row, rows; /* of the view */
} band;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

/* Whole blocks of a source that has any, so that no unit reads more of its scales than the first. */
static uint64_t rows_per_unit(const params *p)
{
    const uint64_t step = p->weight.kind->family == TSR_FAMILY_FP8 ? p->weight.block.rows : 1;
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, p->weight.cols) / step * step;
    return p->move.to == TSR_MOVE_FP8_BLOCK ? p->move.block.rows : tsr_min_u64(tsr_max_u64(step, fit), p->matrix_rows);
}

static uint64_t units_per_matrix(const params *p)
{
    return tsr_ceil_div(p->matrix_rows, rows_per_unit(p));
}

static uint64_t move_units(const tsr_step *step)
{
    const params *const p = params_of(step);
    return p->view.rows / p->matrix_rows * units_per_matrix(p);
}

static band band_of(const params *p, uint64_t unit)
{
    const uint64_t units = units_per_matrix(p), row = unit % units * rows_per_unit(p);
    return (band){.row = unit / units * p->matrix_rows + row,
                  .rows = tsr_min_u64(rows_per_unit(p), p->matrix_rows - row)};
}

static bool is_fp8(const tsr_weight *w)
{
    return w->kind->family == TSR_FAMILY_FP8;
}

/* Whether the scale of the layer's input is NVFP4's global one, as the weight's. */
static bool has_input(const tsr_weight *w)
{
    return w->global_scale != NULL && w->input_scale != NULL;
}

static void move_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = params_of(step);
    const band b = band_of(p, unit);
    tsr_row_decoder_of(&p->weight)->windows(&p->view, b.row, b.rows, u->in);
    if (step->n_out > 3 && has_input(&p->weight) && unit == 0)
        u->in[3] = tsr_run_window(0, sizeof(float));
    const uint64_t row_bytes = step->out[0]->bytes / p->view.rows;
    u->out[0] = tsr_run_window(b.row * row_bytes, b.rows * row_bytes);
}

/* ---- what may not be moved ---- */

static tsr_status check_bytes(const tsr_tensor *t, const uint8_t *bytes, uint64_t n, uint8_t mask, uint8_t most,
                              const char *what, tsr_err *err)
{
    uint8_t largest = 0;
    for (uint64_t i = 0; i < n; i++)
        largest = tsr_max_u64(bytes[i] & mask, largest) == largest ? largest : bytes[i] & mask;
    return largest <= most
               ? TSR_OK
               : tsr_fail(err, TSR_E_VALUE,
                          "'%s': a %s is NaN or negative (0x%02X): no weight comes of it; the checkpoint is "
                          "damaged",
                          t->name, what, largest);
}

static tsr_status take_e4m3(const params *p, const tsr_unit *u, tsr_err *err)
{
    const uint64_t n = tsr_window_bytes(&u->in[0]);
    memcpy(u->out_data[0], u->in_data[0], n);
    return check_bytes(p->weight.data, u->in_data[0], n, 0x7F, 0x7E, "code", err);
}

/* Scales a byte each, and where they are kept: of E8M0 and E4M3. */
static tsr_status take_scales(const params *p, const band *b, const tsr_unit *u, tsr_err *err)
{
    const uint64_t groups = p->weight.grid_cols, n = b->rows * groups;
    memcpy((char *)u->out_data[1] + b->row * groups, u->in_data[1], n);
    return check_bytes(p->weight.scale, u->in_data[1], n, 0xFF, p->weight.scale_dtype == TSR_F8_E8M0 ? 254 : 0x7E,
                       "scale", err);
}

/* ---- the relations ---- */

typedef tsr_status move_fn(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err);

static tsr_status same_mxfp4(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    (void)kernels, (void)stats;
    memcpy(u->out_data[0], u->in_data[0], tsr_window_bytes(&u->in[0]));
    return take_scales(params_of(step), b, u, err);
}

static tsr_status same_mxfp8(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    (void)kernels, (void)stats;
    TSR_TRY(take_e4m3(params_of(step), u, err));
    return take_scales(params_of(step), b, u, err);
}

/* A global scale, the layer's input's too, as the target has it. */
static tsr_status take_global(const params *p, const tsr_tensor *t, const void *from, void *to, tsr_err *err)
{
    float global, other;
    bool exact;
    memcpy(&global, from, sizeof global);
    TSR_TRY(tsr_nvfp4_other_global(t, global, &other, &exact, err));
    memcpy(to, p->weight.global_divides == p->move.global_divides ? &global : &other, sizeof global);
    return TSR_OK;
}

/* The source's own, where it has one. */
static tsr_status take_input(const tsr_step *step, const params *p, const tsr_unit *u, tsr_err *err)
{
    if (step->n_out > 3 && step->n_in > 3 && has_input(&p->weight))
        return take_global(p, p->weight.input_scale, u->in_data[3], u->out_data[3], err);
    if (step->n_out > 3)
        memcpy(u->out_data[3], &p->move.input, sizeof p->move.input);
    return TSR_OK;
}

static tsr_status same_nvfp4(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    TSR_TRY(same_mxfp4(step, b, u, kernels, stats, err));
    if (b->row != 0)
        return TSR_OK;
    TSR_TRY(take_global(p, p->weight.global_scale, u->in_data[2], u->out_data[2], err));
    return take_input(step, p, u, err);
}

static tsr_mxfp4_rows mxfp4_of(const params *p, const band *b, const tsr_unit *u)
{
    return (tsr_mxfp4_rows){.tensor = p->weight.data,
                            .row = p->view.first + b->row * p->view.step,
                            .rows = b->rows,
                            .cols = p->weight.cols,
                            .codes = u->in_data[0],
                            .scales = u->in_data[1],
                            .lossy = p->move.lossy};
}

/* What MXFP4's rows stand for, to the front of the scratch. */
static tsr_status decode(const params *p, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                         tsr_err *err)
{
    const tsr_coded_rows rows = {.view = &p->view, .row = b->row, .rows = b->rows, .in = u->in_data};
    float *const x = u->scratch;
    return tsr_row_decoder_of(&p->weight)->decode(&rows, kernels, TSR_F32, x, x + b->rows * p->weight.cols, err);
}

static tsr_status mxfp4_to_fp8(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                               tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    const tsr_mxfp4_rows rows = mxfp4_of(p, b, u);
    const uint64_t tiles = tsr_ceil_div(rows.cols, p->move.block.cols);
    const uint64_t bands = tsr_ceil_div(p->matrix_rows, p->move.block.rows);
    const uint64_t at = b->row / p->matrix_rows * bands + b->row % p->matrix_rows / p->move.block.rows;
    float *const scales = (float *)u->out_data[1] + at * tiles;
    uint8_t *const bytes = (uint8_t *)u->scratch;
    TSR_TRY(tsr_mxfp4_to_fp8(&rows, p->move.block.cols, u->out_data[0], bytes, err));
    for (uint64_t i = 0; i < tiles; i++)
        scales[i] = tsr_f32_from_e8m0(bytes[i]);
    if (!p->move.lossy)
        return TSR_OK;
    TSR_TRY(decode(p, b, u, kernels, err));
    const tsr_fp8_block blocks = {.block_rows = (uint32_t)p->move.block.rows,
                                  .block_cols = (uint32_t)p->move.block.cols};
    const tsr_fp8_band made = {.tensor = p->made,
                               .first = b->row * rows.cols,
                               .x = u->scratch,
                               .rows = b->rows,
                               .cols = rows.cols,
                               .ld = rows.cols,
                               .codes = u->out_data[0],
                               .ld_codes = rows.cols,
                               .scales = scales};
    return tsr_fp8_block_measure(&blocks, kernels, &made, stats, err);
}

/* Adds a group of NVFP4, which begins at element `at`, to the statistics. */
static void add_group(tsr_quant_stats *stats, const float *x, const float *y, uint64_t n, uint64_t at)
{
    tsr_quant_stats cost = {.elements = n, .blocks = 1, .worst_at = at};
    for (uint64_t i = 0; i < n; i++) {
        const double a = (double)x[i], d = a - (double)y[i];
        cost.nonzero += x[i] != 0;
        cost.flushed += x[i] != 0 && y[i] == 0;
        cost.sum_x2 += a * a;
        cost.sum_d2 += d * d;
        cost.sum_xy += a * (double)y[i];
        cost.sum_y2 += (double)y[i] * (double)y[i];
        cost.amax = fmax(cost.amax, fabs(a));
        if (fabs(d) > cost.max_error) {
            cost.max_error = fabs(d);
            cost.max_error_at = at + i;
        }
    }
    cost.zero_blocks = cost.nonzero == 0;
    cost.worst_mse = cost.sum_d2 / (double)n;
    cost.sum_rms = sqrt(cost.sum_x2 / (double)n);
    tsr_quant_stats_add(stats, &cost);
}

/* What the new codes cost, against the old ones' values in the scratch: row by row. */
static tsr_status measure_nvfp4(const tsr_step *step, const band *b, const tsr_unit *u, float global,
                                const tsr_cpu_kernels *kernels, tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    const uint64_t cols = p->weight.cols;
    float *const x = u->scratch, *const y = x + b->rows * cols;
    TSR_TRY(decode(p, b, u, kernels, err));
    for (uint64_t r = 0; r < b->rows; r++) {
        const tsr_mx_span span = {.codes_of = step->out[0],
                                  .scales_of = step->out[1],
                                  .row = b->row + r,
                                  .rows = 1,
                                  .cols = cols,
                                  .group = 16,
                                  .element = TSR_MX_E2M1,
                                  .scale = TSR_MX_E4M3_TIMES,
                                  .global = global,
                                  .codes = (const uint8_t *)u->out_data[0] + r * (cols / 2),
                                  .scales = (const uint8_t *)u->out_data[1] + (b->row + r) * (cols / 16)};
        TSR_TRY(tsr_mx_decode(kernels, &span, TSR_F32, y, y + cols, err));
        for (uint64_t c = 0; c < cols; c += 16)
            add_group(stats, x + r * cols + c, y + c, 16, (b->row + r) * cols + c);
    }
    return TSR_OK;
}

static tsr_status mxfp4_to_nvfp4(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                                 tsr_quant_stats *stats, tsr_err *err)
{
    enum { LEAST = 9 }; /* below it the global scale would be subnormal; all scales fit beside this one */
    const params *const p = params_of(step);
    const tsr_mxfp4_rows rows = mxfp4_of(p, b, u);
    tsr_mxfp4_range range = {.any = true};
    int exponent;
    float global;
    (void)frexpf(u->amax, &exponent); /* 2^(exponent - 1) */
    range.largest = (uint8_t)(u->amax == 0 || exponent - 1 + 127 < LEAST ? LEAST : exponent - 1 + 127);
    range.least = range.largest;
    TSR_TRY(tsr_mxfp4_global(p->weight.data, &range, &global, err));
    memcpy(u->out_data[0], u->in_data[0], tsr_window_bytes(&u->in[0]));
    TSR_TRY(tsr_mxfp4_to_nvfp4(&rows, &range, (uint8_t *)u->out_data[1] + b->row * (rows.cols / 16), err));
    if (b->row == 0) {
        const float stored = p->move.global_divides ? 1 / global : global;
        memcpy(u->out_data[2], &stored, sizeof stored);
        TSR_TRY(take_input(step, p, u, err));
    }
    if (!p->move.lossy)
        return TSR_OK;
    (void)tsr_mxfp4_shrink(&rows, &range, u->out_data[0]);
    return measure_nvfp4(step, b, u, global, kernels, stats, err);
}

/* The first row of the stored grid that the band reads is that of its first row. */
static tsr_status fp8_to_mxfp8(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                               tsr_quant_stats *stats, tsr_err *err)
{
    (void)kernels, (void)stats;
    const params *const p = params_of(step);
    const tsr_fp8_rect rect = tsr_view_rect(&p->view, b->row, b->rows);
    const tsr_fp8_grid grid = {.scales_of = &p->scales_of,
                               .scales = u->in_data[1],
                               .grid_cols = p->weight.grid_cols,
                               .block = p->weight.block,
                               .cols = p->weight.cols};
    TSR_TRY(take_e4m3(p, u, err));
    return tsr_fp8_to_mxfp8(&grid, rect.row % p->weight.block.rows, b->rows,
                            (uint8_t *)u->out_data[1] + b->row * (p->weight.cols / 32), err);
}

static tsr_status same_fp8(const tsr_step *step, const band *b, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const params *const p = params_of(step);
    const tsr_weight *const w = &p->weight;
    const tsr_fp8_rect rect = tsr_view_rect(&p->view, b->row, b->rows);
    const uint64_t cols = tsr_ceil_div(w->cols, w->block.cols), bands = tsr_ceil_div(p->matrix_rows, w->block.rows);
    const uint64_t at = b->row / p->matrix_rows * bands + b->row % p->matrix_rows / w->block.rows;
    float *const scales = (float *)u->out_data[1] + at * cols;
    tsr_widen_to_f32(kernels, (tsr_dtype)w->scale_dtype, u->in_data[1], cols, scales);
    TSR_TRY(tsr_check_scales(w, rect.matrix, rect.row / w->block.rows, 0, scales, cols, err));
    return take_e4m3(p, u, err);
}

/* ---- which relation it is ---- */

static bool is_mxfp4(const tsr_weight *w)
{
    return w->coding == TSR_CODED_E2M1 && w->scale_dtype == TSR_F8_E8M0 && w->block.cols == 32;
}

static bool is_nvfp4(const tsr_weight *w)
{
    return w->coding == TSR_CODED_E2M1 && w->global_scale != NULL && w->block.cols == 16;
}

static bool is_mxfp8(const tsr_weight *w)
{
    return w->coding == TSR_CODED_E4M3 && w->kind->family == TSR_FAMILY_MX && w->block.cols == 32;
}

static bool same_blocks(const tsr_weight *w, const tsr_move *m)
{
    return w->block.rows == m->block.rows && w->block.cols == m->block.cols;
}

static move_fn *relation(const tsr_weight *w, const tsr_move *m, bool ue8m0, const char **reason)
{
    const bool powers = w->scale_dtype == TSR_F8_E8M0 || ue8m0;
    const bool tiles = m->block.rows % 32 == 0 && m->block.cols % 32 == 0;
    const bool fp8 = is_fp8(w) && !w->coarse && w->part == NULL;
    const bool groups = fp8 && w->cols % 32 == 0 && w->block.cols % 32 == 0;
    const struct {
        bool holds;
        move_fn *run;
        const char *reason;
    } relations[] = {
        {is_mxfp4(w) && m->to == TSR_MOVE_MXFP4, same_mxfp4, "the same codes and scales"},
        {is_mxfp4(w) && m->to == TSR_MOVE_NVFP4, mxfp4_to_nvfp4, "the same codes; scales beside a global one"},
        {is_mxfp4(w) && m->to == TSR_MOVE_FP8_BLOCK && tiles, mxfp4_to_fp8, "the same values as e4m3"},
        {is_nvfp4(w) && m->to == TSR_MOVE_NVFP4, same_nvfp4, "the same codes and scales"},
        {is_mxfp8(w) && m->to == TSR_MOVE_MXFP8, same_mxfp8, "the same codes and scales"},
        {groups && powers && m->to == TSR_MOVE_MXFP8, fp8_to_mxfp8, "the same codes; a block's scale for its groups"},
        {fp8 && m->to == TSR_MOVE_FP8_BLOCK && same_blocks(w, m) && (powers || !m->powers), same_fp8,
         "the same codes, scales as FP32"},
    };
    for (size_t i = 0; i < sizeof relations / sizeof *relations; i++) {
        if (!relations[i].holds)
            continue;
        *reason = relations[i].reason;
        return relations[i].run;
    }
    return NULL;
}

const char *tsr_move_reason(const tsr_weight *weight, const tsr_move *move, bool ue8m0)
{
    const char *reason = NULL;
    (void)relation(weight, move, ue8m0, &reason);
    return reason;
}

bool tsr_move_needs_largest(const tsr_weight *weight, const tsr_move *move)
{
    return is_mxfp4(weight) && move->to == TSR_MOVE_NVFP4;
}

/* ---- the step ---- */

static tsr_status move_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    const char *reason;
    const band b = band_of(p, unit);
    return relation(&p->weight, &p->move, true, &reason)(step, &b, u, kernels, stats, err);
}

/* Of FP8: a byte for each tile's scale; where rounding is measured, what decoding a unit takes. */
static uint64_t move_scratch(const tsr_step *step)
{
    const params *const p = params_of(step);
    const uint64_t rows = rows_per_unit(p), cols = p->weight.cols;
    const uint64_t measuring = (rows + 1) * cols * sizeof(float) + tsr_mx_decode_scratch(cols);
    return p->move.lossy ? measuring : cols;
}

#define MOVE_OP \
    .name = "move codes", .units = move_units, .windows = move_windows, .scratch_bytes = move_scratch, .run = move_run

static const tsr_op kMoveOp = {MOVE_OP};
static const tsr_op kMoveOrRoundOp = {MOVE_OP, .stats_of = TSR_STATS_SOURCE};

tsr_status tsr_step_move(tsr_plan *plan, tsr_step *step, const tsr_row_view *view, const tsr_move *move, tsr_err *err)
{
    const tsr_weight *const w = view->weight;
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, 4 * sizeof *in);
    if (p == NULL || in == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (params){.weight = *w, .view = *view, .move = *move, .scales_of = *w->scale, .made = step->in[0]};
    p->view.weight = &p->weight;
    p->scales_of.dtype = w->scale_dtype;
    p->matrix_rows = view->rows == w->matrices * w->rows ? w->rows : view->rows;
    in[0] = w->data;
    in[1] = w->scale;
    in[2] = w->global_scale == NULL ? w->scale : w->global_scale;
    in[3] = w->input_scale;
    step->reported = step->in[0];
    step->in = in;
    step->n_in = w->global_scale == NULL ? 2 : step->n_out > 3 && has_input(w) ? 4 : 3;
    step->params = p;
    step->op = is_mxfp4(w) && move->lossy && move->to != TSR_MOVE_MXFP4 ? &kMoveOrRoundOp : &kMoveOp;
    return TSR_OK;
}
