/* Workers over units, a committer over files, and the phases around them: verify, convert, finish. */
#include "convert/engine/engine.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/threads.h"
#include "convert/engine/destination.h"
#include "convert/engine/journal.h"
#include "convert/engine/watch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Files are synced one after another: no more than these wait for it, however small they are. */
enum { MOST_OPEN_FILES = 64 };

/* A step that has begun. */
typedef struct step_state {
    uint64_t units, left;
    tsr_quant_stats *partials;   /* [units]: added in order when all are there, whoever made them */
    void *held[TSR_MAX_OUTPUTS]; /* whole output tensors, for the bits set in step->held */
    /* Of an appended file: the unit whose turn it is, and the XXH3-64 of what stands in the file so far. */
    uint64_t turn;
    XXH3_state_t *stream;
} step_state;

typedef enum file_phase { FILE_WAITING, FILE_OPEN, FILE_WHOLE, FILE_DONE } file_phase;

typedef struct file_state {
    file_phase phase;
    int fd;
    size_t steps_left;
    /* Sum over all runs of bytes of XXH3-64(run, seed = its offset): any order gives the same. Of an appended file,
     * where a rerun does not know the runs: XXH3-64 of it all. */
    uint64_t digest;
    uint64_t end; /* of an appended file, so far */
    bool mine;    /* takes part in the present phase */
} file_state;

typedef struct run {
    const tsr_plan *plan;
    const char *dst;
    const tsr_engine_options *options;
    tsr_cpu_kernels kernels;
    tsr_journal journal;
    tsr_watch watch;
    tsr_quant_stats *rows;
    uint64_t unit_bytes; /* of the largest unit */
    bool verifying;
    const char *phase; /* that is reported */

    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t changed;
    step_state **steps; /* [plan->n_steps]; NULL when not in flight */
    file_state *files;  /* [plan->n_files] */
    size_t next_step;
    uint64_t next_unit;
    size_t n_open; /* files */
    unsigned workers;
    tsr_status status; /* of the first failure */
    tsr_err err;
    uint64_t bytes_read, bytes_written, bytes_total;
    uint64_t steps_done, steps_total;
    struct timespec began;
} run;

/* Called with the lock held. */
static void note_failure(run *r, tsr_status status, const tsr_err *err)
{
    if (r->status == TSR_OK) {
        r->status = status;
        r->err = *err;
    }
    pthread_cond_broadcast(&r->changed);
}

static void fail(run *r, tsr_status status, const tsr_err *err)
{
    pthread_mutex_lock(&r->lock);
    note_failure(r, status, err);
    pthread_mutex_unlock(&r->lock);
}

static bool is_held(const tsr_step *step, unsigned i)
{
    return (step->held >> i & 1) != 0;
}

static const char *final_path(const run *r, size_t file, char path[PATH_MAX])
{
    return tsr_output_path(r->dst, r->plan->files[file].name, path);
}

/* ---- bytes of output files: written or, when verifying, read back; digested either way ---- */

static tsr_status transfer(run *r, size_t file, void *data, size_t size, uint64_t offset, uint64_t *digest,
                           tsr_err *err)
{
    const int fd = r->files[file].fd;
    const char *const name = r->plan->files[file].name;
    if (r->verifying)
        TSR_TRY(tsr_read_at(fd, name, data, size, offset, err));
    *digest += XXH3_64bits_withSeed(data, size, offset);
    if (r->verifying)
        return TSR_OK;
    TSR_TRY(tsr_write_at(fd, name, data, size, offset, err));
    /* Writing back begins now, so that the fsync at the end has little left to wait for. */
    (void)sync_file_range(fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
    return TSR_OK;
}

static tsr_status transfer_window(run *r, const tsr_tensor *t, const tsr_window *w, void *data, uint64_t *digest,
                                  tsr_err *err)
{
    char *at = data;
    const bool gapless = w->pitch == w->row_bytes;
    const uint64_t rows = gapless ? 1 : w->rows, bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    for (uint64_t row = 0; row < rows && bytes > 0; row++, at += bytes)
        TSR_TRY(transfer(r, t->file, at, bytes, t->offset + w->offset + row * w->pitch, digest, err));
    return TSR_OK;
}

static tsr_status read_window(const run *r, const tsr_tensor *t, const tsr_window *w, void *data, tsr_err *err)
{
    const tsr_checkpoint *const source = r->plan->sources[t->source];
    if (w->pitch == w->row_bytes)
        return tsr_checkpoint_read(source, t, w->offset, data, tsr_window_bytes(w), err);
    char *at = data;
    for (uint64_t row = 0; row < w->rows; row++, at += w->row_bytes)
        TSR_TRY(tsr_checkpoint_read(source, t, w->offset + row * w->pitch, at, w->row_bytes, err));
    return TSR_OK;
}

static tsr_status transfer_header(run *r, size_t file, uint64_t *digest, tsr_err *err)
{
    const tsr_out_file *const f = &r->plan->files[file];
    if (f->raw)
        return TSR_OK;
    tsr_text header = {0};
    if (f->header != NULL)
        tsr_text_append(&header, f->header, f->header_bytes);
    else
        tsr_safetensors_write_header(&header, f->tensors, f->n_tensors);
    tsr_status status = tsr_text_status(&header, err);
    if (status == TSR_OK)
        status = transfer(r, file, header.data, header.size, 0, digest, err);
    tsr_text_free(&header);
    return status;
}

/* ---- appended files ---- */

static bool is_appended(const run *r, const tsr_step *step)
{
    return r->plan->files[step->file].appended;
}

/* Writes what a unit made behind what all earlier units made. Units are taken in order, so those before this one are
 * done or under way, and waiting for them ends. The held outputs come last, as if they were one more unit each. */
static tsr_status append(run *r, size_t index, uint64_t unit, const void *data, uint64_t size, tsr_err *err)
{
    step_state *const s = r->steps[index];
    const size_t file = r->plan->steps[index].file;
    pthread_mutex_lock(&r->lock);
    while (s->turn != unit && r->status == TSR_OK)
        pthread_cond_wait(&r->changed, &r->lock);
    const tsr_status status = r->status;
    if (status != TSR_OK)
        *err = r->err;
    const uint64_t offset = r->files[file].end;
    r->files[file].end += status == TSR_OK ? size : 0;
    pthread_mutex_unlock(&r->lock);
    if (status != TSR_OK)
        return status;
    XXH3_64bits_update(s->stream, data, size);
    pthread_mutex_lock(&r->lock);
    s->turn++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    const int fd = r->files[file].fd;
    TSR_TRY(tsr_write_at(fd, r->plan->files[file].name, data, size, offset, err));
    /* As in transfer(), but many of these may be tiny: whenever another TSR_UNIT_BYTES are full. */
    const uint64_t from = offset - offset % TSR_UNIT_BYTES, to = offset + size - (offset + size) % TSR_UNIT_BYTES;
    if (to > from)
        (void)sync_file_range(fd, (off_t)from, (off_t)(to - from), SYNC_FILE_RANGE_WRITE);
    return TSR_OK;
}

/* The digest of an appended file that is there, read in pieces of at most `capacity`. */
static tsr_status digest_appended(run *r, size_t index, void *memory, size_t capacity, uint64_t *digest, tsr_err *err)
{
    const size_t file = r->plan->steps[index].file;
    const int fd = r->files[file].fd;
    const char *const name = r->plan->files[file].name;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return tsr_fail_errno(err, "%s: cannot look at it", name);
    const uint64_t size = (uint64_t)st.st_size;
    for (uint64_t at = 0; at < size; at += capacity) {
        const size_t n = (size_t)tsr_min_u64(capacity, size - at);
        TSR_TRY(tsr_read_at(fd, name, memory, n, at, err));
        XXH3_64bits_update(r->steps[index]->stream, memory, n);
    }
    pthread_mutex_lock(&r->lock);
    r->bytes_read += size;
    pthread_mutex_unlock(&r->lock);
    *digest = XXH3_64bits_digest(r->steps[index]->stream);
    return TSR_OK;
}

/* ---- taking and finishing units ---- */

/* Called with the lock held, on the first unit of a file. */
static tsr_status open_file(run *r, size_t file, tsr_err *err)
{
    file_state *const f = &r->files[file];
    char path[PATH_MAX];
    f->phase = FILE_OPEN;
    f->digest = 0;
    f->steps_left = r->plan->files[file].n_steps;
    if (r->verifying) {
        f->fd = open(final_path(r, file, path), O_RDONLY | O_CLOEXEC);
    } else {
        TSR_TRY(tsr_make_parent(final_path(r, file, path), err));
        f->fd = open(tsr_part_path(r->dst, file, path), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (f->fd < 0)
        return tsr_fail_errno(err, "%s: cannot %s", path, r->verifying ? "open" : "create");
    r->n_open++;
    return transfer_header(r, file, &f->digest, err);
}

static tsr_status begin_step(run *r, size_t index, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    step_state *const s = calloc(1, sizeof *s);
    r->steps[index] = s;
    if (s == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", step->in[0]->name);
    /* An appended file is verified in one go. */
    s->units = s->left = r->verifying && is_appended(r, step) ? 1 : step->op->units(step);
    s->partials = r->verifying ? NULL : calloc(s->units + 1, sizeof *s->partials);
    bool ok = r->verifying || s->partials != NULL;
    for (unsigned i = 0; i < step->n_out; i++) {
        if (is_held(step, i)) {
            s->held[i] = calloc(step->out[i]->bytes + 1, 1);
            ok = ok && s->held[i] != NULL;
        }
    }
    if (is_appended(r, step)) {
        s->stream = XXH3_createState();
        ok = ok && s->stream != NULL;
        if (ok)
            (void)XXH3_64bits_reset(s->stream);
    }
    return ok ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", step->in[0]->name);
}

static void free_step(run *r, size_t index)
{
    step_state *const s = r->steps[index];
    if (s == NULL)
        return;
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++)
        free(s->held[i]);
    (void)XXH3_freeState(s->stream);
    free(s->partials);
    free(s);
    r->steps[index] = NULL;
}

/* Whether a step makes a tensor; copies of whole side files are not counted as such. */
static bool makes_tensor(const tsr_plan *plan, size_t index)
{
    const tsr_step *const step = &plan->steps[index];
    return step->op != &tsr_copy_op || !plan->files[step->file].raw;
}

/* Called with the lock held. */
static void count_step(run *r, size_t index)
{
    file_state *const f = &r->files[r->plan->steps[index].file];
    r->steps_done += makes_tensor(r->plan, index);
    if (--f->steps_left == 0) {
        f->phase = FILE_WHOLE;
        pthread_cond_broadcast(&r->changed);
    }
}

/* The next unit in the plan's order; false when there is none left or the run has failed. */
static bool take_unit(run *r, size_t *index, uint64_t *unit)
{
    tsr_err err = {{0}};
    tsr_status status = TSR_OK;
    bool taken = false;
    pthread_mutex_lock(&r->lock);
    while (!taken && status == TSR_OK && r->status == TSR_OK && r->next_step < r->plan->n_steps) {
        const tsr_step *const step = &r->plan->steps[r->next_step];
        if (!r->files[step->file].mine) {
            r->next_step++;
            continue;
        }
        if (tsr_is_cancelled(r->options->run.cancel)) {
            status = tsr_fail(&err, TSR_E_CANCELLED, "interrupted");
            continue;
        }
        if (r->files[step->file].phase == FILE_WAITING) {
            if (r->n_open >= MOST_OPEN_FILES) {
                pthread_cond_wait(&r->changed, &r->lock);
                continue;
            }
            status = open_file(r, step->file, &err);
        }
        if (status == TSR_OK && r->steps[r->next_step] == NULL)
            status = begin_step(r, r->next_step, &err);
        if (status != TSR_OK)
            continue;
        const uint64_t units = r->steps[r->next_step]->units;
        *index = r->next_step;
        *unit = r->next_unit++;
        taken = units > 0;
        if (r->next_unit >= units) {
            r->next_step++;
            r->next_unit = 0;
        }
        if (!taken) { /* an empty tensor */
            free_step(r, *index);
            count_step(r, *index);
        }
    }
    /* Before the lock is released: what was only half begun is for nobody else to take. */
    if (status != TSR_OK)
        note_failure(r, status, &err);
    pthread_mutex_unlock(&r->lock);
    return taken;
}

/* All units are done: write what was held, sum up, let the operation finish. */
static tsr_status end_step(run *r, size_t index, uint64_t *digest, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    step_state *const s = r->steps[index];
    const bool appended = is_appended(r, step);
    if (r->verifying && appended)
        return TSR_OK;
    if (!r->verifying && step->op->seal != NULL)
        step->op->seal(step, s->held);
    for (unsigned i = 0; i < step->n_out; i++) {
        if (!is_held(step, i) || step->out[i]->bytes == 0)
            continue;
        const uint64_t bytes = step->out[i]->bytes;
        const tsr_window all = {.rows = 1, .row_bytes = bytes, .pitch = bytes};
        TSR_TRY(appended ? append(r, index, s->turn, s->held[i], bytes, err)
                         : transfer_window(r, step->out[i], &all, s->held[i], digest, err));
    }
    if (r->verifying)
        return TSR_OK;
    if (appended)
        *digest = XXH3_64bits_digest(s->stream);
    tsr_quant_stats *const row = &r->rows[index];
    *row = (tsr_quant_stats){0};
    for (uint64_t u = 0; u < s->units; u++)
        tsr_quant_stats_add(row, &s->partials[u]);
    return step->op->finish == NULL ? TSR_OK : step->op->finish(step, s->held, row, err);
}

/* Lays the unit's buffers out in the worker's memory. */
static void place_buffers(const tsr_step *step, const step_state *s, tsr_unit *u, char *memory)
{
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        u->in_data[i] = memory;
        memory += tsr_round_up(tsr_window_bytes(&u->in[i]), 64);
    }
    for (unsigned i = 0; i < step->n_out; i++) {
        u->out_data[i] = is_held(step, i) ? s->held[i] : memory;
        if (!is_held(step, i))
            memory += tsr_round_up(tsr_window_bytes(&u->out[i]), 64);
    }
    u->scratch = memory;
}

/* Asks for the input of the unit that some worker will take when this one is done. */
static void prefetch(const run *r, const tsr_step *step, const step_state *s, uint64_t unit)
{
    const uint64_t ahead = unit + r->workers;
    if (r->verifying || ahead >= s->units)
        return;
    const tsr_unit u = tsr_step_unit(step, ahead);
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        const tsr_window *const w = &u.in[i];
        if (w->rows == 0)
            continue;
        const tsr_tensor *const t = step->in[u.from[i]];
        tsr_checkpoint_prefetch(r->plan->sources[t->source], t, w->offset, (w->rows - 1) * w->pitch + w->row_bytes);
    }
}

static tsr_status do_unit(run *r, size_t index, uint64_t unit, char *memory, tsr_err *err)
{
    const tsr_step *const step = &r->plan->steps[index];
    step_state *const s = r->steps[index];
    const bool appended = is_appended(r, step);
    uint64_t in = 0, out = 0, digest = 0, made = 0;
    tsr_unit u = tsr_step_unit(step, unit);
    u.appended = &made;
    place_buffers(step, s, &u, memory);
    prefetch(r, step, s, unit);
    if (!r->verifying) {
        for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
            if (u.in[i].rows > 0)
                TSR_TRY(read_window(r, step->in[u.from[i]], &u.in[i], u.in_data[i], err));
            in += tsr_window_bytes(&u.in[i]);
        }
        const tsr_status status = step->op->run(step, unit, &u, &r->kernels, &s->partials[unit], err);
        const tsr_tensor *const t = step->in[u.from[0]];
        if (status != TSR_OK)
            return tsr_prepend(err, status, "%s", r->plan->sources[t->source]->files[t->file].path);
    }
    if (appended) {
        TSR_TRY(r->verifying ? digest_appended(r, index, memory, r->unit_bytes, &digest, err)
                             : append(r, index, unit, u.out_data[0], made, err));
        out = made;
    }
    for (unsigned i = 0; i < step->n_out && !appended; i++) {
        if (!is_held(step, i)) {
            TSR_TRY(transfer_window(r, step->out[i], &u.out[i], u.out_data[i], &digest, err));
            out += tsr_window_bytes(&u.out[i]);
        }
    }
    pthread_mutex_lock(&r->lock);
    r->bytes_read += r->verifying ? out : in;
    r->bytes_written += r->verifying ? 0 : out;
    /* With the count, not after it: whoever sees the last unit done must see every digest. */
    r->files[step->file].digest += digest;
    const bool last = --s->left == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last)
        return TSR_OK;
    digest = 0;
    TSR_TRY(end_step(r, index, &digest, err));
    pthread_mutex_lock(&r->lock);
    r->files[step->file].digest += digest;
    free_step(r, index);
    count_step(r, index);
    pthread_mutex_unlock(&r->lock);
    return TSR_OK;
}

static void *work(void *argument)
{
    run *const r = argument;
    char *const memory = aligned_alloc(64, tsr_round_up(r->unit_bytes + 64, 64));
    tsr_err err = {{0}};
    size_t index;
    uint64_t unit;
    if (memory == NULL)
        fail(r, tsr_fail(&err, TSR_E_NOMEM, "out of memory for a worker's %llu bytes", U64(r->unit_bytes)), &err);
    while (memory != NULL && take_unit(r, &index, &unit)) {
        const tsr_status status = do_unit(r, index, unit, memory, &err);
        if (status != TSR_OK)
            fail(r, status, &err);
    }
    free(memory);
    return NULL;
}

/* ---- committing files ---- */

/* After converting: durable under its name, and in the journal. After verifying: is it what the journal says? */
static tsr_status commit(run *r, size_t file, tsr_err *err)
{
    file_state *const f = &r->files[file];
    tsr_status status = TSR_OK;
    if (r->verifying) {
        r->journal.finished[file] = f->digest == r->journal.digests[file];
    } else {
        char from[PATH_MAX], to[PATH_MAX];
        struct stat st;
        tsr_part_path(r->dst, file, from);
        final_path(r, file, to);
        const uint64_t bytes = r->plan->files[file].appended ? f->end : r->plan->files[file].bytes;
        if (fstat(f->fd, &st) != 0)
            status = tsr_fail_errno(err, "%s: cannot look at it", from);
        else if ((uint64_t)st.st_size != bytes)
            status = tsr_fail(err, TSR_E_IO, "%s: %llu bytes were planned, but the file has %llu", from, U64(bytes),
                              U64(st.st_size));
        if (status == TSR_OK)
            status = tsr_watch_check(&r->watch, r->plan, file, err);
        if (status == TSR_OK)
            status = tsr_commit_file(f->fd, from, to, err);
        if (status == TSR_OK)
            status = tsr_journal_add(&r->journal, r->plan, file, f->digest, r->rows, err);
        if (status != TSR_OK)
            unlink(to); /* no run would know it */
    }
    close(f->fd);
    f->fd = -1;
    return status;
}

/* Commits files in the plan's order, so that the journal, too, is the same for any number of threads. */
static void *commit_files(void *argument)
{
    run *const r = argument;
    tsr_err err = {{0}};
    for (size_t i = 0; i < r->plan->n_files; i++) {
        if (!r->files[i].mine)
            continue;
        tsr_status status = TSR_OK;
        pthread_mutex_lock(&r->lock);
        if (r->plan->files[i].n_steps == 0 && r->status == TSR_OK) {
            status = open_file(r, i, &err);
            r->files[i].phase = FILE_WHOLE;
        }
        while (r->files[i].phase != FILE_WHOLE && r->status == TSR_OK)
            pthread_cond_wait(&r->changed, &r->lock);
        const bool stop = r->files[i].phase != FILE_WHOLE;
        pthread_mutex_unlock(&r->lock);
        if (stop)
            break;
        if (status == TSR_OK)
            status = commit(r, i, &err);
        if (status != TSR_OK) {
            fail(r, status, &err);
            break;
        }
        pthread_mutex_lock(&r->lock);
        r->files[i].phase = FILE_DONE;
        r->n_open--;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

/* ---- phases ---- */

static void report_progress(void *context)
{
    run *const r = context;
    if (r->options->run.progress == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    const tsr_progress p = {
        .phase = r->phase,
        .bytes_done = r->bytes_read,
        .bytes_total = r->bytes_total,
        .items_done = r->steps_done,
        .items_total = r->steps_total,
        .items = r->plan->counted == NULL ? "tensors" : r->plan->counted,
        .seconds = tsr_seconds_since(&r->began),
    };
    pthread_mutex_unlock(&r->lock);
    r->options->run.progress(&p, r->options->run.progress_data);
}

/* Which files take part, and how much there is to read. */
static uint64_t choose_files(run *r)
{
    uint64_t chosen = 0;
    r->next_step = 0;
    r->next_unit = 0;
    r->n_open = 0;
    r->bytes_read = r->bytes_total = r->steps_done = r->steps_total = 0;
    for (size_t i = 0; i < r->plan->n_files; i++) {
        const tsr_out_file *const f = &r->plan->files[i];
        r->files[i] = (file_state){.fd = -1, .mine = r->journal.finished[i] == r->verifying};
        if (!r->files[i].mine)
            continue;
        chosen++;
        for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++)
            r->steps_total += makes_tensor(r->plan, s);
        if (r->verifying)
            r->bytes_total += f->bytes;
        for (size_t s = f->first_step; !r->verifying && s < f->first_step + f->n_steps; s++)
            r->bytes_total += tsr_step_input(&r->plan->steps[s]);
    }
    clock_gettime(CLOCK_MONOTONIC, &r->began);
    return chosen;
}

/* What a failed phase leaves behind is of no use to the next run, which redoes whole files. */
static void abandon_files(run *r)
{
    for (size_t s = 0; s < r->plan->n_steps; s++)
        free_step(r, s);
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        if (r->files[i].fd >= 0)
            close(r->files[i].fd);
        if (!r->verifying && r->files[i].mine && r->files[i].phase != FILE_DONE && r->files[i].phase != FILE_WAITING)
            unlink(tsr_part_path(r->dst, i, path));
    }
}

static tsr_status run_phase(run *r, const char *phase)
{
    pthread_t committer;
    r->phase = phase;
    const bool committing = pthread_create(&committer, NULL, commit_files, r) == 0;
    if (!committing || tsr_run_threads(r->workers, work, report_progress, r) == 0)
        fail(r, TSR_E_NOMEM, &(tsr_err){"cannot start a thread"});
    if (committing)
        pthread_join(committer, NULL);
    report_progress(r);
    abandon_files(r);
    return r->status;
}

/* Files that the journal calls finished but that are gone or of another size need no reading to be redone. */
static void drop_missing(run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        struct stat st;
        const tsr_out_file *const f = &r->plan->files[i];
        if (r->journal.finished[i] && (stat(final_path(r, i, path), &st) != 0 || !S_ISREG(st.st_mode) ||
                                       (!f->appended && (uint64_t)st.st_size != f->bytes)))
            r->journal.finished[i] = false;
    }
}

/* Files that were renamed just before a kill, and are not in the journal, are made again: their space is wanted. */
static void remove_unknown(const run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        if (!r->journal.finished[i])
            unlink(final_path(r, i, path));
    }
}

static tsr_status choose_threads(run *r, tsr_err *err)
{
    const uint64_t tables = tsr_plan_memory(r->plan, 0), each = tsr_plan_memory(r->plan, 1) - tables;
    TSR_TRY(tsr_choose_threads(&r->options->run, tables, each, &r->workers, err));
    for (size_t s = 0; s < r->plan->n_steps; s++)
        r->unit_bytes = tsr_max_u64(r->unit_bytes, tsr_step_unit_bytes(&r->plan->steps[s]));
    return TSR_OK;
}

/* Of a repair, too, nobody may take the directory for a model before it is whole again. */
static tsr_status withdraw(run *r, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names names;
    tsr_status status = tsr_plan_names(r->plan, &scratch, &names, err);
    if (status == TSR_OK) {
        names.items += r->plan->n_files; /* a raw copy of this name may be finished, and stays */
        names.count -= r->plan->n_files;
        status = tsr_withdraw(r->dst, &names, err);
    }
    tsr_arena_free(&scratch);
    return status;
}

/* What was read from a file that changed is not to be trusted, whichever way the phase ended. */
static tsr_status check_sources(run *r, tsr_status status, tsr_err *err)
{
    tsr_err why = {{0}};
    const tsr_status changed = tsr_watch_check_all(&r->watch, r->plan, r->journal.finished, &why);
    if (changed == TSR_OK)
        return status;
    const tsr_status noted = tsr_journal_rewrite(&r->journal, r->plan, r->dst, r->rows, NULL);
    if (noted == TSR_OK)
        remove_unknown(r);
    if (status == TSR_OK)
        fail(r, changed, &why);
    return status == TSR_OK ? tsr_fail(err, changed, "%s", why.msg) : status;
}

static tsr_status convert(run *r, tsr_err *err)
{
    if (r->journal.read_only)
        return tsr_fail(err, TSR_E_IO,
                        "%s: not complete, and nothing can be written there: is it mounted read-only, or another "
                        "user's?",
                        r->dst);
    TSR_TRY(withdraw(r, err));
    remove_unknown(r);
    TSR_TRY(tsr_check_space(r->plan, r->dst, r->journal.finished, err));
    TSR_TRY(tsr_watch_begin(&r->watch, r->plan, err));
    return check_sources(r, run_phase(r, "converting"), err);
}

static tsr_status run_all(run *r, tsr_engine_result *result, tsr_err *err)
{
    TSR_TRY(choose_threads(r, err));
    TSR_TRY(tsr_journal_open(&r->journal, r->plan, r->dst, r->options->force, r->rows, err));
    uint64_t noted = 0;
    for (size_t i = 0; i < r->plan->n_files; i++)
        noted += r->journal.finished[i];
    drop_missing(r);
    r->verifying = true;
    if (choose_files(r) > 0 && run_phase(r, "verifying") != TSR_OK)
        return r->status;
    for (size_t i = 0; i < r->plan->n_files; i++)
        result->files_resumed += r->journal.finished[i];
    result->files_redone = noted - result->files_resumed;
    result->bytes_read = r->bytes_read;

    r->verifying = false;
    result->already_complete = choose_files(r) == 0;
    if (!result->already_complete)
        TSR_TRY(convert(r, err));
    result->bytes_read += r->bytes_read;
    result->bytes_written = r->bytes_written;
    return tsr_write_texts(r->plan, r->dst, r->rows, err);
}

tsr_status tsr_engine_run(const tsr_plan *plan, const char *dst, const tsr_engine_options *options,
                          tsr_engine_result *result, tsr_err *err)
{
    run r = {
        .plan = plan,
        .dst = dst,
        .options = options,
        .journal = {.fd = -1},
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .changed = PTHREAD_COND_INITIALIZER,
        .rows = calloc(plan->n_steps, sizeof *r.rows),
        .steps = calloc(plan->n_steps, sizeof *r.steps),
        .files = calloc(plan->n_files, sizeof *r.files),
    };
    struct timespec began;
    fenv_t callers_mode;
    (void)fegetenv(&callers_mode);
    tsr_set_float_mode(); /* for the report's sums; each worker sets its own */
    clock_gettime(CLOCK_MONOTONIC, &began);
    *result = (tsr_engine_result){0};
    tsr_cpu_kernels_init(&r.kernels, options->cpu_flags);
    tsr_status status = r.rows == NULL || r.steps == NULL || r.files == NULL
                            ? tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu steps", plan->n_steps)
                            : run_all(&r, result, err);
    if (status != TSR_OK && r.status == status && err != NULL)
        *err = r.err;
    if (status == TSR_E_NOSPACE && r.status == status)
        status = tsr_explain_no_space(plan, dst, r.journal.finished, err);
    tsr_watch_end(&r.watch);
    tsr_journal_close(&r.journal);
    free(r.steps);
    free(r.files);
    result->rows = r.rows;
    result->threads = r.workers;
    result->seconds = tsr_seconds_since(&began);
    (void)fesetenv(&callers_mode);
    return status;
}

void tsr_engine_result_free(tsr_engine_result *result)
{
    free(result->rows);
    *result = (tsr_engine_result){0};
}
