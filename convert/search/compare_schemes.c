/* Measures the error of each scheme for each tensor, strip by strip, on several threads. */
#include "convert/search/compare_schemes.h"

#include "common/checked.h"
#include "common/parallel/work_queue.h"
#include "convert/plans/ct_plan.h"
#include "convert/search/strip_buffers.h"
#include "formats/names/expert_stacks.h"
#include "quantize/fp8_block.h"
#include "quantize/mx_weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STRIP_ROWS = 128 };

tsr_scheme_kind tsr_scheme_kind_of(tsr_scheme scheme)
{
    const tsr_scheme_row *const s = tsr_scheme_row_of(scheme);
    if (s->form == TSR_FORM_GROUPS)
        return s->kind == TSR_MXFP8 ? TSR_W8A8 : TSR_W4A16;
    return s->form != TSR_FORM_PACKED ? TSR_W8A8 : s->ints.bits == 8 ? TSR_W8A16 : TSR_W4A16;
}

double tsr_scheme_cost_error(const tsr_scheme_cost *cost)
{
    const tsr_quant_stats *const s = &cost->stats;
    return s->sum_wx2 > 0 ? s->sum_wd2 / s->sum_wx2 : s->sum_x2 > 0 ? s->sum_d2 / s->sum_x2 : 0;
}

/* ---- shapes of a tensor in a scheme ---- */

typedef struct matrix {
    uint64_t matrices, rows, cols;
} matrix;

static matrix matrix_of(const tsr_tensor *t)
{
    return (matrix){t->rank == 3 ? t->shape[0] : 1, t->shape[t->rank - 2], t->shape[t->rank - 1]};
}

static bool is_fp8(const tsr_scheme_row *s)
{
    return s->form == TSR_FORM_BLOCKS || s->form == TSR_FORM_FP8_ROWS || s->form == TSR_FORM_FP8_TENSOR;
}

/* Returns the blocks in which a strip is measured. A strip of a tensor with one scale gets a scale of its own. */
static tsr_fp8_block blocks_of(const tsr_scheme_row *s, const matrix *m)
{
    tsr_fp8_block blocks = s->fp8;
    blocks.block_rows = blocks.block_rows == 0 ? STRIP_ROWS : blocks.block_rows;
    blocks.block_cols = blocks.block_cols == 0 ? (uint32_t)m->cols : blocks.block_cols;
    return blocks;
}

/* Returns the number of tensors into which quantize splits each matrix: gate and up of each expert
 * (convert/plans/split_plan.h). Block FP8 is not affected by the split. */
static unsigned parts_of(const tsr_scheme_row *s, const tsr_tensor *t)
{
    const tsr_stack *const stack = s->form == TSR_FORM_BLOCKS || t->rank != 3 ? NULL : tsr_stack_find(t->name);
    return stack == NULL || t->shape[1] % tsr_stack_projections(stack) != 0 ? 1 : tsr_stack_projections(stack);
}

/* Returns a tensor of all matrices stacked as rows. */
static tsr_tensor flat(const tsr_tensor *t)
{
    const matrix m = matrix_of(t);
    tsr_tensor rows = *t;
    rows.rank = 2;
    rows.shape[0] = m.matrices * m.rows;
    rows.shape[1] = m.cols;
    return rows;
}

static tsr_mx_scheme groups_of(const tsr_scheme_row *s)
{
    tsr_mx_scheme groups = tsr_mx_scheme_of(s->kind, false);
    groups.search = s->search;
    return groups;
}

static bool takes(tsr_scheme scheme, const tsr_checkpoint *c, const tsr_tensor *t, const tsr_compare_schemes_options *o,
                  uint64_t taken)
{
    const tsr_scheme_row *const s = tsr_scheme_row_of(scheme);
    const bool wanted = o->schemes == 0 ? s->title != NULL : (o->schemes >> scheme & 1) != 0;
    if (s->form == TSR_FORM_PLAIN || !wanted || (taken >> scheme & 1) == 0)
        return false;
    if (s->form == TSR_FORM_BLOCKS)
        return true;
    if (t->rank == 3 && tsr_stack_find(t->name) == NULL)
        return false;
    tsr_tensor rows = flat(t);
    if (t->rank == 3)
        rows.name = "experts.0.weight"; /* each expert's tensor has this ending, whatever the name of the stack */
    if (s->form == TSR_FORM_GROUPS)     /* any matrix of whole groups, as for e4m3 by row */
        return tsr_ct_takes(c, &rows, TSR_SCHEME_FP8_CHANNEL) && rows.shape[1] % groups_of(s).group == 0;
    return tsr_ct_takes(c, &rows, is_fp8(s) ? TSR_SCHEME_FP8_CHANNEL : scheme);
}

static uint64_t bytes_of(const tsr_scheme_row *s, const tsr_tensor *t)
{
    const unsigned parts = parts_of(s, t);
    const matrix whole = matrix_of(t), one = {whole.matrices * parts, whole.rows / parts, whole.cols}, *const m = &one;
    const uint64_t n = m->rows * m->cols;
    if (s->form == TSR_FORM_GROUPS) {
        const tsr_mx_scheme mx = groups_of(s);
        return m->matrices * (m->rows * (tsr_mx_code_bytes(mx.element, m->cols) + m->cols / mx.group) +
                              (mx.scale == TSR_MX_E8M0 ? 0 : sizeof(float)));
    }
    if (is_fp8(s)) {
        const uint64_t width = s->fp8.block_cols == 0 ? m->cols : s->fp8.block_cols;
        const uint64_t height = s->fp8.block_rows == 0 ? m->rows : s->fp8.block_rows;
        return m->matrices * (n + tsr_ceil_div(m->rows, height) * tsr_ceil_div(m->cols, width) * sizeof(float));
    }
    const uint64_t scales = m->rows * tsr_int_groups(&s->ints, m->cols);
    const uint64_t zeros = s->ints.asymmetric ? tsr_ceil_div(m->rows, 8) * tsr_int_groups(&s->ints, m->cols) * 4 : 0;
    return m->matrices * (n * s->ints.bits / 8 + scales * tsr_dtype_bytes(s->ints.scale_dtype) + zeros);
}

/* ---- one strip ---- */

/* Some rows of one matrix of tensors[tensor]. */
typedef struct strip {
    size_t tensor;
    uint64_t matrix, row, rows;
} strip;

static uint64_t scratch_of(const tsr_tensor *t, const matrix *m)
{
    uint64_t most = 0;
    for (tsr_scheme i = TSR_SCHEME_KEEP + 1; i < TSR_SCHEMES; i++) {
        const tsr_fp8_block fp8 = blocks_of(tsr_scheme_row_of(i), m);
        const tsr_mx_scheme mx = groups_of(tsr_scheme_row_of(i));
        most =
            tsr_max_u64(most, tsr_scheme_row_of(i)->form == TSR_FORM_GROUPS ? tsr_mx_scratch(&mx, m->cols)
                              : is_fp8(tsr_scheme_row_of(i)) ? tsr_fp8_block_scratch(&fp8, (tsr_dtype)t->dtype)
                                                             : tsr_int_scratch(&tsr_scheme_row_of(i)->ints, m->cols));
    }
    return most;
}

/* Returns the buffer sizes for the largest of the tensors. */
static tsr_strip_sizes sizes_of(const tsr_tensor *const *tensors, size_t n)
{
    tsr_strip_sizes s = {0};
    for (size_t i = 0; i < n; i++) {
        const matrix m = matrix_of(tensors[i]);
        const uint64_t elements = tsr_min_u64(STRIP_ROWS, m.rows) * m.cols;
        s.cols = tsr_max_u64(s.cols, m.cols);
        s.x = tsr_max_u64(s.x, elements * tsr_dtype_bytes((tsr_dtype)tensors[i]->dtype));
        s.codes = tsr_max_u64(s.codes, elements);
        s.scales = tsr_max_u64(s.scales, tsr_min_u64(STRIP_ROWS, m.rows) * (m.cols / 32 + 1));
        s.scratch = tsr_max_u64(s.scratch, scratch_of(tensors[i], &m));
    }
    return s;
}

static tsr_status quantize_blocks(const tsr_scheme_row *s, const tsr_cpu_kernels *k, const tsr_strip_buffers *w,
                                  const tsr_tensor *t, const strip *at, tsr_quant_stats *stats, tsr_err *err)
{
    const matrix m = matrix_of(t);
    const tsr_fp8_block scheme = blocks_of(s, &m);
    for (uint64_t r = 0; r < at->rows; r += scheme.block_rows) {
        const tsr_fp8_band band = {.tensor = t,
                                   .first = ((at->matrix * m.rows) + at->row + r) * m.cols,
                                   .x = (const char *)w->x + r * m.cols * tsr_dtype_bytes((tsr_dtype)t->dtype),
                                   .rows = tsr_min_u64(scheme.block_rows, at->rows - r),
                                   .cols = m.cols,
                                   .ld = m.cols,
                                   .codes = (uint8_t *)w->codes,
                                   .ld_codes = m.cols,
                                   .scales = w->scales,
                                   .importance = w->weighted ? w->importance : NULL,
                                   .scratch = w->scratch};
        TSR_TRY(tsr_fp8_block_quantize(&scheme, k, &band, stats, err));
    }
    return TSR_OK;
}

/* rejected: the weights are finite, but readers would decode a code to infinity */
static tsr_status quantize_groups(const tsr_scheme_row *s, const tsr_cpu_kernels *k, const tsr_strip_buffers *w,
                                  const tsr_tensor *t, const strip *at, tsr_quant_stats *stats, bool *refused,
                                  tsr_err *err)
{
    const tsr_mx_scheme scheme = groups_of(s);
    tsr_mx_rows rows = {.tensor = t,
                        .row = at->matrix * matrix_of(t).rows + at->row,
                        .rows = at->rows,
                        .x = w->x,
                        .global = 1,
                        .codes = (uint8_t *)w->codes,
                        .scales = (uint8_t *)w->scales,
                        .importance = w->weighted ? w->importance : NULL,
                        .scratch = w->scratch};
    float amax = 0;
    TSR_TRY(tsr_mx_amax(k, &rows, &amax, err));
    if (scheme.scale != TSR_MX_E8M0)
        rows.global = tsr_nvfp4_global(&scheme, (tsr_dtype)t->dtype, &amax, 1);
    const tsr_status status = tsr_mx_quantize(&scheme, k, &rows, stats, err);
    *refused = status == TSR_E_VALUE;
    return *refused ? TSR_OK : status;
}

/* Sets the bits of *refused for schemes that cannot hold the weights. */
static tsr_status quantize_strip(const tsr_cpu_kernels *k, const tsr_strip_buffers *w, const tsr_tensor *t,
                                 const strip *at, const tsr_scheme_cost costs[TSR_SCHEMES],
                                 tsr_quant_stats stats[TSR_SCHEMES], uint64_t *refused, tsr_err *err)
{
    const tsr_tensor one_below_the_other = flat(t);
    const tsr_int_rows rows = {.tensor = &one_below_the_other,
                               .row = at->matrix * matrix_of(t).rows + at->row,
                               .rows = at->rows,
                               .x = w->x,
                               .codes = w->codes,
                               .scales = w->scales,
                               .zero_points = w->zero_points,
                               .importance = w->weighted ? w->importance : NULL,
                               .scratch = w->scratch};
    for (tsr_scheme i = 0; i < TSR_SCHEMES; i++) {
        stats[i] = (tsr_quant_stats){0};
        if (!costs[i].taken)
            continue;
        bool cannot = false;
        TSR_TRY(tsr_scheme_row_of(i)->form == TSR_FORM_GROUPS
                    ? quantize_groups(tsr_scheme_row_of(i), k, w, t, at, &stats[i], &cannot, err)
                : is_fp8(tsr_scheme_row_of(i))
                    ? quantize_blocks(tsr_scheme_row_of(i), k, w, t, at, &stats[i], err)
                    : tsr_int_quantize(&tsr_scheme_row_of(i)->ints, k, &rows, &stats[i], err));
        *refused |= (uint64_t)cannot << i;
    }
    return TSR_OK;
}

/* ---- threads ---- */

/* The statistics of a strip. */
typedef struct sums {
    tsr_quant_stats stats[TSR_SCHEMES];
    uint64_t refused; /* bits of the schemes that cannot hold it */
} sums;

/* A tensor whose strips are being measured. Their sums are added when all are done. */
typedef struct flight {
    uint64_t strips, left;
    sums strip[]; /* [strips] */
} flight;

typedef struct run {
    const tsr_checkpoint *c;
    const tsr_tensor *const *tensors;
    size_t n;
    const tsr_compare_schemes_options *options;
    tsr_scheme_cost *costs;
    tsr_cpu_kernels kernels;
    tsr_strip_sizes sizes;
    tsr_column_importance *columns; /* [n] */
    flight **flights;               /* [n]; NULL if not in progress */
    size_t next_tensor;
    uint64_t next_strip;
    tsr_claims claims; /* on tensors */
    bool *mine;        /* [n]: tensors that this rank compares */
    tsr_progress progress;
} run;

static uint64_t strips_of(const matrix *m)
{
    return m->matrices * tsr_ceil_div(m->rows, STRIP_ROWS);
}

static strip strip_at(const run *r, const tsr_job_part *part)
{
    const matrix m = matrix_of(r->tensors[part->item]);
    const uint64_t down = tsr_ceil_div(m.rows, STRIP_ROWS);
    strip s = {.tensor = part->item, .matrix = part->number / down, .row = part->number % down * STRIP_ROWS};
    s.rows = tsr_min_u64(STRIP_ROWS, m.rows - s.row);
    return s;
}

/* Finds the next tensor that this rank compares, if there is one. Counts those of other ranks as done. */
static tsr_status find_tensor(run *r, tsr_err *err)
{
    for (; r->next_tensor < r->n; r->next_tensor++) {
        TSR_TRY(tsr_claims_take(&r->claims, r->next_tensor, &r->mine[r->next_tensor], err));
        if (r->mine[r->next_tensor])
            break;
        r->progress.bytes_done += r->tensors[r->next_tensor]->bytes;
    }
    return TSR_OK;
}

/* Takes the next strip in order. */
static tsr_status take_strip(void *job, tsr_job_part *part, bool *taken, tsr_err *err)
{
    run *const r = job;
    TSR_TRY(find_tensor(r, err));
    if (r->next_tensor >= r->n)
        return TSR_OK;
    const tsr_tensor *const t = r->tensors[r->next_tensor];
    const matrix m = matrix_of(t);
    flight *f = r->flights[r->next_tensor];
    if (f == NULL) {
        f = calloc(1, sizeof *f + strips_of(&m) * sizeof *f->strip);
        if (f == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "out of memory for the sums of '%s'", t->name);
        f->strips = f->left = strips_of(&m);
        r->flights[r->next_tensor] = f;
    }
    *taken = true;
    *part = (tsr_job_part){r->next_tensor, r->next_strip++};
    if (r->next_strip == f->strips) {
        r->next_tensor++;
        r->next_strip = 0;
    }
    return TSR_OK;
}

static void finish(run *r, size_t tensor)
{
    flight *const f = r->flights[tensor];
    tsr_scheme_cost *const costs = &r->costs[tensor * TSR_SCHEMES];
    uint64_t refused = 0;
    for (uint64_t s = 0; s < f->strips; s++) {
        refused |= f->strip[s].refused;
        for (tsr_scheme i = 0; i < TSR_SCHEMES; i++)
            tsr_quant_stats_add(&costs[i].stats, &f->strip[s].stats[i]);
    }
    for (tsr_scheme i = 0; i < TSR_SCHEMES; i++) {
        if ((refused >> i & 1) != 0)
            costs[i] = (tsr_scheme_cost){.bytes = r->tensors[tensor]->bytes};
    }
    free(f);
    r->flights[tensor] = NULL;
}

static void add_strip(void *job, const tsr_job_part *part, const void *result)
{
    run *const r = job;
    flight *const f = r->flights[part->item];
    const tsr_tensor *const t = r->tensors[part->item];
    memcpy(&f->strip[part->number], result, sizeof *f->strip);
    r->progress.bytes_done += strip_at(r, part).rows * matrix_of(t).cols * tsr_dtype_bytes((tsr_dtype)t->dtype);
    if (--f->left == 0)
        finish(r, part->item);
}

/* Multiplies the columns of a strip, and divides their importance by the squares of the factors. */
static tsr_status fold_strip(const run *r, const strip *at, const matrix *m, tsr_strip_buffers *w, tsr_err *err)
{
    const tsr_fold columns = {.columns = r->options->folds[at->tensor]->columns};
    TSR_TRY(
        tsr_fold_rows(&columns, r->tensors[at->tensor], at->matrix * m->rows + at->row, at->rows, m->cols, w->x, err));
    for (uint64_t j = 0; w->weighted && columns.columns != NULL && j < m->cols; j++)
        w->importance[j] = ldexpf(w->importance[j], -2 * columns.columns[j]);
    return TSR_OK;
}

static void *begin_worker(void *job)
{
    const run *const r = job;
    return tsr_strip_buffers_begin(&r->sizes);
}

static tsr_status make_strip(void *job, void *worker, const tsr_job_part *part, void *result, tsr_err *err)
{
    const run *const r = job;
    tsr_strip_buffers *const w = worker;
    sums *const s = result;
    const tsr_tensor *const t = r->tensors[part->item];
    const matrix m = matrix_of(t);
    const strip at = strip_at(r, part);
    const uint64_t row_bytes = m.cols * tsr_dtype_bytes((tsr_dtype)t->dtype);
    w->weighted = tsr_importance_of(&r->columns[at.tensor], at.matrix, 0, m.cols, w->importance);
    TSR_TRY(tsr_checkpoint_read(r->c, t, (at.matrix * m.rows + at.row) * row_bytes, w->x, at.rows * row_bytes, err));
    if (r->options->folds != NULL)
        TSR_TRY(fold_strip(r, &at, &m, w, err));
    return quantize_strip(&r->kernels, w, t, &at, &r->costs[at.tensor * TSR_SCHEMES], s->stats, &s->refused, err);
}

/* ---- all tensors ---- */

/* Determines which tensors each scheme quantizes, and their bytes. */
static void decide(run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const tsr_tensor *const t = r->tensors[i];
        r->progress.bytes_total += t->bytes;
        for (tsr_scheme s = 0; s < TSR_SCHEMES; s++) {
            const bool taken =
                takes(s, r->c, t, r->options, r->options->taken == NULL ? ~UINT64_C(0) : r->options->taken[i]);
            r->costs[i * TSR_SCHEMES + s] =
                (tsr_scheme_cost){.taken = taken, .bytes = taken ? bytes_of(tsr_scheme_row_of(s), t) : t->bytes};
        }
    }
}

/* Returns a number that is equal on ranks with the same checkpoint and the same tensors. */
static uint64_t fingerprint(const run *r)
{
    uint64_t hash = tsr_checkpoint_fingerprint(r->c, r->n);
    if (r->options->importance != NULL)
        hash += r->options->importance->hash;
    for (size_t i = 0; i < r->n; i++)
        hash = 31 * hash + (uint64_t)(r->tensors[i] - r->c->tensors.items);
    return hash;
}

/* Combines the costs of all ranks. */
static tsr_status combine_costs(run *r, tsr_err *err)
{
    for (size_t i = 0; i < r->n; i++) {
        if (!r->mine[i])
            memset(&r->costs[i * TSR_SCHEMES], 0, TSR_SCHEMES * sizeof *r->costs);
    }
    return tsr_ranks_combine(r->options->ranks, r->costs, r->n * TSR_SCHEMES * sizeof *r->costs, err);
}

static tsr_status compare_all(run *r, tsr_err *err)
{
    const tsr_work_queue job = {
        .job = r,
        .result_bytes = sizeof(sums),
        .options = &r->options->run,
        .progress = &r->progress,
        .take = take_strip,
        .add = add_strip,
        .begin = begin_worker,
        .end = tsr_strip_buffers_end,
        .make = make_strip,
    };
    const uint64_t each = tsr_strip_bytes(&r->sizes);
    const uint64_t fixed = tsr_checkpoint_memory(r->c) + r->n * TSR_SCHEMES * sizeof *r->costs;
    tsr_ranks *const ranks = r->options->ranks;
    unsigned threads;
    tsr_status status = tsr_choose_threads(&r->options->run, fixed, each, &threads, err);
    status = tsr_ranks_agree(ranks, status, ranks == NULL ? 0 : fingerprint(r), err);
    if (status != TSR_OK)
        return status;
    status = tsr_work_queue_run(&job, threads, err);
    if (status != TSR_OK)
        tsr_claims_stop(&r->claims);
    TSR_TRY(tsr_ranks_share_status(ranks, status, err));
    return combine_costs(r, err);
}

tsr_status tsr_compare_schemes(const tsr_checkpoint *checkpoint, const tsr_tensor *const *tensors, size_t n,
                               const tsr_compare_schemes_options *options, tsr_scheme_cost *costs, tsr_err *err)
{
    run r = {.c = checkpoint,
             .tensors = tensors,
             .n = n,
             .options = options,
             .costs = costs,
             .sizes = sizes_of(tensors, n),
             .progress = {.phase = "comparing"},
             .claims = {.ranks = options->ranks},
             .mine = calloc(n + 1, sizeof *r.mine),
             .columns = calloc(n + 1, sizeof *r.columns),
             .flights = calloc(n + 1, sizeof *r.flights)};
    tsr_status status = TSR_OK;
    if (r.flights == NULL || r.mine == NULL || r.columns == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; options->importance != NULL && i < n && status == TSR_OK; i++)
        status = tsr_importance_find(options->importance, tensors[i], &r.columns[i], err);
    if (status == TSR_OK) {
        tsr_cpu_kernels_init(&r.kernels, options->cpu_flags);
        decide(&r);
        status = compare_all(&r, err);
    }
    for (size_t i = 0; r.flights != NULL && i < n; i++)
        free(r.flights[i]);
    free(r.flights);
    free(r.columns);
    free(r.mine);
    return status;
}
