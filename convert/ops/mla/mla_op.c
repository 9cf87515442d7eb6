/* Splits kv_b_proj per head: decoded or moved, transposed, and requantized if requested. A unit is a head. */
#include "convert/ops/mla/mla_op.h"

#include "common/checked.h"
#include "convert/io/copied_codes.h"
#include "convert/ops/mla/mla_op_heads.h"
#include "quantize/fp8_block.h"
#include "quantize/fp8_decode.h"

#include <math.h>
#include <string.h>

/* ---- splitting; a unit is a head ---- */

static uint64_t split_units(const tsr_step *step)
{
    const tsr_mla_params *const p = step->params;
    return p->mla.heads;
}

static void split_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t bytes = step->out[0]->bytes / p->mla.heads;
    u->in[0] = tsr_mla_head_window(p, unit, p->values);
    if (p->kv_b.scale != NULL)
        u->in[1] = tsr_whole_window(p->kv_b.scale);
    u->out[0] = tsr_run_window(unit * bytes, bytes);
}

/* Scratch: the decoded values (at most FP32), the codes before transposition, and what decoding needs. */
static uint64_t split_scratch(const tsr_step *step)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t n = tsr_max_u64(p->mla.nope, p->mla.v) * p->mla.rank;
    return tsr_round_up(n * sizeof(float), 64) + tsr_round_up(n, 64) +
           (p->kv_b.scale == NULL ? 0 : tsr_fp8_decode_scratch(&p->kv_b));
}

/* Copies the head's scales in the order of its codes. */
static tsr_status place_scales(const tsr_mla_params *p, const tsr_cpu_kernels *k, uint64_t head, const void *scales,
                               float *buffered, float *scratch, tsr_err *err)
{
    const tsr_weight *const w = &p->kv_b;
    const uint64_t cols = tsr_ceil_div(w->cols, w->block.cols), rows = tsr_mla_rows(p, p->values) / w->block.rows;
    const uint64_t first = tsr_mla_first_row(p, head, p->values) / w->block.rows;
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    for (uint64_t r = 0; r < rows; r++) {
        tsr_widen_to_f32(k, (tsr_dtype)w->scale_dtype, (const char *)scales + (first + r) * w->grid_cols * width, cols,
                         scratch + r * cols);
        TSR_TRY(tsr_check_scales(w, 0, first + r, 0, scratch + r * cols, cols, err));
    }
    tsr_mla_place(buffered + head * rows * cols, scratch, rows, cols, sizeof(float), p->transposed[0]);
    return TSR_OK;
}

/* Quantizes the head's decoded values with this scale and adds the error to the statistics. */
static tsr_status encode(const tsr_mla_params *p, const tsr_cpu_kernels *k, uint64_t head, bool values, const float *x,
                         float scale, uint8_t *codes, tsr_quant_stats *stats, tsr_err *err)
{
    const uint64_t rows = tsr_mla_rows(p, values), cols = p->mla.rank;
    const tsr_fp8_block scheme = {.block_rows = (uint32_t)rows, .block_cols = (uint32_t)cols};
    const tsr_fp8_band band = {.tensor = &p->decoded,
                               .first = tsr_mla_first_row(p, head, values) * cols,
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

/* Finds the largest |x| of a head's decoded values. Rejects NaN and Inf with their position. */
static tsr_status find_amax(const tsr_mla_params *p, const tsr_cpu_kernels *k, const tsr_mla_piece *at, const float *x,
                            uint32_t *amax, tsr_err *err)
{
    k->amax_f32(x, at->rows, at->cols, at->cols, at->cols, amax);
    if (*amax < TSR_FP32_INF_BITS)
        return TSR_OK;
    uint64_t i = 0;
    while (isfinite(x[i]))
        i++;
    return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, p->kv_b.data->name,
                           "NaN or Inf at [%llu, %llu]: the source is damaged",
                           (unsigned long long)(at->row + i / at->cols), (unsigned long long)(i % at->cols));
}

static tsr_status split_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                            tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_mla_params *const p = step->params;
    const uint64_t rows = tsr_mla_rows(p, p->values), cols = p->mla.rank;
    const tsr_mla_piece head = tsr_mla_head_piece(p, unit, p->values, u->in_data[0], u->in_data[1]);
    char *const values = u->scratch;
    char *const codes = values + tsr_round_up(rows * cols * sizeof(float), 64);
    char *const rest = codes + tsr_round_up(rows * cols, 64);
    if (p->form == TSR_MLA_KEEP) {
        TSR_TRY(tsr_check_copied(step, u, 0, 0, tsr_window_bytes(&u->in[0]), kernels, err));
        tsr_mla_place(u->out_data[0], u->in_data[0], rows, cols, 1, p->transposed[0]);
        return place_scales(p, kernels, unit, u->in_data[1], u->out_data[1], (float *)values, err);
    }
    if (p->form == TSR_MLA_PLAIN && p->kv_b.scale == NULL) {
        tsr_mla_place(u->out_data[0], u->in_data[0], rows, cols, tsr_mla_width(&p->kv_b), p->transposed[0]);
        return TSR_OK;
    }
    if (p->form == TSR_MLA_PLAIN) {
        TSR_TRY(tsr_mla_decode_heads(kernels, &head, TSR_BF16, values, rest, err));
        tsr_mla_place(u->out_data[0], values, rows, cols, sizeof(uint16_t), p->transposed[0]);
        return TSR_OK;
    }
    uint32_t amax;
    TSR_TRY(tsr_mla_decode_heads(kernels, &head, TSR_F32, values, rest, err));
    TSR_TRY(find_amax(p, kernels, &head, (const float *)values, &amax, err));
    const float scale = tsr_e4m3_scale(amax, false);
    ((float *)u->out_data[1])[unit] = scale;
    TSR_TRY(encode(p, kernels, unit, p->values, (const float *)values, scale, (uint8_t *)codes, stats, err));
    tsr_mla_place(u->out_data[0], codes, rows, cols, 1, p->transposed[0]);
    return TSR_OK;
}

static const tsr_op kSplitOp = {.name = "split kv_b", .units = {split_units, split_windows, split_scratch, split_run}};

static const tsr_op kRequantizeHeadsOp = {.name = "split kv_b, requantize heads",
                                          .units = {split_units, split_windows, split_scratch, split_run},
                                          .stats_of = TSR_STATS_SOURCE};

/* ---- one scale for all heads: one unit, which reads the heads twice ---- */

static void tensor_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    (void)unit;
    const tsr_mla_params *const p = step->params;
    u->in[0] = tsr_whole_window(p->kv_b.data);
    if (p->kv_b.scale != NULL)
        u->in[1] = tsr_whole_window(p->kv_b.scale);
    for (unsigned i = 0; i < 3; i++)
        u->out[i] = tsr_whole_window(step->out[i]);
}

static tsr_status decode_head(const tsr_mla_params *p, const tsr_cpu_kernels *k, const tsr_unit *u, uint64_t head,
                              bool values, float *x, void *rest, tsr_mla_piece *at, tsr_err *err)
{
    const char *const data = (const char *)u->in_data[0] + tsr_mla_head_window(p, head, values).offset;
    *at = tsr_mla_head_piece(p, head, values, data, u->in_data[1]);
    return tsr_mla_decode_heads(k, at, TSR_F32, x, rest, err);
}

static tsr_status tensor_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit;
    const tsr_mla_params *const p = step->params;
    const uint64_t n = tsr_max_u64(p->mla.nope, p->mla.v) * p->mla.rank;
    float *const x = u->scratch;
    uint8_t *const codes = (uint8_t *)x + tsr_round_up(n * sizeof(float), 64);
    void *const rest = codes + tsr_round_up(n, 64);
    uint32_t amax = 0;
    tsr_mla_piece at;
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
        tsr_mla_place((char *)u->out_data[values] + i / 2 * at.rows * at.cols, codes, at.rows, at.cols, 1,
                      p->transposed[values]);
    }
    return TSR_OK;
}

static const tsr_op kRequantizeTensorOp = {.name = "split kv_b, requantize as one",
                                           .units = {tsr_one_unit, tensor_windows, split_scratch, tensor_run},
                                           .stats_of = TSR_STATS_SOURCE};

static tsr_tensor *part_tensor(tsr_plan *plan, const tsr_mla_params *p, const tsr_mla_part *part)
{
    const uint64_t rows = part->values ? p->mla.v : p->mla.nope, cols = p->mla.rank;
    const tsr_dtype plain = p->kv_b.scale == NULL ? (tsr_dtype)p->kv_b.data->dtype : TSR_BF16;
    return tsr_plan_new_tensor(plan, part->name, p->form == TSR_MLA_PLAIN ? plain : TSR_F8_E4M3, 3,
                               part->transposed ? (const uint64_t[]){p->mla.heads, cols, rows}
                                                : (const uint64_t[]){p->mla.heads, rows, cols});
}

static tsr_tensor *scale_tensor(tsr_plan *plan, const tsr_mla_params *p, const tsr_mla_part *part)
{
    if (p->form == TSR_MLA_HEAD)
        return tsr_plan_new_tensor(plan, part->scale, TSR_F32, 1, (const uint64_t[]){p->mla.heads, 0, 0});
    const uint64_t rows = (part->values ? p->mla.v : p->mla.nope) / p->kv_b.block.rows;
    const uint64_t cols = tsr_ceil_div(p->mla.rank, p->kv_b.block.cols);
    return tsr_plan_new_tensor(
        plan, part->scale, TSR_F32, 3,
        (const uint64_t[]){p->mla.heads, part->transposed ? cols : rows, part->transposed ? rows : cols});
}

tsr_status tsr_plan_mla_split(tsr_plan *plan, const tsr_weight *kv_b, const tsr_mla_shape *mla, tsr_mla_form form,
                              const tsr_mla_part *parts, size_t n_parts, tsr_err *err)
{
    const tsr_tensor *const in[] = {kv_b->data, kv_b->scale};
    tsr_mla_params *const p = tsr_mla_keep(plan, kv_b, mla);
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
        step.out[step.n_out++] = tsr_plan_new_tensor(plan, parts[0].scale, TSR_F32, 1, (const uint64_t[]){1, 0, 0});
    } else if (form != TSR_MLA_PLAIN) {
        step.out[step.n_out++] = scale_tensor(plan, p, &parts[0]);
        step.buffered = 1u << 1;
    }
    for (unsigned i = 0; i < step.n_out; i++) {
        if (step.out[i] == NULL)
            return tsr_out_of_memory(err, "while planning");
    }
    return tsr_plan_step(plan, &step, err);
}
