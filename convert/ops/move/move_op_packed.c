/* Moves AWQ, GPTQ and packed integers to packed integers of compressed-tensors. Outputs: weight_packed, weight_scale,
 * weight_shape and weight_zero_point, in this order. Moves packed int4 to that of SGLang. */
#include "convert/ops/move/move_op_relations.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/moves/int4_moves.h"

#include <string.h>

static tsr_int4_shape shape_of(const tsr_moving *m)
{
    return (tsr_int4_shape){
        .outputs = m->rows, .inputs = m->p->weight.cols, .group = m->p->weight.block.cols, .bits = m->p->weight.bits};
}

/* Rejects scales that are negative, infinite or NaN, because readers of packed integers reject them. */
static tsr_status check_scales(const tsr_moving *m, const void *scales, tsr_err *err)
{
    const tsr_weight *const w = &m->p->weight;
    for (uint64_t i = 0; i < m->rows; i++) {
        const char *const from = (const char *)scales + i * w->grid_cols * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
        float row[256];
        for (uint64_t at = 0; at < w->grid_cols; at += 256) {
            const uint64_t n = tsr_min_u64(256, w->grid_cols - at);
            tsr_widen_to_f32(m->kernels, (tsr_dtype)w->scale_dtype,
                             from + at * tsr_dtype_bytes((tsr_dtype)w->scale_dtype), n, row);
            TSR_TRY(tsr_check_scales(w, 0, m->row + i, at, row, n, err));
        }
    }
    return TSR_OK;
}

/* Returns the buffer of the unit's scales. */
static char *scales_of(const tsr_moving *m)
{
    const tsr_weight *const w = &m->p->weight;
    return (char *)m->u->out_data[1] + m->row * w->grid_cols * tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
}

static void write_shape(const tsr_moving *m)
{
    const int64_t shape[2] = {(int64_t)m->p->weight.rows, (int64_t)m->p->weight.cols};
    if (m->row == 0)
        memcpy(m->u->out_data[2], shape, sizeof shape);
}

/* ---- packed already, or two codes per byte ---- */

/* Copies codes. `offset`: changes int4 between an offset of 8 and two's complement, in the same order. */
static void move_bytes(const tsr_moving *m, bool offset)
{
    const uint8_t *const from = m->u->in_data[0];
    uint8_t *const to = m->u->out_data[0];
    const uint8_t change = offset ? 0x88 : 0;
    for (uint64_t i = 0; i < tsr_window_bytes(&m->u->in[0]); i++)
        to[i] = from[i] ^ change;
}

tsr_status tsr_move_packed(const tsr_moving *m, tsr_err *err)
{
    const tsr_weight *const w = &m->p->weight;
    const uint64_t per_word = 32 / w->bits, words = tsr_ceil_div(m->rows, per_word) * w->grid_cols;
    move_bytes(m, w->coding == TSR_CODED_NIBBLES);
    memcpy(scales_of(m), m->u->in_data[1], tsr_window_bytes(&m->u->in[1]));
    write_shape(m);
    if (m->step->n_out > 3) {
        uint32_t *const zeros = (uint32_t *)m->u->out_data[3] + m->row / per_word * w->grid_cols;
        if (w->zero_point != NULL)
            memcpy(zeros, m->u->in_data[2], words * sizeof *zeros);
        else
            memset(zeros, w->bits == 4 ? 0x88 : 0x80, words * sizeof *zeros);
    }
    return check_scales(m, m->u->in_data[1], err);
}

tsr_status tsr_move_nibbles(const tsr_moving *m, tsr_err *err)
{
    move_bytes(m, true);
    memcpy(scales_of(m), m->u->in_data[1], tsr_window_bytes(&m->u->in[1]));
    if (m->row == 0)
        *(uint16_t *)m->u->out_data[2] = tsr_bf16_from_f32(m->p->move.input);
    return check_scales(m, m->u->in_data[1], err);
}

/* ---- AWQ and GPTQ ---- */

/* Checks that zero points are written, or that all have the middle value, which symmetric schemes imply. */
static tsr_status check_middle(const tsr_moving *m, bool symmetric, tsr_err *err)
{
    if (symmetric || m->step->n_out > 3)
        return TSR_OK;
    return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, m->p->weight.zero_point->name,
                           "a zero point in rows %llu to %llu is not %u, although config.json says symmetric; %s",
                           U64(m->row), U64(m->row + m->rows - 1), 1u << (m->p->weight.bits - 1),
                           m->p->weight.bits == 4 ? "--zero-points keeps them" : "--scales mse recomputes the codes");
}

/* Returns the buffer of the unit's zero points: their output, or the scratch if they are only checked. */
static uint32_t *zeros_of(const tsr_moving *m)
{
    const tsr_weight *const w = &m->p->weight;
    return m->step->n_out > 3 ? (uint32_t *)m->u->out_data[3] + m->row / (32 / w->bits) * w->grid_cols
                              : (uint32_t *)m->u->scratch;
}

static tsr_status take_scales(const tsr_moving *m, tsr_err *err)
{
    const tsr_int4_shape shape = shape_of(m);
    char *const scales = scales_of(m);
    tsr_int4_scales(&shape, m->u->in_data[1], (uint16_t *)(void *)scales);
    write_shape(m);
    return check_scales(m, scales, err);
}

tsr_status tsr_move_awq(const tsr_moving *m, tsr_err *err)
{
    const tsr_int4_shape shape = shape_of(m);
    bool symmetric;
    tsr_awq_codes(&shape, m->u->in_data[0], m->u->out_data[0]);
    tsr_awq_zero_points(&shape, m->u->in_data[2], zeros_of(m), &symmetric);
    TSR_TRY(check_middle(m, symmetric, err));
    return take_scales(m, err);
}

tsr_status tsr_move_gptq(const tsr_moving *m, tsr_err *err)
{
    const tsr_int4_shape shape = shape_of(m);
    const tsr_weight *const w = &m->p->weight;
    bool symmetric;
    tsr_gptq_codes(&shape, m->u->in_data[0], m->u->out_data[0]);
    TSR_TRY(tsr_gptq_zero_points(&shape, w->zero_point, m->row, m->u->in_data[2], w->zeros_less_one, zeros_of(m),
                                 &symmetric, err));
    TSR_TRY(check_middle(m, symmetric, err));
    return take_scales(m, err);
}
