/* Reads windows of a source in parallel, and sums their digests. */
#include "verify/manifest/check_source.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Size of one read: consecutive rows of one window. */
enum { BUFFER = 1 << 20 };

/* Limit for repeated reads of one tensor; with many ranks, each may read it once. */
enum { MOST_TIMES = 1024 };

typedef struct job {
    const tsr_manifest_sources *sources;
    const tsr_checkpoint *source;
    const tsr_run_options *options;
    size_t *files;  /* [n_inputs]: 1 + number of the file in the source; 0: not read */
    size_t *chosen; /* [n_chosen]: indices of reads */
    size_t n_chosen;
    bool *bad;      /* [n_chosen] */
    char **buffers; /* one per worker */
    pthread_mutex_t lock;
    tsr_progress progress;
    struct timespec began;
} job;

/* ---- reading ---- */

/* Digests `bytes` of a file from `offset` on. */
static tsr_status take(const job *j, const tsr_tensor *place, uint64_t offset, uint64_t bytes, char *buffer,
                       XXH3_state_t *hash, tsr_err *err)
{
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = tsr_min_u64(BUFFER, bytes - at);
        TSR_TRY(tsr_checkpoint_read(j->source, place, offset + at, buffer, n, err));
        (void)XXH3_128bits_update(hash, buffer, n);
    }
    return TSR_OK;
}

static void put(unsigned char *to, uint64_t value, bool highest_first)
{
    for (unsigned i = 0; i < 8; i++)
        to[i] = (unsigned char)(value >> 8 * (highest_first ? 7 - i : i));
}

/* Adds the digest of a window with its position. */
static tsr_status add_window(const job *j, const tsr_manifest_input *in, const tsr_tensor *place,
                             const tsr_manifest_window *w, char *buffer, tsr_manifest_digest *sum, tsr_err *err)
{
    XXH3_state_t hash;
    (void)XXH3_128bits_reset(&hash);
    for (uint64_t row = 0; row < w->rows; row++)
        TSR_TRY(take(j, place, w->offset + row * w->pitch, w->row_bytes, buffer, &hash, err));
    const XXH128_hash_t digest = XXH3_128bits_digest(&hash);
    unsigned char record[32];
    put(record, digest.high64, true);
    put(record + 8, digest.low64, true);
    put(record + 16, w->offset, false);
    put(record + 24, in->number, false);
    const XXH128_hash_t placed = XXH3_128bits(record, sizeof record);
    sum->high += placed.high64;
    sum->low += placed.low64;
    return TSR_OK;
}

static tsr_status take_read(void *context, size_t i, size_t worker, tsr_err *err)
{
    job *const j = context;
    const tsr_manifest_step *const r = &j->sources->reads[j->chosen[i]];
    tsr_manifest_digest sum = {0};
    uint64_t bytes = 0;
    for (size_t k = r->first_input; k < r->first_input + r->n_inputs; k++) {
        const tsr_manifest_input *const in = &j->sources->inputs[k];
        const tsr_tensor place = {.name = in->name, .file = (uint32_t)(j->files[k] - 1)};
        for (size_t n = in->first_window; n < in->first_window + in->n_windows; n++) {
            const tsr_manifest_window *const w = &j->sources->windows[n];
            TSR_TRY(add_window(j, in, &place, w, j->buffers[worker], &sum, err));
            bytes += w->rows * w->row_bytes;
        }
    }
    j->bad[i] = sum.high != r->sum.high || sum.low != r->sum.low;
    pthread_mutex_lock(&j->lock);
    j->progress.bytes_done += bytes;
    tsr_tell_progress(j->options, &j->progress, &j->began);
    pthread_mutex_unlock(&j->lock);
    return TSR_OK;
}

/* ---- planning the reads ---- */

/* Returns 1 + the number of a file of the source; 0: it has none of this name. */
static size_t find_file(const tsr_checkpoint *c, const char *name)
{
    for (size_t i = 0; i < c->n_files + c->n_side_files; i++) {
        if (strcmp(c->files[i].name, name) == 0)
            return i + 1;
    }
    return 0;
}

/* Reports source files that are missing, have another size, or have a header that describes the same bytes
 * differently. */
static tsr_status find_others(tsr_manifest_check *c, const job *j, tsr_err *err)
{
    for (size_t i = 0; i < j->sources->n_files; i++) {
        const tsr_manifest_origin *const f = &j->sources->files[i];
        const size_t number = find_file(j->source, f->name);
        const tsr_file *const there = number == 0 ? NULL : &j->source->files[number - 1];
        const bool sized = there != NULL && there->size == f->bytes;
        const tsr_manifest_finding finding = {.file = f->name,
                                              .fault = there == NULL ? TSR_MANIFEST_MISSING
                                                       : !sized      ? TSR_MANIFEST_SIZE
                                                                     : TSR_MANIFEST_HEADER,
                                              .bytes = there == NULL ? 0 : there->size,
                                              .wanted = f->bytes};
        if (!sized || (f->has_header && number <= j->source->n_files && there->header_hash != f->header))
            TSR_TRY(tsr_manifest_find(c, &finding, err));
    }
    return TSR_OK;
}

/* Compares config.json, which determines how tensors are converted. */
static tsr_status check_config(tsr_manifest_check *c, const job *j, tsr_err *err)
{
    const tsr_checkpoint *const s = j->source;
    if (!j->sources->has_config)
        return TSR_OK;
    tsr_manifest_finding finding = {.file = TSR_CONFIG_NAME, .fault = TSR_MANIFEST_MISSING};
    if (s->config_file.data == NULL)
        return tsr_manifest_find(c, &finding, err);
    const XXH128_hash_t digest = XXH3_128bits(s->config_file.data, s->config_file.size);
    finding.fault = TSR_MANIFEST_READ;
    return digest.high64 == j->sources->config.high && digest.low64 == j->sources->config.low
               ? TSR_OK
               : tsr_manifest_find(c, &finding, err);
}

static bool fits(const job *j, size_t file, const tsr_manifest_input *in)
{
    for (size_t n = in->first_window; n < in->first_window + in->n_windows; n++) {
        const tsr_manifest_window *const w = &j->sources->windows[n];
        if (w->offset + (w->rows - 1) * w->pitch + w->row_bytes > j->source->files[file - 1].size)
            return false;
    }
    return true;
}

/* Returns true if all inputs of a step are in this source and readable. Sets `*other` if one is from another source. */
static bool is_there(job *j, const tsr_manifest_step *r, bool *other)
{
    bool there = true;
    *other = false;
    for (size_t k = r->first_input; k < r->first_input + r->n_inputs; k++) {
        const tsr_manifest_input *const in = &j->sources->inputs[k];
        const bool first = k == 0 || strcmp(in->file, in[-1].file) != 0 || j->files[k - 1] == 0;
        *other = *other || in->source != 0;
        if (in->source == 0)
            j->files[k] = first ? find_file(j->source, in->file) : j->files[k - 1];
        there = there && j->files[k] > 0 && fits(j, j->files[k], in);
    }
    return there && !*other;
}

static void choose(tsr_manifest_check *c, job *j)
{
    for (size_t i = 0; i < j->sources->n_reads; i++) {
        bool other;
        const tsr_manifest_step *const r = &j->sources->reads[i];
        if (is_there(j, r, &other))
            j->chosen[j->n_chosen++] = i;
        c->passed_over += other;
    }
    for (size_t i = 0; i < j->n_chosen; i++) {
        const tsr_manifest_step *const r = &j->sources->reads[j->chosen[i]];
        for (size_t k = r->first_input; k < r->first_input + r->n_inputs; k++) {
            const tsr_manifest_input *const in = &j->sources->inputs[k];
            for (size_t n = in->first_window; n < in->first_window + in->n_windows; n++) {
                const tsr_manifest_window *const w = &j->sources->windows[n];
                if (!tsr_add_u64(j->progress.bytes_total, w->rows * w->row_bytes, &j->progress.bytes_total))
                    j->progress.bytes_total = UINT64_MAX;
            }
        }
    }
}

/* ---- all steps ---- */

static tsr_status read_all(tsr_manifest_check *c, job *j, tsr_err *err)
{
    TSR_TRY(
        tsr_choose_threads(j->options, j->sources->n_windows * sizeof *j->sources->windows, BUFFER, &c->threads, err));
    c->threads = (unsigned)tsr_parallel_workers(j->n_chosen, c->threads);
    j->buffers = calloc(c->threads, sizeof *j->buffers);
    bool ok = j->buffers != NULL;
    for (unsigned i = 0; i < c->threads && ok; i++)
        ok = (j->buffers[i] = malloc(BUFFER)) != NULL;
    tsr_status status = ok ? TSR_OK : tsr_out_of_memory(err, "for reading");
    if (status == TSR_OK)
        status = tsr_parallel_for(j->n_chosen, c->threads, j->options->cancel, take_read, j, err);
    for (unsigned i = 0; j->buffers != NULL && i < c->threads; i++)
        free(j->buffers[i]);
    free(j->buffers);
    return status;
}

static tsr_status run_all(tsr_manifest_check *c, job *j, tsr_err *err)
{
    TSR_TRY(check_config(c, j, err));
    TSR_TRY(find_others(c, j, err));
    choose(c, j);
    c->pieces = j->n_chosen;
    uint64_t all = 0;
    for (size_t i = 0; i < j->source->n_files + j->source->n_side_files; i++)
        all += j->source->files[i].size;
    if (j->progress.bytes_total / MOST_TIMES > all)
        return tsr_fail(err, TSR_E_FORMAT,
                        "invalid manifest: it lists every byte of the source as read more than %d times", MOST_TIMES);
    TSR_TRY(read_all(c, j, err));
    for (size_t i = 0; i < j->n_chosen; i++) {
        const tsr_manifest_step *const r = &j->sources->reads[j->chosen[i]];
        const tsr_manifest_input *const first = &j->sources->inputs[r->first_input];
        const tsr_manifest_finding finding = {
            .fault = TSR_MANIFEST_READ, .file = first->file, .tensor = first->name, .others = r->n_inputs - 1};
        if (j->bad[i])
            TSR_TRY(tsr_manifest_find(c, &finding, err));
    }
    return TSR_OK;
}

tsr_status tsr_source_check_run(tsr_manifest_check *c, const tsr_manifest_sources *sources,
                                const tsr_checkpoint *source, const tsr_run_options *options, tsr_err *err)
{
    job j = {.sources = sources,
             .source = source,
             .options = options,
             .files = calloc(sources->n_inputs + 1, sizeof *j.files),
             .chosen = calloc(sources->n_reads + 1, sizeof *j.chosen),
             .bad = calloc(sources->n_reads + 1, sizeof *j.bad),
             .lock = PTHREAD_MUTEX_INITIALIZER,
             .progress = {.phase = "verifying"}};
    *c = (tsr_manifest_check){.files = sources->n_files};
    clock_gettime(CLOCK_MONOTONIC, &j.began);
    const tsr_status status = j.files == NULL || j.chosen == NULL || j.bad == NULL
                                  ? tsr_out_of_memory(err, "for a manifest")
                                  : run_all(c, &j, err);
    c->bytes_read = j.progress.bytes_done;
    c->seconds = tsr_seconds_since(&j.began);
    free(j.files);
    free(j.chosen);
    free(j.bad);
    return status == TSR_E_CANCELLED ? tsr_fail(err, status, "interrupted") : status;
}
