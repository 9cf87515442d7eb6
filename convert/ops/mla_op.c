/* Heads as units: decoded or moved, transposed, requantized, multiplied. */
#include "convert/ops/mla_op.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_block.h"
#include "quantize/fp8_decode.h"

#include <math.h>
#include <string.h>

typedef struct params {
    tsr_mla mla;
    tsr_mla_form form;
    tsr_weight kv_b;
    tsr_weight other; /* folding: q_b_proj or o_proj */
    bool values, transposed[2];
    tsr_tensor decoded; /* kv_b_proj as FP32: for coordinates */
} params;

static tsr_window run_of(uint64_t offset, uint64_t bytes)
{
    return (tsr_window){.offset = offset, .rows = 1, .row_bytes = bytes, .pitch = bytes};
}

static tsr_window all_of(const tsr_tensor *t)
{
    return run_of(0, t->bytes);
}

static params *keep(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla *mla)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    if (p != NULL) {
        *p = (params){.mla = *mla, .kv_b = *kv_b, .decoded = *kv_b->data};
        p->decoded.dtype = TSR_F32;
    }
    return p;
}

static size_t width_of(const tsr_weight *w)
{
    return tsr_dtype_bytes(w->data->dtype);
}

/* ---- pieces of weights ---- */

/* A rectangle of a weight of rank 2, as it lies in a unit's buffer (its scales: all of them). */
typedef struct piece {
    const tsr_weight *weight;
    uint64_t row, col, rows, cols, ld;
    const void *data;
    const void *scales;
} piece;

/* To BF16 or FP32, dense. Plain weights only to FP32. */
static tsr_status decode(const tsr_cpu_kernels *k, const piece *x, tsr_dtype dtype, void *out, void *scratch,
                         tsr_err *err)
{
    const tsr_weight *const w = x->weight;
    if (w->scale != NULL) {
        tsr_fp8_rect rect = {.weight = w,
                             .row = x->row,
                             .col = x->col,
                             .rows = x->rows,
                             .cols = x->cols,
                             .codes = x->data,
                             .ld_codes = x->ld};
        uint64_t first, rows;
        tsr_fp8_rect_grid(&rect, &first, &rows);
        rect.scales = (const char *)x->scales + first * w->grid_cols * tsr_dtype_bytes(w->scale->dtype);
        return tsr_fp8_decode(k, &rect, dtype, out, x->cols, scratch, err);
    }
    const size_t width = width_of(w);
    for (uint64_t r = 0; r < x->rows; r++) /* any of the three floats, widened as scales are */
        tsr_widen_to_f32(k, w->data->dtype, (const char *)x->data + r * x->ld * width, x->cols,
                         (float *)out + r * x->cols);
    return TSR_OK;
}

/* Rows x cols elements, dense, to cols x rows; or just copied. */
static void place(void *to, const void *from, uint64_t rows, uint64_t cols, size_t width, bool transposed)
{
    enum { TILE = 32 };
    if (!transposed) {
        memcpy(to, from, rows * cols * width);
        return;
    }
    for (uint64_t r0 = 0; r0 < rows; r0 += TILE) {
        for (uint64_t c0 = 0; c0 < cols; c0 += TILE) {
            const uint64_t r1 = tsr_min_u64(rows, r0 + TILE), c1 = tsr_min_u64(cols, c0 + TILE);
            for (uint64_t c = c0; c < c1; c++) {
                for (uint64_t r = r0; r < r1; r++)
                    memcpy((char *)to + (c * rows + r) * width, (const char *)from + (r * cols + c) * width, width);
            }
        }
    }
}

static uint64_t rows_of(const params *p, bool values)
{
    return values ? p->mla.v : p->mla.nope;
}

/* Where the head's part begins, in rows of kv_b_proj. */
static uint64_t first_row(const params *p, uint64_t head, bool values)
{
    return head * (p->mla.nope + p->mla.v) + (values ? p->mla.nope : 0);
}

static tsr_window head_window(const params *p, uint64_t head, bool values)
{
    const uint64_t row_bytes = p->mla.rank * width_of(&p->kv_b);
    return run_of(first_row(p, head, values) * row_bytes, rows_of(p, values) * row_bytes);
}

static piece head_piece(const params *p, uint64_t head, bool values, const void *data, const void *scales)
{
    return (piece){.weight = &p->kv_b,
                   .row = first_row(p, head, values),
                   .rows = rows_of(p, values),
                   .cols = p->mla.rank,
                   .ld = p->mla.rank,
                   .data = data,
                   .scales = scales};
}

/* ---- splitting; a unit is a head ---- */

static uint64_t split_units(const tsr_step *step)
{
    const params *const p = step->params;
    return p->mla.heads;
}

static void split_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = step->params;
    const uint64_t bytes = step->out[0]->bytes / p->mla.heads;
    u->in[0] = head_window(p, unit, p->values);
    if (p->kv_b.scale != NULL)
        u->in[1] = all_of(p->kv_b.scale);
    u->out[0] = run_of(unit * bytes, bytes);
}

/* The decoded values (FP32 at most), the codes before they are transposed, and what decoding needs. */
static uint64_t split_scratch(const tsr_step *step)
{
    const params *const p = step->params;
    const uint64_t n = tsr_max_u64(p->mla.nope, p->mla.v) * p->mla.rank;
    return tsr_round_up(n * sizeof(float), 64) + tsr_round_up(n, 64) +
           (p->kv_b.scale == NULL ? 0 : tsr_fp8_decode_scratch(&p->kv_b));
}

/* The head's scales, in the order of its codes. */
static tsr_status place_scales(const params *p, const tsr_cpu_kernels *k, uint64_t head, const void *scales,
                               float *held, float *scratch, tsr_err *err)
{
    const tsr_weight *const w = &p->kv_b;
    const uint64_t cols = tsr_ceil_div(w->cols, w->block_cols), rows = rows_of(p, p->values) / w->block_rows;
    const uint64_t first = first_row(p, head, p->values) / w->block_rows;
    const size_t width = tsr_dtype_bytes(w->scale->dtype);
    for (uint64_t r = 0; r < rows; r++) {
        tsr_widen_to_f32(k, w->scale->dtype, (const char *)scales + (first + r) * w->grid_cols * width, cols,
                         scratch + r * cols);
        TSR_TRY(tsr_check_scales(w, 0, first + r, 0, scratch + r * cols, cols, err));
    }
    place(held + head * rows * cols, scratch, rows, cols, sizeof(float), p->transposed[0]);
    return TSR_OK;
}

/* Codes of the head's decoded values with this scale, and what they cost. */
static tsr_status encode(const params *p, const tsr_cpu_kernels *k, uint64_t head, bool values, const float *x,
                         float scale, uint8_t *codes, tsr_quant_stats *stats, tsr_err *err)
{
    const uint64_t rows = rows_of(p, values), cols = p->mla.rank;
    const tsr_fp8_block scheme = {.block_rows = (uint32_t)rows, .block_cols = (uint32_t)cols};
    const tsr_fp8_band band = {.tensor = &p->decoded,
                               .first = first_row(p, head, values) * cols,
                               .x = x,
                               .rows = rows,
                               .cols = cols,
                               .ld = cols,
                               .codes = codes,
                               .ld_codes = cols,
                               .scales = &scale};
    k->encode_e4m3_f32(x, rows, cols, cols, cols, &scale, codes, cols);
    return tsr_fp8_block_measure(&scheme, k, &band, stats, err);
}

/* The largest |x| of a head's decoded values; NaN and Inf are refused with their place. */
static tsr_status find_amax(const params *p, const tsr_cpu_kernels *k, const piece *at, const float *x, uint32_t *amax,
                            tsr_err *err)
{
    k->amax_f32(x, at->rows, at->cols, at->cols, at->cols, amax);
    if (*amax < TSR_FP32_INF_BITS)
        return TSR_OK;
    uint64_t i = 0;
    while (isfinite(x[i]))
        i++;
    return tsr_fail(err, TSR_E_VALUE, "'%s': NaN or Inf at [%llu, %llu]: the source is damaged", p->kv_b.data->name,
                    (unsigned long long)(at->row + i / at->cols), (unsigned long long)(i % at->cols));
}

static tsr_status split_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                            tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = step->params;
    const uint64_t rows = rows_of(p, p->values), cols = p->mla.rank;
    const piece head = head_piece(p, unit, p->values, u->in_data[0], u->in_data[1]);
    char *const values = u->scratch;
    char *const codes = values + tsr_round_up(rows * cols * sizeof(float), 64);
    char *const rest = codes + tsr_round_up(rows * cols, 64);
    if (p->form == TSR_MLA_KEEP) {
        place(u->out_data[0], u->in_data[0], rows, cols, 1, p->transposed[0]);
        return place_scales(p, kernels, unit, u->in_data[1], u->out_data[1], (float *)values, err);
    }
    if (p->form == TSR_MLA_PLAIN && p->kv_b.scale == NULL) {
        place(u->out_data[0], u->in_data[0], rows, cols, width_of(&p->kv_b), p->transposed[0]);
        return TSR_OK;
    }
    if (p->form == TSR_MLA_PLAIN) {
        TSR_TRY(decode(kernels, &head, TSR_BF16, values, rest, err));
        place(u->out_data[0], values, rows, cols, sizeof(uint16_t), p->transposed[0]);
        return TSR_OK;
    }
    uint32_t amax;
    TSR_TRY(decode(kernels, &head, TSR_F32, values, rest, err));
    TSR_TRY(find_amax(p, kernels, &head, (const float *)values, &amax, err));
    const float scale = tsr_e4m3_scale(amax, false);
    ((float *)u->out_data[1])[unit] = scale;
    TSR_TRY(encode(p, kernels, unit, p->values, (const float *)values, scale, (uint8_t *)codes, stats, err));
    place(u->out_data[0], codes, rows, cols, 1, p->transposed[0]);
    return TSR_OK;
}

static const tsr_op kSplitOp = {.name = "split kv_b",
                                .units = split_units,
                                .windows = split_windows,
                                .scratch_bytes = split_scratch,
                                .run = split_run};

static const tsr_op kRequantizeHeadsOp = {.name = "split kv_b, requantize heads",
                                          .units = split_units,
                                          .windows = split_windows,
                                          .scratch_bytes = split_scratch,
                                          .run = split_run,
                                          .stats_of = TSR_STATS_SOURCE};

/* ---- one scale for all: one unit, which goes through the heads twice ---- */

static uint64_t one_unit(const tsr_step *step)
{
    (void)step;
    return 1;
}

static void tensor_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    (void)unit;
    const params *const p = step->params;
    u->in[0] = all_of(p->kv_b.data);
    if (p->kv_b.scale != NULL)
        u->in[1] = all_of(p->kv_b.scale);
    for (unsigned i = 0; i < 3; i++)
        u->out[i] = all_of(step->out[i]);
}

static tsr_status decode_head(const params *p, const tsr_cpu_kernels *k, const tsr_unit *u, uint64_t head, bool values,
                              float *x, void *rest, piece *at, tsr_err *err)
{
    const char *const data = (const char *)u->in_data[0] + head_window(p, head, values).offset;
    *at = head_piece(p, head, values, data, u->in_data[1]);
    return decode(k, at, TSR_F32, x, rest, err);
}

static tsr_status tensor_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit;
    const params *const p = step->params;
    const uint64_t n = tsr_max_u64(p->mla.nope, p->mla.v) * p->mla.rank;
    float *const x = u->scratch;
    uint8_t *const codes = (uint8_t *)x + tsr_round_up(n * sizeof(float), 64);
    void *const rest = codes + tsr_round_up(n, 64);
    uint32_t amax = 0;
    piece at;
    for (uint64_t i = 0; i < 2 * p->mla.heads; i++) {
        uint32_t part;
        TSR_TRY(decode_head(p, kernels, u, i / 2, i % 2 != 0, x, rest, &at, err));
        TSR_TRY(find_amax(p, kernels, &at, x, &part, err));
        amax = part > amax ? part : amax;
    }
    const float scale = tsr_e4m3_scale(amax, false);
    memcpy(u->out_data[2], &scale, sizeof scale);
    for (uint64_t i = 0; i < 2 * p->mla.heads; i++) {
        const bool values = i % 2 != 0;
        TSR_TRY(decode_head(p, kernels, u, i / 2, values, x, rest, &at, err));
        TSR_TRY(encode(p, kernels, i / 2, values, x, scale, codes, stats, err));
        place((char *)u->out_data[values] + i / 2 * at.rows * at.cols, codes, at.rows, at.cols, 1,
              p->transposed[values]);
    }
    return TSR_OK;
}

static const tsr_op kRequantizeTensorOp = {.name = "split kv_b, requantize as one",
                                           .units = one_unit,
                                           .windows = tensor_windows,
                                           .scratch_bytes = split_scratch,
                                           .run = tensor_run,
                                           .stats_of = TSR_STATS_SOURCE};

static tsr_tensor *new_tensor(tsr_plan *plan, const char *name, tsr_dtype dtype, unsigned rank, uint64_t a, uint64_t b,
                              uint64_t c)
{
    const tsr_tensor t = {.name = name,
                          .dtype = (uint8_t)dtype,
                          .rank = (uint8_t)rank,
                          .shape = {a, b, c},
                          .bytes = a * (rank > 1 ? b : 1) * (rank > 2 ? c : 1) * tsr_dtype_bytes(dtype)};
    return tsr_plan_tensor(plan, &t);
}

static tsr_tensor *part_tensor(tsr_plan *plan, const params *p, const tsr_mla_part *part)
{
    const uint64_t rows = part->values ? p->mla.v : p->mla.nope, cols = p->mla.rank;
    const tsr_dtype plain = p->kv_b.scale == NULL ? (tsr_dtype)p->kv_b.data->dtype : TSR_BF16;
    return new_tensor(plan, part->name, p->form == TSR_MLA_PLAIN ? plain : TSR_F8_E4M3, 3, p->mla.heads,
                      part->transposed ? cols : rows, part->transposed ? rows : cols);
}

static tsr_tensor *scale_tensor(tsr_plan *plan, const params *p, const tsr_mla_part *part)
{
    if (p->form == TSR_MLA_HEAD)
        return new_tensor(plan, part->scale, TSR_F32, 1, p->mla.heads, 0, 0);
    const uint64_t rows = (part->values ? p->mla.v : p->mla.nope) / p->kv_b.block_rows;
    const uint64_t cols = tsr_ceil_div(p->mla.rank, p->kv_b.block_cols);
    return new_tensor(plan, part->scale, TSR_F32, 3, p->mla.heads, part->transposed ? cols : rows,
                      part->transposed ? rows : cols);
}

tsr_status tsr_plan_mla_split(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla *mla, tsr_mla_form form,
                              const tsr_mla_part *parts, size_t n_parts, tsr_err *err)
{
    const tsr_tensor *const in[] = {kv_b->data, kv_b->scale};
    params *const p = keep(plan, kv_b, mla);
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    p->form = form;
    p->values = parts[0].values;
    tsr_step step = {.op = form == TSR_MLA_TENSOR ? &kRequantizeTensorOp
                           : form == TSR_MLA_HEAD ? &kRequantizeHeadsOp
                                                  : &kSplitOp,
                     .params = p,
                     .in = in,
                     .n_in = kv_b->scale == NULL ? 1 : 2};
    for (size_t i = 0; i < n_parts; i++) {
        p->transposed[i] = parts[i].transposed;
        step.out[step.n_out++] = part_tensor(plan, p, &parts[i]);
    }
    if (form == TSR_MLA_TENSOR) {
        step.out[step.n_out++] = new_tensor(plan, parts[0].scale, TSR_F32, 1, 1, 0, 0);
    } else if (form != TSR_MLA_PLAIN) {
        step.out[step.n_out++] = scale_tensor(plan, p, &parts[0]);
        step.held = 1u << 1;
    }
    for (unsigned i = 0; i < step.n_out; i++) {
        if (step.out[i] == NULL)
            return tsr_out_of_memory(err, "while planning");
    }
    return tsr_plan_step(plan, &step, err);
}

/* ---- folding ---- */

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

/* in[0], in[1]: q_b_proj or o_proj and its scale; in[2], in[3]: kv_b_proj and its scale. */
static void fold_inputs(const params *p, uint64_t head, bool values, tsr_window other, tsr_unit *u)
{
    u->in[0] = other;
    if (p->other.scale != NULL)
        u->in[1] = all_of(p->other.scale);
    u->from[2] = p->other.scale == NULL ? 1 : 2;
    u->in[2] = head_window(p, head, values);
    if (p->kv_b.scale != NULL) {
        u->from[3] = u->from[2] + 1;
        u->in[3] = all_of(p->kv_b.scale);
    }
}

static uint64_t decode_bytes(const params *p)
{
    const uint64_t a = p->other.scale == NULL ? 0 : tsr_fp8_decode_scratch(&p->other);
    const uint64_t b = p->kv_b.scale == NULL ? 0 : tsr_fp8_decode_scratch(&p->kv_b);
    return tsr_round_up(tsr_max_u64(a, b), 64);
}

static tsr_status add_fold(tsr_plan *plan, const tsr_op *op, const tsr_weight *other, const tsr_weight *kv_b,
                           const tsr_mla *mla, uint64_t rows, uint64_t cols, tsr_err *err)
{
    const tsr_tensor *in[4] = {other->data};
    uint32_t n = 1;
    if (other->scale != NULL)
        in[n++] = other->scale;
    in[n++] = kv_b->data;
    if (kv_b->scale != NULL)
        in[n++] = kv_b->scale;
    params *const p = keep(plan, kv_b, mla);
    tsr_tensor *const out = new_tensor(plan, other->data->name, TSR_BF16, 2, rows, cols, 0);
    if (p == NULL || out == NULL)
        return tsr_out_of_memory(err, "while planning");
    p->other = *other;
    const tsr_step step = {.op = op, .params = p, .in = in, .n_in = n, .out = {out}, .n_out = 1, .reported = out};
    return tsr_plan_step(plan, &step, err);
}

static void fold_q_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = step->params;
    const uint64_t row_bytes = step->in[0]->shape[1] * width_of(&p->other), rows = p->mla.nope + p->mla.rope;
    const uint64_t out = step->out[0]->bytes / p->mla.heads;
    fold_inputs(p, unit, false, run_of(unit * rows * row_bytes, rows * row_bytes), u);
    u->out[0] = run_of(unit * out, out);
}

/* q's head, W_k and the products. */
static uint64_t fold_q_scratch(const tsr_step *step)
{
    const params *const p = step->params;
    const uint64_t cols = step->in[0]->shape[1];
    return tsr_round_up((p->mla.nope + p->mla.rope) * cols * sizeof(float), 64) +
           tsr_round_up(p->mla.nope * p->mla.rank * sizeof(float), 64) +
           tsr_round_up(p->mla.rank * cols * sizeof(double), 64) + decode_bytes(p);
}

static tsr_status fold_q_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = step->params;
    const uint64_t cols = step->in[0]->shape[1], rows = p->mla.nope + p->mla.rope, rank = p->mla.rank;
    float *const q = u->scratch;
    float *const w = (float *)((char *)q + tsr_round_up(rows * cols * sizeof(float), 64));
    double *const product = (double *)((char *)w + tsr_round_up(p->mla.nope * rank * sizeof(float), 64));
    void *const rest = (char *)product + tsr_round_up(rank * cols * sizeof(double), 64);
    const piece head = {.weight = &p->other,
                        .row = unit * rows,
                        .rows = rows,
                        .cols = cols,
                        .ld = cols,
                        .data = u->in_data[0],
                        .scales = u->in_data[1]};
    const piece keys = head_piece(p, unit, false, u->in_data[2], u->in_data[3]);
    TSR_TRY(decode(kernels, &head, TSR_F32, q, rest, err));
    TSR_TRY(decode(kernels, &keys, TSR_F32, w, rest, err));
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
                                .units = split_units,
                                .windows = fold_q_windows,
                                .scratch_bytes = fold_q_scratch,
                                .run = fold_q_run,
                                .stats_of = TSR_STATS_SOURCE};

tsr_status tsr_plan_mla_fold_q(tsr_plan *plan, const tsr_weight *q_b, const tsr_weight *kv_b, const tsr_mla *mla,
                               tsr_err *err)
{
    return add_fold(plan, &kFoldQOp, q_b, kv_b, mla, mla->heads * (mla->rank + mla->rope), q_b->data->shape[1], err);
}

/* A unit is a head and some rows of o_proj. */
enum { FOLD_ROWS = 1024 };

static uint64_t fold_o_chunks(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->shape[0], FOLD_ROWS);
}

static uint64_t fold_o_units(const tsr_step *step)
{
    const params *const p = step->params;
    return p->mla.heads * fold_o_chunks(step);
}

static piece fold_o_piece(const tsr_step *step, uint64_t unit)
{
    const params *const p = step->params;
    const uint64_t row = unit % fold_o_chunks(step) * FOLD_ROWS;
    return (piece){.weight = &p->other,
                   .row = row,
                   .col = unit / fold_o_chunks(step) * p->mla.v,
                   .rows = tsr_min_u64(FOLD_ROWS, step->in[0]->shape[0] - row),
                   .cols = p->mla.v,
                   .ld = p->mla.v};
}

static void fold_o_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = step->params;
    const piece x = fold_o_piece(step, unit);
    const size_t width = width_of(&p->other);
    const uint64_t head = unit / fold_o_chunks(step), in = p->mla.heads * p->mla.v, out = p->mla.heads * p->mla.rank;
    const tsr_window window = {
        .offset = (x.row * in + x.col) * width, .rows = x.rows, .row_bytes = x.cols * width, .pitch = in * width};
    fold_inputs(p, head, true, window, u);
    u->out[0] = (tsr_window){.offset = (x.row * out + head * p->mla.rank) * sizeof(uint16_t),
                             .rows = x.rows,
                             .row_bytes = p->mla.rank * sizeof(uint16_t),
                             .pitch = out * sizeof(uint16_t)};
}

/* o's columns of the head, as they are and transposed, W_v and the products. */
static uint64_t fold_o_scratch(const tsr_step *step)
{
    const params *const p = step->params;
    return 2 * tsr_round_up(FOLD_ROWS * p->mla.v * sizeof(float), 64) +
           tsr_round_up(p->mla.v * p->mla.rank * sizeof(float), 64) +
           tsr_round_up(FOLD_ROWS * p->mla.rank * sizeof(double), 64) + decode_bytes(p);
}

static tsr_status fold_o_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = step->params;
    const uint64_t head = unit / fold_o_chunks(step), rank = p->mla.rank, width = p->mla.heads * rank;
    piece x = fold_o_piece(step, unit);
    float *const o = u->scratch;
    float *const turned = (float *)((char *)o + tsr_round_up(FOLD_ROWS * p->mla.v * sizeof(float), 64));
    float *const w = (float *)((char *)turned + tsr_round_up(FOLD_ROWS * p->mla.v * sizeof(float), 64));
    double *const product = (double *)((char *)w + tsr_round_up(p->mla.v * rank * sizeof(float), 64));
    void *const rest = (char *)product + tsr_round_up(FOLD_ROWS * rank * sizeof(double), 64);
    x.data = u->in_data[0];
    x.scales = u->in_data[1];
    const piece values = head_piece(p, head, true, u->in_data[2], u->in_data[3]);
    TSR_TRY(decode(kernels, &x, TSR_F32, o, rest, err));
    TSR_TRY(decode(kernels, &values, TSR_F32, w, rest, err));
    place(turned, o, x.rows, x.cols, sizeof(float), true);
    kernels->matmul_tn(turned, w, p->mla.v, x.rows, rank, product);
    for (uint64_t i = 0; i < x.rows * rank; i++) {
        const uint64_t at = (x.row + i / rank) * width + head * rank + i % rank;
        ((uint16_t *)u->out_data[0])[i] = round_and_measure(product[i], at, stats);
    }
    return TSR_OK;
}

static const tsr_op kFoldOOp = {.name = "fold w_vc into o",
                                .units = fold_o_units,
                                .windows = fold_o_windows,
                                .scratch_bytes = fold_o_scratch,
                                .run = fold_o_run,
                                .stats_of = TSR_STATS_SOURCE};

tsr_status tsr_plan_mla_fold_o(tsr_plan *plan, const tsr_weight *o, const tsr_weight *kv_b, const tsr_mla *mla,
                               tsr_err *err)
{
    return add_fold(plan, &kFoldOOp, o, kv_b, mla, o->data->shape[0], mla->heads * mla->rank, err);
}
