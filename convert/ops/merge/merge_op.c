/* Merges the update of an adapter into a weight. A unit is some whole rows of one matrix. */
#include "convert/ops/merge/merge_op.h"

#include "convert/ops/merge/merge_format.h"
#include "convert/ops/rows/rows.h"
#include "formats/names/fused.h"

#include <float.h>
#include <string.h>

typedef struct params {
    const tsr_merge_source *source;
    const tsr_merge_format *format;
    bool powers;
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

static const tsr_weight *weight_of(const params *p)
{
    return &p->source->weight;
}

static bool has_update(const params *p)
{
    return p->source->n_updates > 0;
}

/* ---- position of a unit ---- */

static uint64_t row_bytes_of(const tsr_weight *w)
{
    return w->data->bytes / (w->matrices * w->rows);
}

static uint64_t unit_rows(const params *p)
{
    const tsr_weight *const w = weight_of(p);
    const uint64_t step = p->format->rows(w);
    const uint64_t fit = TSR_UNIT_BYTES / tsr_max_u64(1, row_bytes_of(w)) / step * step;
    return tsr_min_u64(tsr_max_u64(step, fit), w->rows);
}

static uint64_t merge_units(const tsr_step *step)
{
    const params *const p = params_of(step);
    const tsr_weight *const w = weight_of(p);
    return step->out[0]->bytes == 0 ? 0 : w->matrices * tsr_ceil_div(w->rows, unit_rows(p));
}

/* Rows of a unit, numbered through all matrices. */
typedef struct band {
    uint64_t row, rows;
} band;

static band band_of(const params *p, uint64_t unit)
{
    const tsr_weight *const w = weight_of(p);
    const uint64_t rows = unit_rows(p), units = tsr_ceil_div(w->rows, rows), row = unit % units * rows;
    return (band){.row = unit / units * w->rows + row, .rows = tsr_min_u64(rows, w->rows - row)};
}

static void merge_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = params_of(step);
    const band b = band_of(p, unit);
    tsr_merge_source_windows(p->source, b.row, b.rows, u->in);
    u->out[0] = tsr_view_window(&p->source->view, weight_of(p)->data, b.row, b.rows);
}

/* ---- memory ---- */

/* Returns how many rows are merged at a time, so that their values stay in the cache. */
static uint64_t piece_rows(const params *p)
{
    const tsr_weight *const w = weight_of(p);
    const uint64_t step = p->format->rows(w);
    const uint64_t fit = TSR_PIECE_BYTES / tsr_max_u64(1, w->cols * sizeof(float)) / step * step;
    return tsr_min_u64(tsr_max_u64(step, fit), unit_rows(p));
}

/* Parts of the scratch, in bytes: the factors; values before and after, and the update, of a piece; work space. */
typedef struct scratch {
    uint64_t factors, piece, decoding, storing;
} scratch;

static scratch scratch_of(const params *p)
{
    const tsr_weight *const w = weight_of(p);
    return (scratch){
        .factors = tsr_merge_factors_scratch(p->source, unit_rows(p)),
        .piece = tsr_round_up(piece_rows(p) * w->cols * sizeof(float), 64),
        .decoding = tsr_merge_decode_scratch(p->source),
        .storing = p->format->scratch(w),
    };
}

static uint64_t merge_scratch(const tsr_step *step)
{
    const scratch s = scratch_of(params_of(step));
    return s.factors + 3 * s.piece + s.decoding + s.storing;
}

/* ---- the arithmetic ---- */

/* The buffers of a unit. */
typedef struct work {
    const params *p;
    const tsr_unit *u;
    const tsr_cpu_kernels *kernels;
    band b;
    tsr_update_factors factors[TSR_MERGE_ADAPTERS];
    float *before, *update, *merged;
    void *decoding, *storing;
    float shared;
} work;

static work work_of(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels)
{
    const params *const p = params_of(step);
    const scratch s = scratch_of(p);
    char *const memory = (char *)u->scratch + s.factors;
    return (work){.p = p,
                  .u = u,
                  .kernels = kernels,
                  .b = band_of(p, unit),
                  .before = (float *)memory,
                  .update = (float *)(memory + s.piece),
                  .merged = (float *)(memory + 2 * s.piece),
                  .decoding = memory + 3 * s.piece,
                  .storing = memory + 3 * s.piece + s.decoding};
}

/* Finds the data of some rows among the inputs of the unit. */
static void find_inputs(const work *k, uint64_t row, uint64_t rows, void *in[TSR_DECODED_INPUTS])
{
    tsr_window part[TSR_DECODED_INPUTS] = {{0}};
    tsr_merge_base_windows(k->p->source, row, rows, part);
    for (uint32_t i = 0; i < k->p->source->n_base; i++)
        in[i] = (char *)k->u->in_data[i] + (part[i].offset - k->u->in[i].offset);
}

/* Finds the data of some rows among the outputs: the codes of the unit, and buffered tensors. */
static void find_outputs(const work *k, uint64_t row, uint64_t rows, void *in[TSR_DECODED_INPUTS])
{
    tsr_window part[TSR_DECODED_INPUTS] = {{0}};
    tsr_merge_base_windows(k->p->source, row, rows, part);
    in[0] = (char *)k->u->out_data[0] + (part[0].offset - k->u->out[0].offset);
    for (uint32_t i = 1; i < k->p->source->n_base; i++)
        in[i] = (char *)k->u->out_data[i] + part[i].offset;
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

/* Merges the rows from `at` on of a unit. */
static tsr_status merge_piece(const work *k, uint64_t at, uint64_t rows, tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = k->p;
    const tsr_weight *const w = weight_of(p);
    const uint64_t row = k->b.row + at, n = rows * w->cols;
    const tsr_merged_rows out = {.weight = w,
                                 .values = &p->source->values,
                                 .powers = p->powers,
                                 .row = row,
                                 .rows = rows,
                                 .x = k->merged,
                                 .data = (char *)k->u->out_data[0] + at * row_bytes_of(w),
                                 .others = k->u->out_data + 1,
                                 .shared = k->shared,
                                 .scratch = k->storing};
    void *in[TSR_DECODED_INPUTS] = {NULL};
    tsr_update_sums sums = {0};
    find_inputs(k, row, rows, in);
    TSR_TRY(tsr_merge_decode(p->source, row, rows, in, k->kernels, k->before, k->decoding, err));
    tsr_merge_compute(p->source, k->factors, at, rows, k->kernels, k->update, k->merged);
    tsr_update_add(k->before, k->update, n, k->merged);
    TSR_TRY(tsr_merge_check(p->source, row, rows, k->merged, "after the merge", k->kernels, err));
    TSR_TRY(p->format->store(&out, k->kernels, err));
    tsr_unit_made(k->u, (at + rows) * row_bytes_of(w));
    find_outputs(k, row, rows, in);
    TSR_TRY(tsr_merge_decode(p->source, row, rows, in, k->kernels, k->merged, k->decoding, err));
    TSR_TRY(tsr_merge_check(p->source, row, rows, k->merged, "once it is rounded", k->kernels, err));
    k->kernels->update_sums(k->before, k->update, k->merged, n, &sums);
    add_sums(stats, &sums, n);
    return TSR_OK;
}

/* Copies the unit: the codes, and its part of the buffered tensors. */
static void copy_unit(const work *k)
{
    void *to[TSR_DECODED_INPUTS];
    find_outputs(k, k->b.row, k->b.rows, to);
    for (uint32_t i = 0; i < k->p->source->n_base; i++)
        memcpy(to[i], k->u->in_data[i], tsr_window_bytes(&k->u->in[i]));
}

/* Decides the scale of the whole tensor. Returns true if it is that of the base. */
static tsr_status decide_shared(work *k, bool *stays, tsr_err *err)
{
    const tsr_weight *const w = weight_of(k->p);
    const tsr_tensor *const scale = w->global_scale != NULL ? w->global_scale : w->scale;
    float stored = 0;
    tsr_widen_to_f32(k->kernels, (tsr_dtype)(w->global_scale != NULL ? TSR_F32 : w->scale_dtype),
                     k->u->in_data[k->p->source->n_base - 1], 1, &stored);
    if (!(stored > 0 && stored <= FLT_MAX))
        return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, scale->name, "the scale %g is not a valid scale",
                               (double)stored);
    k->shared = k->p->format->shared(w, k->p->powers, stored, k->u->amax, k->kernels);
    *stays = k->shared == stored;
    return TSR_OK;
}

static tsr_status merge_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                            tsr_quant_stats *stats, tsr_err *err)
{
    work k = work_of(step, unit, u, kernels);
    const params *const p = k.p;
    bool stays = false;
    if (p->format->shared != NULL)
        TSR_TRY(decide_shared(&k, &stays, err));
    if (!has_update(p) && stays) {
        copy_unit(&k);
        return TSR_OK;
    }
    TSR_TRY(tsr_merge_make_factors(p->source, k.b.row, k.b.rows, u->in_data, kernels, u->scratch, k.factors, err));
    const uint64_t most = piece_rows(p);
    for (uint64_t at = 0; at < k.b.rows; at += most)
        TSR_TRY(merge_piece(&k, at, tsr_min_u64(most, k.b.rows - at), stats, err));
    return TSR_OK;
}

static const tsr_op kMergeOp = {
    .name = "merge", .units = {merge_units, merge_windows, merge_scratch, merge_run}, .stats_of = TSR_STATS_UPDATE};

const tsr_merge_source *tsr_merge_step_source(const tsr_step *step)
{
    return step->op == &kMergeOp ? params_of(step)->source : NULL;
}

/* ---- the step ---- */

bool tsr_merge_has_shared_scale(const tsr_weight *weight)
{
    const char *why;
    const tsr_merge_format *const format = tsr_merge_format_of(weight, &why);
    return format != NULL && format->shared != NULL;
}

static tsr_status refuse(const tsr_plan *plan, const tsr_weight *w, const char *why, tsr_err *err)
{
    return tsr_fail_at(err,
                       tsr_fail(err, TSR_E_UNSUPPORTED,
                                "%s: '%s' (%s) has an update, but %s; run 'tessera convert --to bf16' and merge into "
                                "the result",
                                plan->sources[0]->files[w->data->file].path, w->data->name,
                                w->kind == NULL ? tsr_dtype_name((tsr_dtype)w->data->dtype) : w->kind->title, why),
                       w->data->name);
}

/* Adds the outputs: the data, then what is made anew with it, in the order of the decoder's inputs. */
static tsr_status add_outputs(tsr_plan *plan, tsr_step *step, const tsr_weight *w, tsr_err *err)
{
    const tsr_tensor *const made[] = {w->data, w->scale, w->zero_point, w->global_scale};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        if (made[i] == NULL)
            continue;
        step->buffered |= (uint8_t)(i == 0 ? 0 : 1u << step->n_out);
        step->out[step->n_out] = tsr_plan_tensor(plan, made[i]);
        if (step->out[step->n_out++] == NULL)
            return tsr_out_of_memory(err, "while planning");
    }
    return TSR_OK;
}

enum { MOST_INPUTS = TSR_MAX_INPUTS * TSR_FUSED_MEMBERS }; /* inputs of all weights that share a scale */

/* Adds the inputs of the amax that are not inputs of the step itself. */
static void add_amax_inputs(const tsr_amax *amax, const tsr_tensor *in[MOST_INPUTS], uint32_t *n)
{
    for (uint32_t i = 0; amax != NULL && i < amax->n; i++) {
        for (uint32_t k = 0; k < amax->decoded[i]->n_in; k++) {
            uint32_t at = 0;
            while (at < *n && in[at] != amax->decoded[i]->in[k])
                at++;
            if (at == *n)
                in[(*n)++] = amax->decoded[i]->in[k];
        }
    }
}

tsr_status tsr_plan_merge(tsr_plan *plan, const tsr_merge_source *source, bool powers, const tsr_amax *amax,
                          tsr_err *err)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    const tsr_tensor *in[MOST_INPUTS];
    const char *why = NULL;
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (params){.source = source, .format = tsr_merge_format_of(&source->weight, &why), .powers = powers};
    if (p->format == NULL)
        return refuse(plan, &source->weight, why, err);
    tsr_step step = {.op = &kMergeOp, .params = p, .in = in, .amax = amax, .reported = source->weight.values};
    step.n_in = tsr_merge_source_inputs(source, in);
    add_amax_inputs(amax, in, &step.n_in);
    TSR_TRY(add_outputs(plan, &step, &source->weight, err));
    return tsr_plan_step(plan, &step, err);
}
