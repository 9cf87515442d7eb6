/* Moves MXFP4, MXFP8, NVFP4 and block FP8 to one another. */
#include "convert/ops/move/move_op_relations.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "convert/io/copied_codes.h"
#include "quantize/fp8_block.h"
#include "quantize/moves/mx_moves.h"
#include "quantize/mx_weight.h"

#include <math.h>
#include <string.h>

/* ---- codes and scales that cannot be moved ---- */

static void take_codes(const tsr_moving *m)
{
    memcpy(m->u->out_data[0], m->u->in_data[0], tsr_window_bytes(&m->u->in[0]));
}

static tsr_status take_e4m3(const tsr_moving *m, tsr_err *err)
{
    take_codes(m);
    return tsr_check_copied(m->step, m->u, 0, 0, tsr_window_bytes(&m->u->in[0]), m->kernels, err);
}

/* Checks scales of one byte each. */
static tsr_status check_scales(const tsr_moving *m, tsr_err *err)
{
    const tsr_weight *const w = &m->p->weight;
    const tsr_copied scales = {w->scale, &m->u->in[1], m->u->in_data[1], (tsr_dtype)w->scale_dtype, true};
    return tsr_check_copied_as(&scales, 0, m->rows * w->grid_cols, m->kernels, err);
}

/* Checks scales of one byte each (E8M0 and E4M3) and copies them to the buffered output. */
static tsr_status take_scales(const tsr_moving *m, tsr_err *err)
{
    const tsr_weight *const w = &m->p->weight;
    memcpy((char *)m->u->out_data[1] + m->row * w->grid_cols, m->u->in_data[1], m->rows * w->grid_cols);
    return check_scales(m, err);
}

/* Writes a global scale of the weight or of the layer's input in the target's convention. */
static tsr_status take_global(const tsr_moving *m, const tsr_tensor *t, const void *from, void *to, tsr_err *err)
{
    float global, other;
    bool exact;
    memcpy(&global, from, sizeof global);
    TSR_TRY(tsr_nvfp4_other_global(t, global, &other, &exact, err));
    memcpy(to, m->p->weight.global_divides == m->p->move.global_divides ? &global : &other, sizeof global);
    return TSR_OK;
}

/* Copies the source's input scale, unless a new one is given. */
static tsr_status take_input(const tsr_moving *m, tsr_err *err)
{
    if (m->step->n_out <= 3)
        return TSR_OK;
    if (m->p->move.input < 0)
        return take_global(m, m->p->weight.input_scale, m->u->in_data[3], m->u->out_data[3], err);
    memcpy(m->u->out_data[3], &m->p->move.input, sizeof m->p->move.input);
    return TSR_OK;
}

/* ---- the same kind ---- */

tsr_status tsr_move_mxfp4(const tsr_moving *m, tsr_err *err)
{
    take_codes(m);
    return take_scales(m, err);
}

tsr_status tsr_move_mxfp8(const tsr_moving *m, tsr_err *err)
{
    TSR_TRY(take_e4m3(m, err));
    return take_scales(m, err);
}

tsr_status tsr_move_nvfp4(const tsr_moving *m, tsr_err *err)
{
    take_codes(m);
    TSR_TRY(take_scales(m, err));
    if (m->row != 0)
        return TSR_OK;
    TSR_TRY(take_global(m, m->p->weight.global_scale, m->u->in_data[2], m->u->out_data[2], err));
    return take_input(m, err);
}

/* Returns where the scales of the row of blocks that begins with this unit are buffered. */
static float *block_scales(const tsr_moving *m)
{
    const tsr_block *const block = &m->p->move.block;
    const uint64_t cols = tsr_ceil_div(m->p->weight.cols, block->cols);
    const uint64_t bands = tsr_ceil_div(m->p->matrix_rows, block->rows);
    const uint64_t band = m->row / m->p->matrix_rows * bands + m->row % m->p->matrix_rows / block->rows;
    return (float *)m->u->out_data[1] + band * cols;
}

tsr_status tsr_move_fp8(const tsr_moving *m, tsr_err *err)
{
    const tsr_weight *const w = &m->p->weight;
    const tsr_fp8_rect rect = tsr_view_rect(&m->p->view, m->row, m->rows);
    const uint64_t cols = tsr_ceil_div(w->cols, w->block.cols);
    float *const scales = block_scales(m);
    tsr_widen_to_f32(m->kernels, (tsr_dtype)w->scale_dtype, m->u->in_data[1], cols, scales);
    TSR_TRY(tsr_check_scales(w, rect.matrix, rect.row / w->block.rows, 0, scales, cols, err));
    return take_e4m3(m, err);
}

/* ---- other kinds ---- */

tsr_status tsr_move_fp8_to_mxfp8(const tsr_moving *m, tsr_err *err)
{
    tsr_fp8_rect rect = tsr_view_rect(&m->p->view, m->row, m->rows);
    rect.scales = m->u->in_data[1];
    TSR_TRY(take_e4m3(m, err));
    return tsr_fp8_to_mxfp8(m->kernels, &rect, (uint8_t *)m->u->out_data[1] + m->row * (m->p->weight.cols / 32), err);
}

static tsr_mxfp4_rows mxfp4_of(const tsr_moving *m)
{
    return (tsr_mxfp4_rows){.tensor = m->p->weight.data,
                            .row = m->p->view.first + m->row * m->p->view.step,
                            .rows = m->rows,
                            .cols = m->p->weight.cols,
                            .codes = m->u->in_data[0],
                            .scales = m->u->in_data[1],
                            .lossy = m->p->move.lossy};
}

/* Decodes the source into the front of the scratch memory. *rest points to the remainder. */
static tsr_status decode(const tsr_moving *m, void **rest, tsr_err *err)
{
    const tsr_coded_rows rows = {.view = &m->p->view, .row = m->row, .rows = m->rows, .in = m->u->in_data};
    *rest = (char *)m->u->scratch + tsr_round_up(m->rows * m->p->weight.cols * sizeof(float), 64);
    return m->p->decoder->decode(&rows, m->kernels, TSR_F32, m->u->scratch, *rest, err);
}

tsr_status tsr_move_mxfp4_to_fp8(const tsr_moving *m, tsr_err *err)
{
    const tsr_mxfp4_rows rows = mxfp4_of(m);
    const tsr_block *const block = &m->p->move.block;
    uint8_t *const bytes = (uint8_t *)m->u->scratch;
    float *const scales = block_scales(m);
    TSR_TRY(check_scales(m, err));
    TSR_TRY(tsr_mxfp4_to_fp8(&rows, block->cols, m->u->out_data[0], bytes, err));
    for (uint64_t i = 0; i < tsr_ceil_div(rows.cols, block->cols); i++)
        scales[i] = tsr_f32_from_e8m0(bytes[i]);
    if (!m->p->move.lossy)
        return TSR_OK;
    void *rest;
    TSR_TRY(decode(m, &rest, err));
    const tsr_fp8_block blocks = {.block_rows = (uint32_t)block->rows, .block_cols = (uint32_t)block->cols};
    const tsr_fp8_band made = {.tensor = m->p->made,
                               .first = m->row * rows.cols,
                               .x = m->u->scratch,
                               .rows = m->rows,
                               .cols = rows.cols,
                               .ld = rows.cols,
                               .codes = m->u->out_data[0],
                               .ld_codes = rows.cols,
                               .scales = scales,
                               .notes = m->u->notes};
    return tsr_fp8_block_measure(&blocks, m->kernels, &made, m->stats, err);
}

/* Measures the error of the new codes against the values of the old ones. */
static tsr_status measure_nvfp4(const tsr_moving *m, float global, uint8_t *scales, tsr_err *err)
{
    const tsr_mx_scheme scheme = tsr_mx_scheme_of(TSR_NVFP4, true);
    void *rest;
    TSR_TRY(decode(m, &rest, err));
    const tsr_mx_rows made = {.tensor = m->p->made,
                              .row = m->row,
                              .rows = m->rows,
                              .x = m->u->scratch,
                              .global = global,
                              .codes = m->u->out_data[0],
                              .scales = scales,
                              .scratch = rest,
                              .notes = m->u->notes};
    return tsr_mx_measure(&scheme, m->kernels, &made, m->stats, err);
}

tsr_status tsr_move_mxfp4_to_nvfp4(const tsr_moving *m, tsr_err *err)
{
    enum { LEAST = 9 }; /* below this exponent the global scale would be subnormal; at it, all scales fit */
    const tsr_mxfp4_rows rows = mxfp4_of(m);
    uint8_t *const scales = (uint8_t *)m->u->out_data[1] + m->row * (rows.cols / 16);
    int exponent;
    (void)frexpf(m->u->amax, &exponent); /* 2^(exponent - 1) */
    const uint8_t largest = (uint8_t)(m->u->amax == 0 || exponent - 1 + 127 < LEAST ? LEAST : exponent - 1 + 127);
    const float global = tsr_mxfp4_global(largest);
    take_codes(m);
    TSR_TRY(tsr_mxfp4_to_nvfp4(&rows, largest, scales, err));
    if (m->row == 0) {
        const float stored = m->p->move.global_divides ? 1 / global : global;
        memcpy(m->u->out_data[2], &stored, sizeof stored);
        TSR_TRY(take_input(m, err));
    }
    if (!m->p->move.lossy)
        return TSR_OK;
    tsr_mxfp4_shrink(&rows, largest, m->u->out_data[0]);
    return measure_nvfp4(m, global, scales, err);
}
