/* Runs numbered jobs, and makes selections that depend only on the seed. */
#include "verify/evidence/jobs.h"

#include "common/checked.h"
#include "common/glob.h"
#include "common/parallel/parallel_for.h"
#include "common/parallel/threads.h"
#include "verify/evidence/activations.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct jobs {
    tsr_job_fn *job;
    void *context;
    tsr_evidence *results; /* [n] */
    const tsr_run_options *run;
    size_t n, done;
    double began;
    pthread_mutex_t lock; /* guards `done` and progress reports */
} jobs;

tsr_kernel_limits tsr_kernel_limits_defaults(void)
{
    return (tsr_kernel_limits){.max_kernel_error = 1, .max_kernel_rms = 2, .max_kernel_bias = 6, .min_sqnr = NAN};
}

void tsr_lap(tsr_evidence *evidence, tsr_phase phase, double *since)
{
    const double now = tsr_now();
    evidence->phases[phase] += now - *since;
    *since = now;
}

/* Returns true if a name is selected by the options. */
static bool is_selected(const tsr_kernel_options *options, const char *name)
{
    return options->n_globs == 0 || tsr_glob_find(options->globs, options->n_globs, name) != NULL;
}

bool tsr_has_small_groups(const tsr_weight *w)
{
    return w->kind != NULL && w->kind->family == TSR_FAMILY_MX;
}

const char *tsr_without_kernels(const tsr_weight *w)
{
    switch (w->coding) {
    case TSR_CODED_E2M1:
        return w->global_scale != NULL ? "no kernels are available for NVFP4 here"
                                       : "no kernels are available for MXFP4 here";
    case TSR_CODED_NIBBLES:
        return "no kernels are available for int4 of SGLang here";
    case TSR_CODED_E2M3:
    case TSR_CODED_E3M2:
        return "no kernels are available for MXFP6 here";
    case TSR_CODED_AWQ:
        return "no kernels are available for codes in AWQ's order";
    case TSR_CODED_GPTQ:
        return "no kernels are available for codes in GPTQ's order";
    default:
        return tsr_has_small_groups(w) ? "no kernels are available for MXFP8 here" : NULL;
    }
}

tsr_status tsr_find_subjects(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices,
                             size_t *n, tsr_evidence *evidence, tsr_err *err)
{
    const tsr_weights *const weights = options->side.weights;
    const tsr_checkpoint *const inputs = options->activations;
    *n = 0;
    *indices = malloc(weights->count * sizeof **indices + 1);
    if (*indices == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the tensors to check");
    for (size_t i = 0; i < weights->count; i++) {
        const char *const name = weights->items[i].values->name;
        const char *why = is_selected(options, name) ? subjects->unfit(&weights->items[i]) : "";
        if (why == NULL && subjects->need_inputs && inputs != NULL && tsr_activations_find(inputs, name) == NULL)
            why = "the file of activations has none for it";
        if (why == NULL)
            (*indices)[(*n)++] = i;
        else if (*why != '\0')
            TSR_TRY(tsr_evidence_skip(evidence, name, why, err));
    }
    const tsr_status none = inputs == NULL ? TSR_E_NOT_APPLICABLE : TSR_E_UNSUPPORTED;
    if (*n == 0 && evidence->n_skipped > 0)
        return tsr_fail(err, none, "%s: no %s that could be checked; skipped %s: %s", options->side.checkpoint->path,
                        subjects->kind, evidence->skipped[0].subject, evidence->skipped[0].why);
    if (*n == 0)
        return tsr_fail(err, none, "%s: no %s%s", options->side.checkpoint->path, subjects->kind,
                        options->n_globs > 0 ? " matches --tensors" : "");
    return TSR_OK;
}

tsr_status tsr_subjects_exist(const tsr_kernel_options *options, const tsr_subjects *subjects, tsr_err *err)
{
    tsr_kernel_options whatever_inputs = *options;
    tsr_evidence evidence = {0};
    size_t *indices, n;
    whatever_inputs.activations = NULL;
    tsr_status status = tsr_find_subjects(&whatever_inputs, subjects, &indices, &n, &evidence, err);
    for (size_t i = 0; status == TSR_OK && options->against != NULL && i < n; i++) {
        const tsr_weight *original;
        status = tsr_find_original(options->against, &options->side.weights->items[indices[i]], &original, err);
    }
    free(indices);
    tsr_evidence_free(&evidence);
    return status;
}

/* Finds jobs like tsr_find_subjects, but keeps only options->sample of them. */
static tsr_status find_jobs(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices,
                            size_t *n, tsr_evidence *evidence, tsr_err *err)
{
    TSR_TRY(tsr_find_subjects(options, subjects, indices, n, evidence, err));
    evidence->candidates = *n;
    evidence->subjects = *n = tsr_sample(options, *indices, *n);
    return TSR_OK;
}

size_t tsr_sample(const tsr_kernel_options *options, size_t *items, size_t n)
{
    uint64_t wanted = options->sample;
    size_t kept = 0;
    if (wanted == 0 || wanted >= n)
        return n;
    /* Selection sampling: an item is taken with probability (still needed) / (items left). */
    for (size_t i = 0; wanted > 0; i++) {
        if (tsr_mix_bits(options->seed ^ tsr_mix_bits(i)) % (n - i) < wanted) {
            items[kept++] = items[i];
            wanted--;
        }
    }
    return kept;
}

static tsr_status run_job(void *context, size_t at, size_t worker, tsr_err *err)
{
    jobs *const j = context;
    (void)worker;
    TSR_TRY(j->job(j->context, at, &j->results[at], err));
    if (j->run->progress == NULL)
        return TSR_OK;
    pthread_mutex_lock(&j->lock);
    j->done++;
    const tsr_progress progress = {
        .items_done = j->done, .items_total = j->n, .items = "tensors", .seconds = tsr_now() - j->began};
    j->run->progress(&progress, j->run->progress_data);
    pthread_mutex_unlock(&j->lock);
    return TSR_OK;
}

tsr_status tsr_run_jobs(const tsr_kernel_options *options, size_t n, tsr_job_fn *job, void *context,
                        tsr_evidence *evidence, tsr_err *err)
{
    const double began = tsr_now();
    jobs all = {.job = job,
                .context = context,
                .results = calloc(n + 1, sizeof *all.results),
                .run = &options->run,
                .n = n,
                .began = began,
                .lock = PTHREAD_MUTEX_INITIALIZER};
    if (all.results == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu results", n);
    tsr_status status = tsr_parallel_for(n, options->run.threads, options->run.cancel, run_job, &all, err);
    for (size_t i = 0; i < n; i++) {
        tsr_err join_err = {0};
        const tsr_status joined = tsr_evidence_join(evidence, &all.results[i], &join_err);
        if (joined != TSR_OK && status == TSR_OK) {
            status = joined;
            if (err != NULL)
                *err = join_err;
        }
    }
    free(all.results);
    evidence->seconds += tsr_now() - began;
    return status;
}

tsr_status tsr_jobs_require(const tsr_kernel_options *options, const tsr_evidence *evidence, tsr_err *err)
{
    const tsr_status status = tsr_evidence_require(evidence, true, options->side.checkpoint->path, err);
    const bool only_skipped = evidence->count == 0 && evidence->n_skipped > 0 && options->activations == NULL;
    return status == TSR_E_UNSUPPORTED && only_skipped ? TSR_E_NOT_APPLICABLE : status;
}

tsr_status tsr_run_check(const tsr_kernel_options *options, const tsr_subjects *subjects, size_t **indices,
                         tsr_job_fn *job, void *context, tsr_evidence *evidence, tsr_err *err)
{
    size_t n = 0;
    tsr_status status = find_jobs(options, subjects, indices, &n, evidence, err);
    if (status == TSR_OK)
        status = tsr_run_jobs(options, n, job, context, evidence, err);
    if (status == TSR_OK)
        status = tsr_jobs_require(options, evidence, err);
    free(*indices);
    *indices = NULL;
    return status;
}

tsr_status tsr_load_piece(tsr_weight_reader *reader, const tsr_side *side, const tsr_weight *weight,
                          const tsr_piece *piece, tsr_view *view, tsr_evidence *evidence, tsr_err *err)
{
    const double began = tsr_now();
    TSR_TRY(tsr_view_init(view, side->checkpoint, weight, err));
    TSR_TRY(tsr_weight_reader_load(reader, view, piece, err));
    evidence->phases[TSR_PHASE_READ] += tsr_now() - began;
    evidence->bytes_read += piece->rows * piece->cols * tsr_view_width(view);
    return TSR_OK;
}

tsr_status tsr_find_original(const tsr_side *against, const tsr_weight *weight, const tsr_weight **original,
                             tsr_err *err)
{
    const tsr_tensor *const t = weight->values;
    *original = tsr_weights_find(against->weights, against->checkpoint, t->name);
    const tsr_tensor *const other = *original == NULL ? NULL : (*original)->values;
    if (other == NULL || !tsr_same_shape(other, t))
        return tsr_fail(err, TSR_E_MISMATCH, "%s: '%s' is missing or has a different shape", against->checkpoint->path,
                        t->name);
    return TSR_OK;
}

/* ---- columns ---- */

tsr_columns tsr_choose_columns(const tsr_kernel_options *options, uint64_t rows, uint64_t block, uint64_t seed)
{
    tsr_columns c = {.rows = rows, .block = block, .blocks = tsr_ceil_div(rows, block), .seed = tsr_mix_bits(seed)};
    c.chosen = options->columns == 0 ? c.blocks : tsr_min_u64(c.blocks, tsr_ceil_div(options->columns, block));
    return c;
}

uint64_t tsr_column_block(const tsr_columns *c, uint64_t i)
{
    /* One block from each of `chosen` equal ranges. */
    const uint64_t begin = i * c->blocks / c->chosen, end = (i + 1) * c->blocks / c->chosen;
    return begin + tsr_mix_bits(c->seed + i) % (end - begin);
}

uint64_t tsr_columns_count(const tsr_columns *c)
{
    const uint64_t last = tsr_column_block(c, c->chosen - 1) * c->block;
    return (c->chosen - 1) * c->block + tsr_min_u64(c->block, c->rows - last);
}

uint64_t tsr_column_of(const tsr_columns *c, uint64_t j)
{
    return tsr_column_block(c, j / c->block) * c->block + j % c->block;
}

/* Two matrices [m][n] in tiles, row by row. */
typedef struct tiling {
    const double *x, *y, *base; /* base: subtracted from both; NULL: none */
    size_t m, n, across;        /* across: tiles in a row of tiles */
    tsr_tile *tiles;
} tiling;

static void fill_tile(const tiling *t, size_t at, tsr_tile *tile)
{
    const size_t row = at / t->across * TSR_TILE, col = at % t->across * TSR_TILE;
    const tsr_tile_metrics place = {.row = row,
                                    .col = col,
                                    .rows = (uint32_t)tsr_min_u64(TSR_TILE, t->m - row),
                                    .cols = (uint32_t)tsr_min_u64(TSR_TILE, t->n - col)};
    double x[TSR_TILE], y[TSR_TILE];
    tsr_tile_begin(tile, &place, t->m, t->n);
    for (uint32_t i = 0; i < place.rows; i++) {
        const size_t from = (row + i) * t->n + col;
        for (uint32_t k = 0; t->base != NULL && k < place.cols; k++) {
            x[k] = t->x[from + k] - t->base[from + k];
            y[k] = t->y[from + k] - t->base[from + k];
        }
        tsr_tile_row(tile, i, t->base != NULL ? x : t->x + from, t->base != NULL ? y : t->y + from);
    }
}

static tiling tiling_of(const double *x, const double *y, size_t m, size_t n)
{
    return (tiling){.x = x, .y = y, .m = m, .n = n, .across = (size_t)tsr_ceil_div(n, TSR_TILE)};
}

static size_t tiles_in(const tiling *t)
{
    return (size_t)tsr_ceil_div(t->m, TSR_TILE) * t->across;
}

void tsr_judge(tsr_judgement *j, const double *x, const double *y, size_t m, size_t n, const tsr_columns *rows,
               const tsr_columns *columns)
{
    const tiling t = tiling_of(x, y, m, n);
    for (size_t i = 0; i < tiles_in(&t); i++) {
        tsr_tile tile;
        fill_tile(&t, i, &tile);
        tsr_tile_end(&tile, &j->metrics);
    }
    if (j->metrics.differ > 0) {
        const uint64_t row = j->metrics.max_abs_at / n, column = j->metrics.max_abs_at % n;
        snprintf(j->worst_at, sizeof j->worst_at, "token %llu, output %llu",
                 (unsigned long long)(rows == NULL ? row : tsr_column_of(rows, row)),
                 (unsigned long long)(columns == NULL ? column : tsr_column_of(columns, column)));
    }
}

static tsr_status fill_one(void *context, size_t i, size_t worker, tsr_err *err)
{
    const tiling *const t = context;
    (void)worker, (void)err;
    fill_tile(t, i, &t->tiles[i]);
    return TSR_OK;
}

tsr_status tsr_measure(tsr_metrics *metrics, const double *x, const double *y, const double *base, size_t m, size_t n,
                       const tsr_run_options *run, tsr_err *err)
{
    tiling t = tiling_of(x, y, m, n);
    t.base = base;
    t.tiles = malloc((tiles_in(&t) + 1) * sizeof *t.tiles);
    if (t.tiles == NULL)
        return tsr_out_of_memory(err, "for judging");
    const tsr_status status = tsr_parallel_for(tiles_in(&t), run->threads, run->cancel, fill_one, &t, err);
    for (size_t i = 0; status == TSR_OK && i < tiles_in(&t); i++)
        tsr_tile_end(&t.tiles[i], metrics);
    free(t.tiles);
    return status;
}

void tsr_limit_rounding(tsr_judgement *j, double limit, char text[TSR_MAX_FAULT])
{
    const double sqnr = tsr_metrics_sqnr(&j->metrics);
    if (!isnan(limit) && !(sqnr >= limit)) {
        snprintf(text, TSR_MAX_FAULT, "SQNR %.2f dB is below %g", sqnr, limit);
        j->fault = text;
    } else if (isnan(limit) && !(j->of_expected <= TSR_MAX_OF_ROUNDING)) {
        snprintf(text, TSR_MAX_FAULT, "the RMS error is %.3g times that of rounding to these scales", j->of_expected);
        j->fault = text;
    }
}
