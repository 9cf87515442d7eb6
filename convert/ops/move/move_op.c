/* Moves codes in units of rows: selects the relation between the formats and locates the unit. */
#include "convert/ops/move/move_op.h"

#include "common/checked.h"
#include "convert/ops/move/move_op_relations.h"
#include "convert/ops/rows/rows.h"
#include "quantize/mx_weight.h"

/* ---- selecting the relation ---- */

static bool is_fp8(const tsr_weight *w)
{
    return w->kind->family == TSR_FAMILY_FP8;
}

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

/* ---- integers ---- */

static bool to_integers(const tsr_move *m)
{
    return m->to == TSR_MOVE_PACKED || m->to == TSR_MOVE_NIBBLES;
}

/* Returns true if the codes have the kind and the width of the target. */
static bool is_packed(const tsr_weight *w, const tsr_move *m)
{
    return to_integers(m) && w->bits == m->bits &&
           (w->kind->family == TSR_FAMILY_GPTQ || w->coding == TSR_CODED_PACKED || w->coding == TSR_CODED_NIBBLES);
}

/* Returns true if all zero points are 0, as readers of two's complement codes require. */
static bool is_symmetric(const tsr_weight *w, const tsr_move *m)
{
    return w->coding == TSR_CODED_NIBBLES || (w->coding == TSR_CODED_PACKED ? w->zero_point == NULL : m->middle);
}

static uint64_t group_of(const tsr_weight *w)
{
    return w->block.cols == w->cols ? 0 : w->block.cols;
}

/* Returns the name of a storage form that the target cannot hold, or NULL. */
static const char *odd_storage(const tsr_weight *w)
{
    if (w->grid_rows != w->rows)
        return "it has one scale for all rows";
    if (w->cols % w->block.cols != 0 || w->cols % (32u / w->bits) != 0)
        return "its last group or last word is not full";
    if (w->kind->family == TSR_FAMILY_GPTQ && (w->rows % 8 != 0 || tsr_dtype_bytes((tsr_dtype)w->scale_dtype) != 2))
        return "its rows are not a multiple of 8, or its scales are not 16-bit";
    if (w->reordered && w->group_index->dtype != TSR_I32)
        return "its g_idx is not I32";
    return NULL;
}

/* Returns the reason why codes in the groups of the target cannot become int4 of SGLang, or NULL. */
static const char *obstacle_to_nibbles(const tsr_weight *w, const tsr_move *m)
{
    if (w->coding != TSR_CODED_PACKED || w->reordered)
        return "they are not packed along consecutive inputs";
    if (!is_symmetric(w, m))
        return "it has zero points, which w4afp8 of SGLang cannot store";
    return w->scale_dtype == TSR_BF16 ? NULL : "its scales are not BF16, to which SGLang rounds them";
}

const char *tsr_move_obstacle(const tsr_weight *w, const tsr_move *m)
{
    if (!is_packed(w, m) || odd_storage(w) != NULL)
        return is_packed(w, m) ? odd_storage(w) : NULL;
    if (group_of(w) != (m->group == w->cols ? 0 : m->group))
        return "its groups differ from those of the target (--group-size)";
    if (m->to == TSR_MOVE_NIBBLES)
        return obstacle_to_nibbles(w, m);
    if (is_symmetric(w, m) || m->zero_points)
        return NULL;
    return w->bits == 4 ? "it has zero points, which --zero-points keeps"
                        : "it has zero points, which int8-weight-only cannot store";
}

uint64_t tsr_move_group(const tsr_weight *w, const tsr_move *m)
{
    return is_packed(w, m) ? group_of(w) : UINT64_MAX;
}

/* ---- the table ---- */

/* NULL: none holds. */
static tsr_relation *relation_of(const tsr_weight *w, const tsr_move *m, bool all_powers, const char **reason)
{
    const bool powers = w->scale_dtype == TSR_F8_E8M0 || all_powers;
    const bool tiles = m->block.rows % 32 == 0 && m->block.cols % 32 == 0;
    const bool fp8 = is_fp8(w) && !w->coarse && w->part == NULL;
    const bool packed = is_packed(w, m) && tsr_move_obstacle(w, m) == NULL;
    const bool groups = fp8 && w->cols % 32 == 0 && w->block.cols % 32 == 0;
    const struct {
        bool holds;
        tsr_relation *run;
        const char *reason;
    } relations[] = {
        {is_mxfp4(w) && m->to == TSR_MOVE_MXFP4, tsr_move_mxfp4, "the same codes and scales"},
        {is_mxfp4(w) && m->to == TSR_MOVE_NVFP4, tsr_move_mxfp4_to_nvfp4, "the same codes; scales with a global scale"},
        {is_mxfp4(w) && m->to == TSR_MOVE_FP8_BLOCK && tiles, tsr_move_mxfp4_to_fp8, "the same values as e4m3"},
        {is_nvfp4(w) && m->to == TSR_MOVE_NVFP4, tsr_move_nvfp4, "the same codes and scales"},
        {is_mxfp8(w) && m->to == TSR_MOVE_MXFP8, tsr_move_mxfp8, "the same codes and scales"},
        {groups && powers && m->to == TSR_MOVE_MXFP8, tsr_move_fp8_to_mxfp8,
         "the same codes; the scale of a block for each of its groups"},
        {fp8 && m->to == TSR_MOVE_FP8_BLOCK && same_blocks(w, m) && (powers || !m->powers), tsr_move_fp8,
         "the same codes, scales as FP32"},
        {packed && m->to == TSR_MOVE_NIBBLES, tsr_move_nibbles, "the same codes and scales, two codes per byte"},
        {packed && (w->coding == TSR_CODED_PACKED || w->coding == TSR_CODED_NIBBLES), tsr_move_packed,
         "the same codes and scales"},
        {packed && w->coding == TSR_CODED_AWQ, tsr_move_awq,
         "the same codes, scales and zero points, along the inputs"},
        {packed && w->coding == TSR_CODED_GPTQ, tsr_move_gptq, "the same codes, scales and zero points, transposed"},
    };
    for (size_t i = 0; i < sizeof relations / sizeof *relations; i++) {
        if (!relations[i].holds)
            continue;
        *reason = relations[i].reason;
        return relations[i].run;
    }
    return NULL;
}

const char *tsr_move_reason(const tsr_weight *weight, const tsr_move *move, bool powers)
{
    const char *reason = NULL;
    (void)relation_of(weight, move, powers, &reason);
    return reason;
}

bool tsr_move_needs_largest(const tsr_weight *weight, const tsr_move *move)
{
    return is_mxfp4(weight) && move->to == TSR_MOVE_NVFP4;
}

/* ---- where a unit lies ---- */

static const tsr_move_params *params_of(const tsr_step *step)
{
    return step->params;
}

/* Whole blocks if the source has blocks, so that no unit reads more scales than the first. */
static uint64_t rows_per_unit(const tsr_move_params *p)
{
    const uint64_t step = is_fp8(&p->weight) ? p->weight.block.rows : p->decoder->begin;
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, p->weight.cols) / step * step;
    return p->move.to == TSR_MOVE_FP8_BLOCK ? p->move.block.rows : tsr_min_u64(tsr_max_u64(step, fit), p->matrix_rows);
}

static uint64_t units_per_matrix(const tsr_move_params *p)
{
    return tsr_ceil_div(p->matrix_rows, rows_per_unit(p));
}

static uint64_t move_units(const tsr_step *step)
{
    const tsr_move_params *const p = params_of(step);
    return p->view.rows / p->matrix_rows * units_per_matrix(p);
}

static tsr_moving moving_of(const tsr_step *step, uint64_t unit)
{
    const tsr_move_params *const p = params_of(step);
    const uint64_t units = units_per_matrix(p), row = unit % units * rows_per_unit(p);
    return (tsr_moving){.p = p,
                        .step = step,
                        .row = unit / units * p->matrix_rows + row,
                        .rows = tsr_min_u64(rows_per_unit(p), p->matrix_rows - row)};
}

static void move_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_move_params *const p = params_of(step);
    const tsr_moving m = moving_of(step, unit);
    const uint64_t row_bytes = step->out[0]->bytes / p->view.rows;
    p->decoder->windows(&p->view, m.row, m.rows, u->in);
    if (step->n_out > 3 && p->move.input < 0 && unit == 0)
        u->in[3] = tsr_run_window(0, sizeof(float));
    u->out[0] = tsr_run_window(m.row * row_bytes, m.rows * row_bytes);
}

/* ---- the step ---- */

static tsr_status move_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    tsr_moving m = moving_of(step, unit);
    m.u = u;
    m.kernels = kernels;
    m.stats = stats;
    return m.p->relation(&m, err);
}

/* Returns the scratch of a unit. FP8: a byte for each tile's scale. Integers: zero points that are only checked. With
 * --lossy: the buffers for decoding a unit and measuring a row. */
static uint64_t move_scratch(const tsr_step *step)
{
    const tsr_move_params *const p = params_of(step);
    const uint64_t rows = rows_per_unit(p), cols = p->weight.cols;
    if (to_integers(&p->move))
        return tsr_ceil_div(rows, 32 / p->weight.bits) * p->weight.grid_cols * sizeof(uint32_t);
    const tsr_mx_scheme nvfp4 = tsr_mx_scheme_of(TSR_NVFP4, true);
    const uint64_t rest = tsr_max_u64(p->decoder->scratch(&p->weight), tsr_mx_scratch(&nvfp4, cols));
    return p->move.lossy ? tsr_round_up(rows * cols * sizeof(float), 64) + rest : cols;
}

#define MOVE_OP .name = "move codes", .units = {move_units, move_windows, move_scratch, move_run}

static const tsr_op kMoveOp = {MOVE_OP};
/* Errors are measured for block FP8 and NVFP4. Other moves are exact, and their map stays empty. */
static void move_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    const tsr_move_params *const p = params_of(step);
    const bool fp8 = p->move.to == TSR_MOVE_FP8_BLOCK;
    if (!fp8 && p->move.to != TSR_MOVE_NVFP4)
        return;
    *map = (tsr_block_map){.shape = {p->view.rows / p->matrix_rows, p->matrix_rows, p->weight.cols},
                           .block = {1, fp8 ? p->move.block.rows : 1, fp8 ? p->move.block.cols : 16}};
    *bins = fp8 ? TSR_BINS_E4M3 : TSR_BINS_E2M1;
}

static const tsr_op kMoveOrRoundOp = {MOVE_OP, .stats_of = TSR_STATS_SOURCE, .blocks = move_blocks};

tsr_status tsr_step_move(tsr_plan *plan, tsr_step *step, const tsr_row_view *view, const tsr_move *move, bool powers,
                         tsr_err *err)
{
    const tsr_weight *const w = view->weight;
    const char *reason;
    tsr_move_params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, TSR_DECODED_INPUTS * sizeof *in);
    if (p == NULL || in == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (tsr_move_params){.weight = *w,
                           .view = *view,
                           .move = *move,
                           .relation = relation_of(w, move, powers, &reason),
                           .decoder = tsr_row_decoder_of(w),
                           .made = step->in[0],
                           .matrix_rows = view->rows == w->matrices * w->rows ? w->rows : view->rows};
    p->view.weight = &p->weight;
    step->reported = step->in[0];
    step->in = in;
    step->n_in = tsr_row_decoder_inputs(w, in);
    if (step->n_out > 3 && move->input < 0)
        in[step->n_in++] = w->input_scale;
    step->params = p;
    step->coproduces = 0; /* the step no longer computes anything that it could coproduce */
    step->op = is_mxfp4(w) && move->lossy && move->to != TSR_MOVE_MXFP4 ? &kMoveOrRoundOp : &kMoveOp;
    return TSR_OK;
}
