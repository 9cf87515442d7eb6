/* Reads files in parallel, a run of pieces at a time. */
#include "verify/manifest/check_manifest.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/grow.h"
#include "common/parallel/parallel_for.h"
#include "common/text.h"
#include "formats/checkpoint/listing.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Sizes of a worker's reads and of its runs of pieces; a run has at least one piece. */
enum { PAGE = 4096, BUFFER = 4 << 20, RUN_BYTES = 16 << 20, RUN_PIECES = 4096 };

/* Smaller files are read through the page cache: opening them twice costs more than it gains. */
enum { LARGE = 1 << 20 };

/* Consecutive pieces of one file. */
typedef struct run {
    size_t first, n;
    uint64_t bytes;
} run;

typedef struct job {
    const tsr_manifest *manifest;
    const char *dst;
    const tsr_run_options *options;
    run *runs;
    size_t n_runs;
    bool *bad;      /* [n_pieces] */
    char **buffers; /* one per worker */
    pthread_mutex_t lock;
    tsr_progress progress;
    struct timespec began;
} job;

/* ---- reading ---- */

typedef struct hashing {
    const tsr_manifest_piece *piece, *end;
    bool *bad;
    uint64_t used;
    XXH3_state_t state;
} hashing;

/* Advances to the next piece that has bytes left. */
static void settle(hashing *h)
{
    while (h->piece < h->end && h->used == h->piece->bytes) {
        const XXH128_hash_t hash = XXH3_128bits_digest(&h->state);
        *h->bad = hash.high64 != h->piece->digest.high || hash.low64 != h->piece->digest.low;
        h->piece++;
        h->bad++;
        h->used = 0;
        (void)XXH3_128bits_reset(&h->state);
    }
}

static void consume(hashing *h, const char *data, uint64_t n)
{
    while (n > 0) {
        const uint64_t some = tsr_min_u64(n, h->piece->bytes - h->used);
        (void)XXH3_128bits_update(&h->state, data, some);
        h->used += some;
        data += some;
        n -= some;
        settle(h);
    }
}

/* Reads up to `size` bytes, of which *got are present already. Direct reads return whole pages before the end of the
 * file; a shorter read ends the loop. */
static tsr_status read_some(int fd, bool direct, const char *path, char *buffer, size_t size, uint64_t at, size_t *got,
                            tsr_err *err)
{
    while (*got < size && !(direct && *got % PAGE != 0)) {
        const ssize_t n = pread(fd, buffer + *got, size - *got, (off_t)(at + *got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tsr_fail_errno(err, "%s: cannot read %zu bytes at offset %llu", path, size, U64(at));
        if (n == 0)
            break;
        *got += (size_t)n;
    }
    return TSR_OK;
}

static int open_directly(const char *path, uint64_t bytes)
{
    return bytes < LARGE ? -1 : tsr_open(path, O_RDONLY | O_DIRECT | O_NONBLOCK | O_NOCTTY);
}

static tsr_status read_run(job *j, const run *r, char *buffer, tsr_err *err)
{
    const tsr_manifest_piece *const first = &j->manifest->pieces[r->first];
    const tsr_manifest_file *const file = &j->manifest->files[first->file];
    const uint64_t end = first->offset + r->bytes;
    char path[PATH_MAX];
    uint64_t size;
    int fd;
    TSR_TRY(tsr_join_path(path, j->dst, file->name, err));
    TSR_TRY(tsr_open_input(path, &fd, &size, NULL, err));
    int direct = open_directly(path, file->bytes);
    hashing h = {.piece = first, .end = first + r->n, .bad = j->bad + r->first};
    (void)XXH3_128bits_reset(&h.state);
    settle(&h);
    tsr_status status = TSR_OK;
    for (uint64_t at = first->offset / PAGE * PAGE; at < end && r->bytes > 0 && status == TSR_OK;) {
        const size_t want = (size_t)tsr_min_u64(BUFFER, tsr_round_up(end - at, PAGE));
        size_t got = 0;
        if (direct >= 0 && read_some(direct, true, path, buffer, want, at, &got, NULL) != TSR_OK) {
            close(direct); /* the file system accepts O_DIRECT in open() but not in read() */
            direct = -1;
        }
        status = read_some(fd, false, path, buffer, want, at, &got, err);
        const uint64_t from = tsr_max_u64(at, first->offset), to = tsr_min_u64(at + got, end);
        if (status == TSR_OK && (to <= from || (to < end && got < want)))
            status = tsr_fail(err, TSR_E_IO, "%s: truncated while being read", path);
        if (status == TSR_OK)
            consume(&h, buffer + (from - at), to - from);
        at += got;
    }
    if (direct >= 0)
        close(direct);
    close(fd);
    return status;
}

static tsr_status take_run(void *context, size_t i, size_t worker, tsr_err *err)
{
    job *const j = context;
    TSR_TRY(read_run(j, &j->runs[i], j->buffers[worker], err));
    pthread_mutex_lock(&j->lock);
    j->progress.bytes_done += j->runs[i].bytes;
    tsr_tell_progress(j->options, &j->progress, &j->began);
    pthread_mutex_unlock(&j->lock);
    return TSR_OK;
}

/* ---- findings ---- */

tsr_status tsr_manifest_find(tsr_manifest_check *c, const tsr_manifest_finding *finding, tsr_err *err)
{
    if (!tsr_grow(&c->findings, c->count, &c->capacity, sizeof *c->findings))
        return tsr_out_of_memory(err, "for findings");
    c->findings[c->count++] = *finding;
    return TSR_OK;
}

/* Checks the output's own manifest, if it has one. It may be missing if another manifest is given. */
static tsr_status check_own(tsr_manifest_check *c, const tsr_manifest *manifest, const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    const char *text;
    size_t size;
    tsr_arena scratch = {0};
    TSR_TRY(tsr_join_path(path, dst, TSR_MANIFEST_NAME, err));
    bool exists;
    TSR_TRY(tsr_exists(path, &exists, err));
    if (!exists)
        return TSR_OK;
    tsr_status status = tsr_read_file(path, TSR_MAX_MANIFEST_BYTES, &scratch, &text, &size, err);
    if (status == TSR_OK) {
        const tsr_manifest_digest digest = tsr_manifest_digest_of(text, size);
        if (digest.high != manifest->digest.high || digest.low != manifest->digest.low)
            status = tsr_manifest_find(
                c, &(tsr_manifest_finding){.fault = TSR_MANIFEST_OTHER, .file = TSR_MANIFEST_NAME}, err);
    }
    tsr_arena_free(&scratch);
    return status;
}

/* Plans the reads of a file whose size is right. */
static void plan_file(job *j, const tsr_manifest_file *f)
{
    for (size_t i = f->first_piece; i < f->first_piece + f->n_pieces; i++) {
        run *const last = j->n_runs == 0 ? NULL : &j->runs[j->n_runs - 1];
        const uint64_t bytes = j->manifest->pieces[i].bytes;
        if (i > f->first_piece && last->bytes < RUN_BYTES && last->n < RUN_PIECES) {
            last->n++;
            last->bytes += bytes;
        } else {
            j->runs[j->n_runs++] = (run){.first = i, .n = 1, .bytes = bytes};
        }
    }
    j->progress.bytes_total += f->bytes;
}

static tsr_status look_at(tsr_manifest_check *c, job *j, const tsr_manifest_file *f, tsr_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    TSR_TRY(tsr_join_path(path, j->dst, f->name, err));
    const bool there = stat(path, &st) == 0;
    if (!there && errno != ENOENT && errno != ENOTDIR)
        return tsr_fail_errno(err, "%s: cannot access it", path);
    tsr_manifest_finding finding = {.file = f->name, .fault = TSR_MANIFEST_MISSING, .wanted = f->bytes};
    if (!there || !S_ISREG(st.st_mode))
        return tsr_manifest_find(c, &finding, err);
    finding.fault = TSR_MANIFEST_SIZE;
    finding.bytes = (uint64_t)st.st_size;
    if (finding.bytes != f->bytes)
        return tsr_manifest_find(c, &finding, err);
    plan_file(j, f);
    return TSR_OK;
}

/* Reports files that the manifest does not name, except the manifest, its signatures, and hidden files that are not
 * weights. */
static tsr_status find_foreign(tsr_manifest_check *c, const tsr_manifest *manifest, const char *dst, tsr_err *err)
{
    tsr_listing l = {.names = NULL};
    const char **const names = malloc((manifest->n_files + 1) * sizeof *names);
    tsr_status status = names == NULL ? tsr_out_of_memory(err, "for names") : tsr_listing_read(&l, dst, err);
    for (size_t i = 0; i < manifest->n_files && names != NULL; i++)
        names[i] = manifest->files[i].name;
    if (names != NULL && manifest->n_files > 0)
        qsort(names, manifest->n_files, sizeof *names, tsr_by_text);
    for (size_t i = 0; i < l.count && status == TSR_OK; i++) {
        const char *const name = l.names[i];
        if (tsr_listing_is_manifest(name) ||
            (name[0] == '.' && !tsr_listing_is_shard(name) && !tsr_listing_is_index(name)) ||
            (manifest->n_files > 0 && bsearch(&name, names, manifest->n_files, sizeof *names, tsr_by_text) != NULL))
            continue;
        const char *const kept = tsr_arena_dup(&c->arena, name, strlen(name));
        status = kept == NULL
                     ? tsr_out_of_memory(err, "for names")
                     : tsr_manifest_find(c, &(tsr_manifest_finding){.fault = TSR_MANIFEST_FOREIGN, .file = kept}, err);
    }
    tsr_listing_free(&l);
    free(names);
    return status;
}

/* ---- all files ---- */

static tsr_status read_runs(tsr_manifest_check *c, job *j, tsr_err *err)
{
    const uint64_t tables = j->manifest->n_pieces * (sizeof *j->manifest->pieces + sizeof *j->runs + 1);
    TSR_TRY(tsr_choose_threads(j->options, tables, BUFFER, &c->threads, err));
    c->threads = (unsigned)tsr_parallel_workers(j->n_runs, c->threads);
    j->buffers = calloc(c->threads, sizeof *j->buffers);
    bool ok = j->buffers != NULL;
    for (unsigned i = 0; i < c->threads && ok; i++)
        ok = (j->buffers[i] = aligned_alloc(PAGE, BUFFER)) != NULL;
    tsr_status status = ok ? TSR_OK : tsr_out_of_memory(err, "for reading");
    if (status == TSR_OK)
        status = tsr_parallel_for(j->n_runs, c->threads, j->options->cancel, take_run, j, err);
    for (unsigned i = 0; j->buffers != NULL && i < c->threads; i++)
        free(j->buffers[i]);
    free(j->buffers);
    return status;
}

static tsr_status run_all(tsr_manifest_check *c, job *j, tsr_err *err)
{
    const tsr_manifest *const manifest = j->manifest;
    TSR_TRY(check_own(c, manifest, j->dst, err));
    for (size_t i = 0; i < manifest->n_files; i++)
        TSR_TRY(look_at(c, j, &manifest->files[i], err));
    TSR_TRY(read_runs(c, j, err));
    for (size_t i = 0; i < manifest->n_pieces; i++) {
        const tsr_manifest_piece *const p = &manifest->pieces[i];
        const tsr_manifest_finding finding = {.fault = TSR_MANIFEST_BYTES,
                                              .file = manifest->files[p->file].name,
                                              .tensor = p->tensor,
                                              .offset = p->offset,
                                              .bytes = p->bytes};
        if (j->bad[i])
            TSR_TRY(tsr_manifest_find(c, &finding, err));
    }
    return find_foreign(c, manifest, j->dst, err);
}

tsr_status tsr_manifest_check_run(tsr_manifest_check *c, const tsr_manifest *manifest, const char *dst,
                                  const tsr_run_options *options, tsr_err *err)
{
    job j = {.manifest = manifest,
             .dst = dst,
             .options = options,
             .runs = calloc(manifest->n_pieces + 1, sizeof *j.runs),
             .bad = calloc(manifest->n_pieces + 1, sizeof *j.bad),
             .lock = PTHREAD_MUTEX_INITIALIZER,
             .progress = {.phase = "verifying"}};
    *c = (tsr_manifest_check){.files = manifest->n_files, .pieces = manifest->n_pieces};
    clock_gettime(CLOCK_MONOTONIC, &j.began);
    const tsr_status status =
        j.runs == NULL || j.bad == NULL ? tsr_out_of_memory(err, "for a manifest") : run_all(c, &j, err);
    c->bytes_read = j.progress.bytes_done;
    c->seconds = tsr_seconds_since(&j.began);
    free(j.runs);
    free(j.bad);
    return status == TSR_E_CANCELLED ? tsr_fail(err, status, "interrupted") : status;
}

void tsr_manifest_check_free(tsr_manifest_check *c)
{
    free(c->findings);
    tsr_arena_free(&c->arena);
    *c = (tsr_manifest_check){.count = 0};
}

const char *tsr_manifest_fault_word(tsr_manifest_fault fault)
{
    static const char *const kWords[] = {
        [TSR_MANIFEST_OTHER] = "other manifest", [TSR_MANIFEST_MISSING] = "missing", [TSR_MANIFEST_SIZE] = "size",
        [TSR_MANIFEST_BYTES] = "bytes",          [TSR_MANIFEST_FOREIGN] = "foreign", [TSR_MANIFEST_READ] = "read",
        [TSR_MANIFEST_HEADER] = "header"};
    return kWords[fault];
}

void tsr_manifest_tell(tsr_text *t, const tsr_manifest_finding *f)
{
    switch (f->fault) {
    case TSR_MANIFEST_OTHER:
        tsr_text_printf(t, "differs from the manifest that the output is compared with");
        break;
    case TSR_MANIFEST_MISSING:
        tsr_text_printf(t, "is missing");
        break;
    case TSR_MANIFEST_SIZE:
        tsr_text_printf(t, "has %llu bytes instead of %llu", U64(f->bytes), U64(f->wanted));
        break;
    case TSR_MANIFEST_BYTES:
        tsr_text_printf(t, "differs in bytes %llu to %llu", U64(f->offset), U64(f->offset + f->bytes - 1));
        if (f->tensor != NULL) {
            tsr_text_printf(t, ", in '");
            tsr_text_visible(t, f->tensor, strlen(f->tensor));
            tsr_text_printf(t, "'");
        } else if (f->offset == 0) {
            tsr_text_printf(t, ", at its beginning");
        }
        break;
    case TSR_MANIFEST_FOREIGN:
        tsr_text_printf(t, "does not belong to this output");
        break;
    case TSR_MANIFEST_READ:
        tsr_text_printf(t, "differs from the source that the output was made of");
        if (f->tensor == NULL)
            break;
        tsr_text_printf(t, ", in '");
        tsr_text_visible(t, f->tensor, strlen(f->tensor));
        tsr_text_printf(t, "'");
        if (f->others > 0)
            tsr_text_printf(t, " or in %llu others that were read with it", U64(f->others));
        break;
    case TSR_MANIFEST_HEADER:
        tsr_text_printf(t, "its header differs from that of the source: names, dtypes, shapes or offsets");
        break;
    }
}
