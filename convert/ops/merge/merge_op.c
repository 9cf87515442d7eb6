/* Merges the update of an adapter into a weight. A unit is some whole rows of one matrix. */
#include "convert/ops/merge/merge_op.h"

#include "convert/ops/merge/merge_format.h"
#include "convert/ops/rows/row_decoder.h"
#include "convert/ops/rows/rows.h"

#include <string.h>

typedef struct params {
    tsr_weight weight; /* matrices, rows and cols are set for plain weights too */
    tsr_row_view view;
    const tsr_row_decoder *decoder; /* NULL: plain */
    const tsr_merge_format *format;
    tsr_update update;
    uint32_t n_base;   /* inputs of the base; A and B follow */
    tsr_tensor values; /* describes the FP32 values */
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

/* ---- position of a unit ---- */

static uint64_t unit_rows(const params *p)
{
    const tsr_weight *const w = &p->weight;
    const uint64_t step = p->format->rows(w);
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, w->data->bytes / (w->matrices * w->rows)) / step * step;
    return tsr_min_u64(tsr_max_u64(step, fit), w->rows);
}

static uint64_t merge_units(const tsr_step *step)
{
    const params *const p = params_of(step);
    return step->out[0]->bytes == 0 ? 0 : p->weight.matrices * tsr_ceil_div(p->weight.rows, unit_rows(p));
}

/* Rows of a unit, numbered through all matrices. */
typedef struct band {
    uint64_t row, rows;
} band;

static band band_of(const params *p, uint64_t unit)
{
    const uint64_t rows = unit_rows(p), units = tsr_ceil_div(p->weight.rows, rows), row = unit % units * rows;
    return (band){.row = unit / units * p->weight.rows + row, .rows = tsr_min_u64(rows, p->weight.rows - row)};
}

/* Computes the windows of the base's tensors for some rows. */
static void base_windows(const params *p, uint64_t row, uint64_t rows, tsr_window *in)
{
    if (p->decoder != NULL)
        p->decoder->windows(&p->view, row, rows, in);
    else
        in[0] = tsr_view_window(&p->view, p->weight.data, row, rows);
}

static void merge_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = params_of(step);
    const band b = band_of(p, unit);
    base_windows(p, b.row, b.rows, u->in);
    tsr_update_windows(&p->update, b.row, b.rows, u->in + p->n_base);
    u->out[0] = tsr_view_window(&p->view, p->weight.data, b.row, b.rows);
}

/* ---- the arithmetic ---- */

/* Returns how many rows are merged at a time, so that their values stay in the cache. */
static uint64_t piece_rows(const params *p)
{
    const uint64_t step = p->format->rows(&p->weight);
    const uint64_t fit = TSR_PIECE_BYTES / tsr_max_u64(1, p->weight.cols * sizeof(float)) / step * step;
    return tsr_min_u64(tsr_max_u64(step, fit), unit_rows(p));
}

/* Parts of the scratch, in bytes: the factors; values before and after, and the update, of a piece; work space. */
typedef struct scratch {
    uint64_t factors, piece, decoding, storing;
} scratch;

static scratch scratch_of(const params *p)
{
    return (scratch){
        .factors = tsr_round_up(tsr_update_scratch(&p->update, unit_rows(p)), 64),
        .piece = tsr_round_up(piece_rows(p) * p->weight.cols * sizeof(float), 64),
        .decoding = p->decoder == NULL ? 0 : tsr_round_up(p->decoder->scratch(&p->weight), 64),
        .storing = p->format->scratch(&p->weight),
    };
}

static uint64_t merge_scratch(const tsr_step *step)
{
    const scratch s = scratch_of(params_of(step));
    return s.factors + 3 * s.piece + s.decoding + s.storing;
}

/* Decodes rows of the base to FP32. */
static tsr_status decode(const params *p, uint64_t row, uint64_t rows, const tsr_unit *u,
                         const tsr_cpu_kernels *kernels, float *out, void *memory, tsr_err *err)
{
    tsr_window part[TSR_DECODED_INPUTS] = {{0}};
    void *in[TSR_DECODED_INPUTS] = {NULL};
    base_windows(p, row, rows, part);
    for (uint32_t i = 0; i < p->n_base; i++)
        in[i] = (char *)u->in_data[i] + (part[i].offset - u->in[i].offset);
    if (p->decoder == NULL) {
        tsr_widen_to_f32(kernels, (tsr_dtype)p->weight.data->dtype, in[0], rows * p->weight.cols, out);
        return TSR_OK;
    }
    const tsr_coded_rows coded = {.view = &p->view, .row = row, .rows = rows, .in = in};
    return p->decoder->decode(&coded, kernels, TSR_F32, out, memory, err);
}

/* Adds the sums over a piece to the statistics of the step. */
static void add_sums(tsr_quant_stats *stats, const tsr_update_sums *sums, uint64_t n)
{
    const tsr_quant_stats more = {.elements = n,
                                  .nonzero = sums->nonzero,
                                  .flushed = sums->lost,
                                  .sum_x2 = sums->x2,
                                  .sum_d2 = sums->d2,
                                  .sum_xy = sums->xy,
                                  .sum_y2 = sums->y2,
                                  .amax = (double)sums->amax};
    tsr_quant_stats_add(stats, &more);
}

static tsr_status merge_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                            tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    const band b = band_of(p, unit);
    const scratch s = scratch_of(p);
    char *const memory = (char *)u->scratch + s.factors;
    float *const before = (float *)memory, *const update = (float *)(memory + s.piece),
                 *const merged = (float *)(memory + 2 * s.piece);
    tsr_update_factors factors;
    TSR_TRY(
        tsr_update_make_factors(&p->update, b.row, b.rows, u->in_data + p->n_base, kernels, u->scratch, &factors, err));
    const uint64_t row_bytes = p->weight.data->bytes / (p->weight.matrices * p->weight.rows), most = piece_rows(p);
    for (uint64_t at = 0; at < b.rows; at += most) {
        const uint64_t rows = tsr_min_u64(most, b.rows - at), n = rows * p->weight.cols;
        const tsr_merged_rows out = {.weight = &p->weight,
                                     .values = &p->values,
                                     .row = b.row + at,
                                     .rows = rows,
                                     .x = merged,
                                     .data = (char *)u->out_data[0] + at * row_bytes,
                                     .others = u->out_data + 1,
                                     .after = merged,
                                     .scratch = memory + 3 * s.piece + s.decoding};
        tsr_update_sums sums = {0};
        TSR_TRY(decode(p, b.row + at, rows, u, kernels, before, memory + 3 * s.piece, err));
        tsr_update_compute(&p->update, &factors, at, rows, kernels, update);
        tsr_update_add(before, update, n, merged);
        TSR_TRY(p->format->store(&out, kernels, err));
        tsr_unit_made(u, (at + rows) * row_bytes);
        kernels->update_sums(before, update, merged, n, &sums);
        add_sums(stats, &sums, n);
    }
    return TSR_OK;
}

static const tsr_op kMergeOp = {
    .name = "merge", .units = {merge_units, merge_windows, merge_scratch, merge_run}, .stats_of = TSR_STATS_UPDATE};

const tsr_update *tsr_merge_step_update(const tsr_step *step)
{
    return step->op == &kMergeOp ? &params_of(step)->update : NULL;
}

/* ---- the step ---- */

/* Copies a weight, with the shape of its matrix if it is plain. */
static tsr_weight shaped(const tsr_weight *weight)
{
    tsr_weight w = *weight;
    const tsr_tensor *const t = weight->data;
    if (w.kind != NULL)
        return w;
    w.values = t;
    w.matrices = t->rank == 3 ? t->shape[0] : 1;
    w.rows = t->shape[t->rank - 2];
    w.cols = t->shape[t->rank - 1];
    return w;
}

static tsr_status fill_params(tsr_plan *plan, params *p, const tsr_weight *weight, const tsr_update *update,
                              tsr_err *err)
{
    const char *why = NULL;
    *p = (params){.weight = shaped(weight), .update = *update};
    p->format = tsr_merge_format_of(&p->weight, &why);
    if (p->format == NULL)
        return tsr_fail_at(err,
                           tsr_fail(err, TSR_E_UNSUPPORTED,
                                    "%s: '%s' has an update, but %s; run 'tessera convert --to bf16' and merge into "
                                    "the result",
                                    plan->sources[0]->files[weight->data->file].path, weight->data->name, why),
                           weight->data->name);
    p->values = *p->weight.values;
    p->values.dtype = TSR_F32;
    p->values.source = TSR_SOURCE_DECODED;
    p->view = tsr_view_whole(&p->weight);
    p->decoder = weight->kind == NULL ? NULL : tsr_row_decoder_of(&p->weight);
    return TSR_OK;
}

tsr_status tsr_plan_merge(tsr_plan *plan, const tsr_weight *weight, const tsr_update *update, tsr_err *err)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    const tsr_tensor *in[TSR_MAX_INPUTS];
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(fill_params(plan, p, weight, update, err));
    in[0] = p->weight.data;
    p->n_base = p->decoder == NULL ? 1 : tsr_row_decoder_inputs(&p->weight, in);
    in[p->n_base] = p->update.a = tsr_plan_tensor(plan, update->a);
    in[p->n_base + 1] = p->update.b = tsr_plan_tensor(plan, update->b);
    tsr_step step = {.op = &kMergeOp, .params = p, .in = in, .n_in = p->n_base + 2};
    const tsr_tensor *const made[] = {p->weight.data, p->weight.scale, p->weight.zero_point, p->weight.global_scale};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        if (made[i] == NULL)
            continue;
        step.buffered |= (uint8_t)(i == 0 ? 0 : 1u << step.n_out);
        step.out[step.n_out] = tsr_plan_tensor(plan, made[i]);
        if (step.out[step.n_out++] == NULL)
            return tsr_out_of_memory(err, "while planning");
    }
    if (p->update.a == NULL || p->update.b == NULL)
        return tsr_out_of_memory(err, "while planning");
    ((tsr_tensor *)p->update.a)->source = ((tsr_tensor *)p->update.b)->source = 1;
    step.reported = p->weight.values;
    return tsr_plan_step(plan, &step, err);
}
