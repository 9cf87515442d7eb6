/* Strips, taken in order by threads, and every scheme on each. */
#include "convert/plans/compare_schemes.h"

#include "common/checked.h"
#include "common/first_failure.h"
#include "common/threads.h"
#include "convert/plans/ct_plan.h"
#include "formats/model/expert_stacks.h"
#include "quantize/fp8_block.h"
#include "quantize/mx_weight.h"
#include "quantize/policy.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

tsr_status tsr_schemes_decide(const tsr_checkpoint *c, const char *model_type, uint8_t *taken, tsr_arena *arena,
                              tsr_err *err)
{
    static const struct {
        tsr_policy_options policy;
        uint8_t taken;
    } kForms[] = {
        {{.block_rows = 128}, TSR_TAKEN_IN_BLOCKS},
        {{.block_rows = 1}, TSR_TAKEN_IN_FP8_ROWS},
        {{.block_rows = 1, .not_fp8 = true}, TSR_TAKEN_AS_INT8},
        {{.block_rows = 1, .not_fp8 = true, .four_bits = true}, TSR_TAKEN_AS_INT4},
        {{.block_rows = 1, .group = 16, .not_fp8 = true, .four_bits = true}, TSR_TAKEN_AS_NVFP4},
        {{.block_rows = 1, .group = 32, .not_fp8 = true, .four_bits = true}, TSR_TAKEN_AS_MXFP4},
        {{.block_rows = 1, .group = 32}, TSR_TAKEN_AS_MXFP8},
    };
    tsr_decision *const decisions = calloc(c->tensors.count + 1, sizeof *decisions);
    tsr_status status = decisions == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    memset(taken, 0, c->tensors.count);
    for (size_t f = 0; f < sizeof kForms / sizeof *kForms && status == TSR_OK; f++) {
        status = tsr_policy_decide(c, model_type, &kForms[f].policy, arena, decisions, err);
        for (size_t i = 0; i < c->tensors.count; i++)
            taken[i] |= decisions[i].treatment == TSR_QUANTIZE ? kForms[f].taken : 0;
    }
    free(decisions);
    return status;
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

/* A tensor whose strips are under way: their sums, added when all are there. */
typedef struct flight {
    uint64_t strips, left;
    tsr_quant_stats *sums; /* [strips][TSR_SCHEMES] */
    unsigned refused;      /* bits of the schemes that cannot hold it */
} flight;

typedef struct run {
    const tsr_checkpoint *c;
    const tsr_tensor *const *tensors;
    size_t n;
    const tsr_compare_schemes_options *options;
    tsr_scheme_cost *costs;
    tsr_cpu_kernels kernels;
    sizes sizes;

    pthread_mutex_t lock; /* guards all that follows */
    flight *flights;      /* [n] */
    size_t next_tensor;
    uint64_t next_strip;
    tsr_first_failure failure;
    tsr_progress progress;
    struct timespec began;
} run;

static uint64_t strips_of(const matrix *m)
{
    return m->matrices * tsr_ceil_div(m->rows, STRIP_ROWS);
}

/* The next strip in order; false when there is none left, or the run has failed. */
static bool take(run *r, strip *at, uint64_t *index)
{
    tsr_err err = {{0}};
    tsr_status status = TSR_OK;
    pthread_mutex_lock(&r->lock);
    bool taken = r->failure.status == TSR_OK && r->next_tensor < r->n;
    if (taken && tsr_is_cancelled(r->options->run.cancel))
        status = tsr_fail(&err, TSR_E_CANCELLED, "interrupted");
    if (taken && status == TSR_OK) {
        const matrix m = matrix_of(r->tensors[r->next_tensor]);
        flight *const f = &r->flights[r->next_tensor];
        if (f->sums == NULL) {
            f->strips = f->left = strips_of(&m);
            f->sums = calloc(f->strips * TSR_SCHEMES, sizeof *f->sums);
        }
        if (f->sums == NULL)
            status =
                tsr_fail(&err, TSR_E_NOMEM, "out of memory for the sums of '%s'", r->tensors[r->next_tensor]->name);
        const uint64_t down = tsr_ceil_div(m.rows, STRIP_ROWS);
        *index = r->next_strip++;
        *at = (strip){.tensor = r->next_tensor, .matrix = *index / down, .row = *index % down * STRIP_ROWS};
        at->rows = tsr_min_u64(STRIP_ROWS, m.rows - at->row);
        if (r->next_strip == f->strips) {
            r->next_tensor++;
            r->next_strip = 0;
        }
    }
    /* Before the lock is released: what was only half begun is for nobody else to take. */
    tsr_note_failure(&r->failure, status, &err);
    pthread_mutex_unlock(&r->lock);
    return taken && status == TSR_OK;
}

/* Called with the lock held. */
static void finish(run *r, size_t tensor)
{
    flight *const f = &r->flights[tensor];
    for (uint64_t s = 0; s < f->strips; s++) {
        for (tsr_scheme i = 0; i < TSR_SCHEMES; i++)
            tsr_quant_stats_add(&r->costs[tensor * TSR_SCHEMES + i].stats, &f->sums[s * TSR_SCHEMES + i]);
    }
    for (tsr_scheme i = 0; i < TSR_SCHEMES; i++) {
        if ((f->refused >> i & 1) != 0)
            r->costs[tensor * TSR_SCHEMES + i] = (tsr_scheme_cost){.bytes = r->tensors[tensor]->bytes};
    }
    free(f->sums);
    f->sums = NULL;
}

static tsr_status do_strip(run *r, const worker *w, const strip *at, uint64_t index, tsr_err *err)
{
    const tsr_tensor *const t = r->tensors[at->tensor];
    const matrix m = matrix_of(t);
    const uint64_t row_bytes = m.cols * tsr_dtype_bytes((tsr_dtype)t->dtype);
    TSR_TRY(tsr_checkpoint_read(r->c, t, (at->matrix * m.rows + at->row) * row_bytes, w->x, at->rows * row_bytes, err));
    unsigned refused = 0;
    TSR_TRY(quantize_strip(&r->kernels, w, t, at, &r->costs[at->tensor * TSR_SCHEMES],
                           r->flights[at->tensor].sums + index * TSR_SCHEMES, &refused, err));
    pthread_mutex_lock(&r->lock);
    r->flights[at->tensor].refused |= refused;
    r->progress.bytes_done += at->rows * row_bytes;
    if (--r->flights[at->tensor].left == 0)
        finish(r, at->tensor);
    pthread_mutex_unlock(&r->lock);
    return TSR_OK;
}

static void *work(void *argument)
{
    run *const r = argument;
    tsr_err err = {{0}};
    strip at;
    uint64_t index;
    worker w = {.x = malloc(r->sizes.x + 64),
                .scratch = malloc(r->sizes.scratch + 64),
                .codes = malloc(r->sizes.codes + 64),
                .zero_points = malloc(r->sizes.scales + 64),
                .scales = malloc((r->sizes.scales + 64) * sizeof(float))};
    const bool ready = w.x != NULL && w.scratch != NULL && w.codes != NULL && w.zero_points != NULL && w.scales != NULL;
    if (!ready)
        tsr_note_failure_locking(&r->failure, &r->lock, TSR_E_NOMEM, &(tsr_err){"out of memory for a worker"});
    while (ready && take(r, &at, &index)) {
        const tsr_status status = do_strip(r, &w, &at, index, &err);
        tsr_note_failure_locking(&r->failure, &r->lock, status, &err);
    }
    free(w.x);
    free(w.scratch);
    free(w.codes);
    free(w.zero_points);
    free(w.scales);
    return NULL;
}

static void tell_progress(void *context)
{
    run *const r = context;
    pthread_mutex_lock(&r->lock);
    const tsr_progress now = r->progress;
    pthread_mutex_unlock(&r->lock);
    tsr_tell_progress(&r->options->run, &now, &r->began);
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
             .lock = PTHREAD_MUTEX_INITIALIZER};
    clock_gettime(CLOCK_MONOTONIC, &r.began);
    tsr_cpu_kernels_init(&r.kernels, options->cpu_flags);
    const uint64_t each = r.sizes.x + r.sizes.scratch + r.sizes.codes + 5 * r.sizes.scales;
    const uint64_t fixed = tsr_checkpoint_memory(checkpoint) + n * TSR_SCHEMES * sizeof *costs;
    unsigned threads;
    TSR_TRY(tsr_choose_threads(&options->run, fixed, each, &threads, err));
    r.flights = calloc(n + 1, sizeof *r.flights);
    if (r.flights == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        r.progress.bytes_total += tensors[i]->bytes;
        for (tsr_scheme s = 0; s < TSR_SCHEMES; s++) {
            const bool taken =
                takes(s, checkpoint, tensors[i], options, options->taken == NULL ? ~0u : options->taken[i]);
            costs[i * TSR_SCHEMES + s] = (tsr_scheme_cost){
                .taken = taken, .bytes = taken ? bytes_of(&kSchemes[s], tensors[i]) : tensors[i]->bytes};
        }
    }
    if (tsr_run_threads(threads, work, tell_progress, &r) == 0)
        tsr_note_failure(&r.failure, TSR_E_NOMEM, &(tsr_err){"cannot start a thread"});
    for (size_t i = 0; i < n; i++)
        free(r.flights[i].sums);
    free(r.flights);
    TSR_TRY(tsr_return_failure(&r.failure, err));
    tell_progress(&r); /* that all is done, even if it was done before anybody was told */
    return TSR_OK;
}
