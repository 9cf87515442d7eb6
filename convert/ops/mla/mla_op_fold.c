/* Multiplies the heads of kv_b_proj into q_b_proj and o_proj, in FP64. */
#include "convert/ops/mla/mla_op_heads.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <math.h>

static uint16_t round_and_measure(double x, uint64_t at, tsr_quant_stats *stats)
{
    const uint16_t y16 = tsr_bf16_from_f64(x);
    const float y = tsr_f32_from_bf16(y16);
    const double d = fabs(x - (double)y);
    stats->elements++;
    stats->nonzero += x != 0;
    stats->flushed += x != 0 && y == 0;
    stats->sum_x2 += x * x;
    stats->sum_d2 += d * d;
    stats->sum_xy += x * (double)y;
    stats->sum_y2 += (double)y * (double)y;
    stats->amax = fmax(stats->amax, fabs(x));
    if (d > stats->max_error) {
        stats->max_error = d;
        stats->max_error_at = at;
    }
    return y16;
}

/* Declares the inputs. in[0], in[1]: q_b_proj or o_proj and its scale; in[2], in[3]: kv_b_proj and its scale. */
static void fold_inputs(const tsr_mla_params *p, uint64_t head, bool values, tsr_window other, tsr_unit *u)
{
    u->in[0] = other;
    if (p->other.scale != NULL)
        u->in[1] = tsr_whole_window(p->other.scale);
    u->from[2] = p->other.scale == NULL ? 1 : 2;
    u->in[2] = tsr_mla_head_window(p, head, values);
    if (p->kv_b.scale != NULL) {
        u->from[3] = u->from[2] + 1;
        u->in[3] = tsr_whole_window(p->kv_b.scale);
    }
}

static uint64_t decode_bytes(const tsr_mla_params *p)
{
    const uint64_t a = p->other.scale == NULL ? 0 : tsr_fp8_decode_scratch(&p->other);
    const uint64_t b = p->kv_b.scale == NULL ? 0 : tsr_fp8_decode_scratch(&p->kv_b);
    return tsr_round_up(tsr_max_u64(a, b), 64);
}

static tsr_status add_fold(tsr_plan *plan, const tsr_op *op, const tsr_weight *other, const tsr_weight *kv_b,
                           const tsr_mla_shape *mla, uint64_t rows, uint64_t cols, tsr_err *err)
{
    const tsr_tensor *in[4] = {other->data};
    uint32_t n = 1;
    if (other->scale != NULL)
        in[n++] = other->scale;
    in[n++] = kv_b->data;
    if (kv_b->scale != NULL)
        in[n++] = kv_b->scale;
    tsr_mla_params *const p = tsr_mla_keep(plan, kv_b, mla);
    tsr_tensor *const out =
        tsr_plan_new_tensor(plan, other->data->name, TSR_BF16, 2, (const uint64_t[]){rows, cols, 0});
    if (p == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    p->other = *other;
    const tsr_step step = {.op = op, .params = p, .in = in, .n_in = n, .out = {out}, .n_out = 1, .reported = out};
    return tsr_plan_step(plan, &step, err);
}

static uint64_t fold_q_units(const tsr_step *step)
{
    const tsr_mla_params *const p = step->params;
    return p->mla.heads;
}

static void fold_q_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t row_bytes = step->in[0]->shape[1] * tsr_mla_width(&p->other), rows = p->mla.nope + p->mla.rope;
    const uint64_t out = step->out[0]->bytes / p->mla.heads;
    fold_inputs(p, unit, false, tsr_run_window(unit * rows * row_bytes, rows * row_bytes), u);
    u->out[0] = tsr_run_window(unit * out, out);
}

/* Scratch: the head's rows of q_b_proj, W_k and the products. */
static uint64_t fold_q_scratch(const tsr_step *step)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t cols = step->in[0]->shape[1];
    return tsr_round_up((p->mla.nope + p->mla.rope) * cols * sizeof(float), 64) +
           tsr_round_up(p->mla.nope * p->mla.rank * sizeof(float), 64) +
           tsr_round_up(p->mla.rank * cols * sizeof(double), 64) + decode_bytes(p);
}

static tsr_status fold_q_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t cols = step->in[0]->shape[1], rows = p->mla.nope + p->mla.rope, rank = p->mla.rank;
    float *const q = u->scratch;
    float *const w = (float *)((char *)q + tsr_round_up(rows * cols * sizeof(float), 64));
    double *const product = (double *)((char *)w + tsr_round_up(p->mla.nope * rank * sizeof(float), 64));
    void *const rest = (char *)product + tsr_round_up(rank * cols * sizeof(double), 64);
    const tsr_mla_piece head = {.weight = &p->other,
                                .row = unit * rows,
                                .rows = rows,
                                .cols = cols,
                                .ld = cols,
                                .data = u->in_data[0],
                                .scales = u->in_data[1]};
    const tsr_mla_piece keys = tsr_mla_head_piece(p, unit, false, u->in_data[2], u->in_data[3]);
    TSR_TRY(tsr_mla_decode_heads(kernels, &head, TSR_F32, q, rest, err));
    TSR_TRY(tsr_mla_decode_heads(kernels, &keys, TSR_F32, w, rest, err));
    kernels->matmul_tn(w, q, p->mla.nope, rank, cols, product);
    uint16_t *const out = u->out_data[0];
    const uint64_t first = unit * (rank + p->mla.rope) * cols;
    for (uint64_t i = 0; i < rank * cols; i++)
        out[i] = round_and_measure(product[i], first + i, stats);
    for (uint64_t i = 0; i < p->mla.rope * cols; i++)
        out[rank * cols + i] = round_and_measure((double)q[p->mla.nope * cols + i], first + rank * cols + i, stats);
    return TSR_OK;
}

static const tsr_op kFoldQOp = {.name = "fold w_kc into q_b",
                                .units = {fold_q_units, fold_q_windows, fold_q_scratch, fold_q_run},
                                .stats_of = TSR_STATS_SOURCE};

tsr_status tsr_plan_mla_fold_q(tsr_plan *plan, const tsr_weight *q_b, const tsr_weight *kv_b, const tsr_mla_shape *mla,
                               tsr_err *err)
{
    return add_fold(plan, &kFoldQOp, q_b, kv_b, mla, mla->heads * (mla->rank + mla->rope), q_b->data->shape[1], err);
}

/* A unit is one head and some rows of o_proj. */
enum { FOLD_ROWS = 1024 };

static uint64_t fold_o_chunks(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->shape[0], FOLD_ROWS);
}

static uint64_t fold_o_units(const tsr_step *step)
{
    const tsr_mla_params *const p = step->params;
    return p->mla.heads * fold_o_chunks(step);
}

static tsr_mla_piece fold_o_piece(const tsr_step *step, uint64_t unit)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t row = unit % fold_o_chunks(step) * FOLD_ROWS;
    return (tsr_mla_piece){.weight = &p->other,
                           .row = row,
                           .col = unit / fold_o_chunks(step) * p->mla.v,
                           .rows = tsr_min_u64(FOLD_ROWS, step->in[0]->shape[0] - row),
                           .cols = p->mla.v,
                           .ld = p->mla.v};
}

static void fold_o_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_mla_params *const p = step->params;
    const tsr_mla_piece x = fold_o_piece(step, unit);
    const size_t width = tsr_mla_width(&p->other);
    const uint64_t head = unit / fold_o_chunks(step), in = p->mla.heads * p->mla.v, out = p->mla.heads * p->mla.rank;
    const tsr_window window = {
        .offset = (x.row * in + x.col) * width, .rows = x.rows, .row_bytes = x.cols * width, .pitch = in * width};
    fold_inputs(p, head, true, window, u);
    u->out[0] = (tsr_window){.offset = (x.row * out + head * p->mla.rank) * sizeof(uint16_t),
                             .rows = x.rows,
                             .row_bytes = p->mla.rank * sizeof(uint16_t),
                             .pitch = out * sizeof(uint16_t)};
}

/* Scratch: the head's columns of o_proj, as stored and transposed, W_v and the products. */
static uint64_t fold_o_scratch(const tsr_step *step)
{
    const tsr_mla_params *const p = step->params;
    return 2 * tsr_round_up(FOLD_ROWS * p->mla.v * sizeof(float), 64) +
           tsr_round_up(p->mla.v * p->mla.rank * sizeof(float), 64) +
           tsr_round_up(FOLD_ROWS * p->mla.rank * sizeof(double), 64) + decode_bytes(p);
}

static tsr_status fold_o_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t head = unit / fold_o_chunks(step), rank = p->mla.rank, width = p->mla.heads * rank;
    tsr_mla_piece x = fold_o_piece(step, unit);
    float *const o = u->scratch;
    float *const turned = (float *)((char *)o + tsr_round_up(FOLD_ROWS * p->mla.v * sizeof(float), 64));
    float *const w = (float *)((char *)turned + tsr_round_up(FOLD_ROWS * p->mla.v * sizeof(float), 64));
    double *const product = (double *)((char *)w + tsr_round_up(p->mla.v * rank * sizeof(float), 64));
    void *const rest = (char *)product + tsr_round_up(FOLD_ROWS * rank * sizeof(double), 64);
    x.data = u->in_data[0];
    x.scales = u->in_data[1];
    const tsr_mla_piece values = tsr_mla_head_piece(p, head, true, u->in_data[2], u->in_data[3]);
    TSR_TRY(tsr_mla_decode_heads(kernels, &x, TSR_F32, o, rest, err));
    TSR_TRY(tsr_mla_decode_heads(kernels, &values, TSR_F32, w, rest, err));
    tsr_mla_place(turned, o, x.rows, x.cols, sizeof(float), true);
    kernels->matmul_tn(turned, w, p->mla.v, x.rows, rank, product);
    for (uint64_t i = 0; i < x.rows * rank; i++) {
        const uint64_t at = (x.row + i / rank) * width + head * rank + i % rank;
        ((uint16_t *)u->out_data[0])[i] = round_and_measure(product[i], at, stats);
    }
    return TSR_OK;
}

static const tsr_op kFoldOOp = {.name = "fold w_vc into o",
                                .units = {fold_o_units, fold_o_windows, fold_o_scratch, fold_o_run},
                                .stats_of = TSR_STATS_SOURCE};

tsr_status tsr_plan_mla_fold_o(tsr_plan *plan, const tsr_weight *o, const tsr_weight *kv_b, const tsr_mla_shape *mla,
                               tsr_err *err)
{
    return add_fold(plan, &kFoldOOp, o, kv_b, mla, o->data->shape[0], mla->heads * mla->rank, err);
}
