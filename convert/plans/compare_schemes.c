/* Strips, taken in order by threads, and every scheme on each. */
#include "convert/plans/compare_schemes.h"

#include "common/checked.h"
#include "common/parts_job.h"
#include "convert/plans/ct_plan.h"
#include "formats/model/expert_stacks.h"
#include "quantize/fp8_block.h"
#include "quantize/mx_weight.h"

#include <stdlib.h>
#include <string.h>

enum { STRIP_ROWS = 128 };

enum { BLOCKS = -1, GROUPS = -2 };

static const struct scheme {
    const char *name, *options;
    int form;            /* a tsr_ct_form, BLOCKS, or GROUPS */
    tsr_fp8_block fp8;   /* block_cols 0: a row */
    tsr_int_scheme ints; /* TSR_CT_W8A8, TSR_CT_PACKED */
    tsr_mx_kind mx;      /* GROUPS */
} kSchemes[TSR_SCHEMES] = {
    [TSR_SCHEME_FP8_BLOCK] = {"fp8-block", "--scheme fp8-block", BLOCKS, .fp8 = {.block_rows = 128, .block_cols = 128}},
    [TSR_SCHEME_FP8_BLOCK_UE8M0] = {"fp8-block, ue8m0", "--scheme fp8-block --scale-fmt ue8m0", BLOCKS,
                                    .fp8 = {.block_rows = 128, .block_cols = 128, .scale_fmt = TSR_SCALE_UE8M0}},
    [TSR_SCHEME_FP8_BLOCK_MSE] = {"fp8-block, mse", "--scheme fp8-block --scales mse", BLOCKS,
                                  .fp8 = {.block_rows = 128, .block_cols = 128, .search = true}},
    [TSR_SCHEME_FP8_CHANNEL] = {"fp8-channel", "--scheme fp8-channel", TSR_CT_FP8, .fp8 = {.block_rows = 1}},
    [TSR_SCHEME_INT8_CHANNEL] = {"int8-channel", "--scheme int8-channel", TSR_CT_W8A8,
                                 .ints = {.bits = 8, .divisor = 127.5f, .scale_dtype = TSR_F32}},
    [TSR_SCHEME_INT8_WEIGHT_ONLY] = {"int8-weight-only", "--scheme int8-weight-only", TSR_CT_PACKED,
                                     .ints = {.bits = 8, .divisor = 127.5f, .scale_dtype = TSR_BF16}},
    [TSR_SCHEME_INT8_GROUP_128] = {"int8, groups of 128", "--scheme int8-weight-only --group-size 128", TSR_CT_PACKED,
                                   .ints = {.bits = 8, .group = 128, .divisor = 127.5f, .scale_dtype = TSR_BF16}},
    [TSR_SCHEME_INT4_GROUP_32] = {"int4, groups of 32", "--scheme int4-weight-only --group-size 32", TSR_CT_PACKED,
                                  .ints = {.bits = 4, .group = 32, .divisor = 7.5f, .scale_dtype = TSR_BF16}},
    [TSR_SCHEME_INT4_GROUP_64] = {"int4, groups of 64", "--scheme int4-weight-only --group-size 64", TSR_CT_PACKED,
                                  .ints = {.bits = 4, .group = 64, .divisor = 7.5f, .scale_dtype = TSR_BF16}},
    [TSR_SCHEME_INT4_GROUP_128] = {"int4, groups of 128", "--scheme int4-weight-only", TSR_CT_PACKED,
                                   .ints = {.bits = 4, .group = 128, .divisor = 7.5f, .scale_dtype = TSR_BF16}},
    [TSR_SCHEME_INT4_GROUP_128_ASYMMETRIC] =
        {"int4, groups of 128, zero points", "--scheme int4-weight-only --zero-points", TSR_CT_PACKED,
         .ints = {.bits = 4, .group = 128, .asymmetric = true, .scale_dtype = TSR_BF16}},
    [TSR_SCHEME_INT4_CHANNEL] = {"int4-channel", "--scheme int4-weight-only --group-size 0", TSR_CT_PACKED,
                                 .ints = {.bits = 4, .divisor = 7.5f, .scale_dtype = TSR_BF16}},
    [TSR_SCHEME_NVFP4] = {"nvfp4-weight-only", "--scheme nvfp4-weight-only", GROUPS, .mx = TSR_NVFP4},
    [TSR_SCHEME_MXFP4] = {"mxfp4-weight-only", "--scheme mxfp4-weight-only", GROUPS, .mx = TSR_MXFP4},
    [TSR_SCHEME_MXFP8] = {"mxfp8", "--scheme mxfp8", GROUPS, .mx = TSR_MXFP8},
};

const char *tsr_scheme_name(tsr_scheme scheme)
{
    return kSchemes[scheme].name;
}

const char *tsr_scheme_options(tsr_scheme scheme)
{
    return kSchemes[scheme].options;
}

tsr_scheme_kind tsr_scheme_kind_of(tsr_scheme scheme)
{
    const struct scheme *const s = &kSchemes[scheme];
    if (s->form == GROUPS)
        return s->mx == TSR_MXFP8 ? TSR_W8A8 : TSR_W4A16;
    return s->form != TSR_CT_PACKED ? TSR_W8A8 : s->ints.bits == 8 ? TSR_W8A16 : TSR_W4A16;
}

/* ---- what a scheme makes of a tensor ---- */

typedef struct matrix {
    uint64_t matrices, rows, cols;
} matrix;

static matrix matrix_of(const tsr_tensor *t)
{
    return (matrix){t->rank == 3 ? t->shape[0] : 1, t->shape[t->rank - 2], t->shape[t->rank - 1]};
}

static bool is_fp8(const struct scheme *s)
{
    return s->form == BLOCKS || s->form == TSR_CT_FP8;
}

/* How many tensors quantize makes of each matrix: only block FP8 keeps a stack of experts, the others take gate and up
 * of each expert apart (convert/plans/split_plan.h). */
static unsigned parts_of(const struct scheme *s, const tsr_tensor *t)
{
    const tsr_stack *const stack = s->form == BLOCKS || t->rank != 3 ? NULL : tsr_stack_find(t->name);
    return stack == NULL || t->shape[1] % tsr_stack_projections(stack) != 0 ? 1 : tsr_stack_projections(stack);
}

/* All matrices of a tensor one below the other. */
static tsr_tensor flat(const tsr_tensor *t)
{
    const matrix m = matrix_of(t);
    tsr_tensor rows = *t;
    rows.rank = 2;
    rows.shape[0] = m.matrices * m.rows;
    rows.shape[1] = m.cols;
    return rows;
}

static tsr_mx_scheme groups_of(const struct scheme *s)
{
    return tsr_mx_scheme_of(s->mx, TSR_MX_COMPRESSED_TENSORS);
}

unsigned tsr_scheme_taken_bit(tsr_scheme scheme)
{
    static const unsigned kGroups[] = {
        [TSR_MXFP4] = TSR_TAKEN_AS_MXFP4, [TSR_MXFP8] = TSR_TAKEN_AS_MXFP8, [TSR_NVFP4] = TSR_TAKEN_AS_NVFP4};
    const struct scheme *const s = &kSchemes[scheme];
    return s->form == GROUPS       ? kGroups[s->mx]
           : s->form == BLOCKS     ? TSR_TAKEN_IN_BLOCKS
           : s->form == TSR_CT_FP8 ? TSR_TAKEN_IN_FP8_ROWS
           : s->ints.bits == 4     ? TSR_TAKEN_AS_INT4
                                   : TSR_TAKEN_AS_INT8;
}

static bool takes(tsr_scheme scheme, const tsr_checkpoint *c, const tsr_tensor *t, const tsr_compare_schemes_options *o,
                  unsigned taken)
{
    const struct scheme *const s = &kSchemes[scheme];
    if ((o->schemes != 0 && (o->schemes >> scheme & 1) == 0) || (taken & tsr_scheme_taken_bit(scheme)) == 0)
        return false;
    if (s->form == BLOCKS)
        return true;
    if (t->rank == 3 && tsr_stack_find(t->name) == NULL)
        return false;
    tsr_tensor rows = flat(t);
    if (t->rank == 3)
        rows.name = "experts.0.weight"; /* as each expert's own tensors end, whatever the stack is called */
    if (s->form == GROUPS)              /* any matrix, as e4m3 by row, of whole groups */
        return tsr_ct_takes(c, &rows, TSR_CT_FP8, &s->ints) && rows.shape[1] % groups_of(s).group == 0;
    return tsr_ct_takes(c, &rows, (tsr_ct_form)s->form, &s->ints);
}

static uint64_t bytes_of(const struct scheme *s, const tsr_tensor *t)
{
    const unsigned parts = parts_of(s, t);
    const matrix whole = matrix_of(t), one = {whole.matrices * parts, whole.rows / parts, whole.cols}, *const m = &one;
    const uint64_t n = m->rows * m->cols;
    if (s->form == GROUPS) {
        const tsr_mx_scheme mx = groups_of(s);
        return m->matrices * (m->rows * (tsr_mx_code_bytes(mx.element, m->cols) + m->cols / mx.group) +
                              (mx.scale == TSR_MX_E8M0 ? 0 : sizeof(float)));
    }
    if (is_fp8(s)) {
        const uint64_t width = s->fp8.block_cols == 0 ? m->cols : s->fp8.block_cols;
        return m->matrices *
               (n + tsr_ceil_div(m->rows, s->fp8.block_rows) * tsr_ceil_div(m->cols, width) * sizeof(float));
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

typedef struct worker {
    const struct run *run;
    void *x, *scratch;
    int8_t *codes, *zero_points;
    float *scales;
} worker;

/* Bytes of a worker's buffers, for the largest of the tensors. */
typedef struct sizes {
    uint64_t x, scratch, codes, scales;
} sizes;

static uint64_t scratch_of(const tsr_tensor *t, const matrix *m)
{
    uint64_t most = 0;
    for (tsr_scheme i = 0; i < TSR_SCHEMES; i++) {
        tsr_fp8_block fp8 = kSchemes[i].fp8;
        fp8.block_cols = fp8.block_cols == 0 ? (uint32_t)m->cols : fp8.block_cols;
        const tsr_mx_scheme mx = groups_of(&kSchemes[i]);
        most = tsr_max_u64(most, kSchemes[i].form == GROUPS ? tsr_mx_scratch(&mx, m->cols)
                                 : is_fp8(&kSchemes[i])     ? tsr_fp8_block_scratch(&fp8, (tsr_dtype)t->dtype)
                                                            : tsr_int_scratch(&kSchemes[i].ints, m->cols));
    }
    return most;
}

static sizes sizes_of(const tsr_tensor *const *tensors, size_t n)
{
    sizes s = {0};
    for (size_t i = 0; i < n; i++) {
        const matrix m = matrix_of(tensors[i]);
        const uint64_t elements = tsr_min_u64(STRIP_ROWS, m.rows) * m.cols;
        s.x = tsr_max_u64(s.x, elements * tsr_dtype_bytes((tsr_dtype)tensors[i]->dtype));
        s.codes = tsr_max_u64(s.codes, elements);
        s.scales = tsr_max_u64(s.scales, tsr_min_u64(STRIP_ROWS, m.rows) * (m.cols / 32 + 1));
        s.scratch = tsr_max_u64(s.scratch, scratch_of(tensors[i], &m));
    }
    return s;
}

static tsr_status quantize_blocks(const struct scheme *s, const tsr_cpu_kernels *k, const worker *w,
                                  const tsr_tensor *t, const strip *at, tsr_quant_stats *stats, tsr_err *err)
{
    const matrix m = matrix_of(t);
    tsr_fp8_block scheme = s->fp8;
    scheme.block_cols = scheme.block_cols == 0 ? (uint32_t)m.cols : scheme.block_cols;
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
                                   .scratch = w->scratch};
        TSR_TRY(tsr_fp8_block_quantize(&scheme, k, &band, stats, err));
    }
    return TSR_OK;
}

/* *refused: the weights are numbers, but readers would find infinity in a code. */
static tsr_status quantize_groups(const struct scheme *s, const tsr_cpu_kernels *k, const worker *w,
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
static tsr_status quantize_strip(const tsr_cpu_kernels *k, const worker *w, const tsr_tensor *t, const strip *at,
                                 const tsr_scheme_cost costs[TSR_SCHEMES], tsr_quant_stats stats[TSR_SCHEMES],
                                 unsigned *refused, tsr_err *err)
{
    const tsr_tensor one_below_the_other = flat(t);
    const tsr_int_rows rows = {.tensor = &one_below_the_other,
                               .row = at->matrix * matrix_of(t).rows + at->row,
                               .rows = at->rows,
                               .x = w->x,
                               .codes = w->codes,
                               .scales = w->scales,
                               .zero_points = w->zero_points,
                               .scratch = w->scratch};
    for (tsr_scheme i = 0; i < TSR_SCHEMES; i++) {
        stats[i] = (tsr_quant_stats){0};
        if (!costs[i].taken)
            continue;
        bool cannot = false;
        TSR_TRY(kSchemes[i].form == GROUPS ? quantize_groups(&kSchemes[i], k, w, t, at, &stats[i], &cannot, err)
                : is_fp8(&kSchemes[i])     ? quantize_blocks(&kSchemes[i], k, w, t, at, &stats[i], err)
                                           : tsr_int_quantize(&kSchemes[i].ints, k, &rows, &stats[i], err));
        *refused |= (unsigned)cannot << i;
    }
    return TSR_OK;
}

/* ---- threads ---- */

/* What a strip comes to. */
typedef struct sums {
    tsr_quant_stats stats[TSR_SCHEMES];
    unsigned refused; /* bits of the schemes that cannot hold it */
} sums;

/* A tensor whose strips are under way: their sums, added when all are there. */
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
    sizes sizes;
    flight **flights; /* [n]; NULL when not in flight */
    size_t next_tensor;
    uint64_t next_strip;
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

/* The next strip in order. */
static tsr_status take_strip(void *job, tsr_job_part *part, bool *taken, tsr_err *err)
{
    run *const r = job;
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
    unsigned refused = 0;
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

static void end_worker(void *hand)
{
    worker *const w = hand;
    free(w->x);
    free(w->scratch);
    free(w->codes);
    free(w->zero_points);
    free(w->scales);
    free(w);
}

static void *begin_worker(void *job)
{
    const run *const r = job;
    worker *const w = malloc(sizeof *w);
    if (w == NULL)
        return NULL;
    *w = (worker){.run = r,
                  .x = malloc(r->sizes.x + 64),
                  .scratch = malloc(r->sizes.scratch + 64),
                  .codes = malloc(r->sizes.codes + 64),
                  .zero_points = malloc(r->sizes.scales + 64),
                  .scales = malloc((r->sizes.scales + 64) * sizeof(float))};
    if (w->x != NULL && w->scratch != NULL && w->codes != NULL && w->zero_points != NULL && w->scales != NULL)
        return w;
    end_worker(w);
    return NULL;
}

static tsr_status make_strip(void *hand, const tsr_job_part *part, void *result, tsr_err *err)
{
    const worker *const w = hand;
    const run *const r = w->run;
    sums *const s = result;
    if (part->item >= r->n)
        return tsr_fail(err, TSR_E_MISMATCH, "rank 0 asks for a tensor that was not chosen");
    const tsr_tensor *const t = r->tensors[part->item];
    const matrix m = matrix_of(t);
    if (part->number >= strips_of(&m))
        return tsr_fail(err, TSR_E_MISMATCH, "rank 0 asks for a strip that '%s' has not", t->name);
    const strip at = strip_at(r, part);
    const uint64_t row_bytes = m.cols * tsr_dtype_bytes((tsr_dtype)t->dtype);
    TSR_TRY(tsr_checkpoint_read(r->c, t, (at.matrix * m.rows + at.row) * row_bytes, w->x, at.rows * row_bytes, err));
    return quantize_strip(&r->kernels, w, t, &at, &r->costs[at.tensor * TSR_SCHEMES], s->stats, &s->refused, err);
}

/* ---- the whole ---- */

/* What each scheme takes, and at which price in bytes. */
static void decide(run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const tsr_tensor *const t = r->tensors[i];
        r->progress.bytes_total += t->bytes;
        for (tsr_scheme s = 0; s < TSR_SCHEMES; s++) {
            const bool taken = takes(s, r->c, t, r->options, r->options->taken == NULL ? ~0u : r->options->taken[i]);
            r->costs[i * TSR_SCHEMES + s] =
                (tsr_scheme_cost){.taken = taken, .bytes = taken ? bytes_of(&kSchemes[s], t) : t->bytes};
        }
    }
}

/* The same for all who see the same checkpoint, and have chosen the same tensors. */
static uint64_t fingerprint(const run *r)
{
    uint64_t hash = tsr_checkpoint_fingerprint(r->c, r->n);
    for (size_t i = 0; i < r->n; i++)
        hash = 31 * hash + (uint64_t)(r->tensors[i] - r->c->tensors.items);
    return hash;
}

static tsr_status compare_all(run *r, tsr_err *err)
{
    const tsr_parts_job job = {
        .job = r,
        .result_bytes = sizeof(sums),
        .options = &r->options->run,
        .progress = &r->progress,
        .take = take_strip,
        .add = add_strip,
        .begin = begin_worker,
        .end = end_worker,
        .make = make_strip,
    };
    const uint64_t each = r->sizes.x + r->sizes.scratch + r->sizes.codes + 5 * r->sizes.scales;
    const uint64_t fixed = tsr_checkpoint_memory(r->c) + r->n * TSR_SCHEMES * sizeof *r->costs;
    unsigned threads;
    TSR_TRY(tsr_choose_threads(&r->options->run, fixed, each, &threads, err));
    return tsr_parts_job_run(&job, threads, r->options->ranks, r->options->ranks == NULL ? 0 : fingerprint(r), err);
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
             .flights = calloc(n + 1, sizeof *r.flights)};
    if (r.flights == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tensors", n);
    tsr_cpu_kernels_init(&r.kernels, options->cpu_flags);
    decide(&r);
    const tsr_status status = compare_all(&r, err);
    for (size_t i = 0; i < n; i++)
        free(r.flights[i]);
    free(r.flights);
    return status;
}
