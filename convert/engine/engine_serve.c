/* A rank but 0: each of its threads waits for units, carries them out, and says what they came to.
 *
 * Where files are read past the page cache, a rank has several threads for each unit that it may compute at a time: while one
 * computes, others read and write (`slots`). */
#include "convert/engine/engine.h"

#include "common/checked.h"
#include "common/file.h"
#include "convert/engine/destination.h"
#include "convert/engine/engine_run.h"
#include "convert/engine/engine_wire.h"
#include "convert/engine/plan_reads.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Another client of a network file system may not see a new file's name at once. */
enum { OPEN_TRIES = 300, OPEN_PAUSE_MS = 100, DIGEST_PIECE = 1 << 20 };

/* What all threads of a rank share. */
typedef struct server {
    const tsr_plan *plan;
    const char *dst;
    tsr_cpu_kernels kernels;
    uint64_t task_bytes;
    sem_t slots; /* units that may be computed at a time */
    pthread_mutex_t lock;
    tsr_io_choice io;
    bool tried_writes;  /* past the page cache */
    tsr_io_file *files; /* [n_files]: of the output, as far as they are open here */
} server;

/* What a thread works with. */
typedef struct hand {
    server *s;
    char *memory;
    tsr_io *io;
    tsr_io_batch batch;
    /* Held outputs of the step, and of the one that it gives: zeros, but while a unit is carried out. */
    char *held[2 * TSR_MAX_OUTPUTS];
    uint64_t held_bytes[2 * TSR_MAX_OUTPUTS];
    tsr_block_cells cells; /* of step cells_of - 1, and zeros likewise */
    size_t cells_of;
    tsr_block_notes notes;
} hand;

/* ---- files ---- */

/* Only for writing: then a network file system does not read the rest of a page of which another rank writes that rest, and does
 * not write it back. */
static int open_patiently(const char *path, int flags)
{
    int fd = -1;
    for (int i = 0; i < OPEN_TRIES; i++) {
        fd = open(path, flags | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT)
            break;
        const struct timespec rest = {.tv_nsec = OPEN_PAUSE_MS * 1000000L};
        (void)nanosleep(&rest, NULL);
    }
    return fd;
}

/* Called with the lock held. */
static tsr_status open_output(server *s, size_t file, bool verifying, tsr_err *err)
{
    tsr_io_file *const f = &s->files[file];
    char path[PATH_MAX], why[64];
    if (verifying)
        tsr_output_path(s->dst, s->plan->files[file].name, path);
    else
        tsr_part_path(s->dst, file, path);
    f->fd = open_patiently(path, verifying ? O_RDONLY : O_WRONLY);
    f->name = s->plan->files[file].name;
    if (f->fd < 0)
        return tsr_fail_errno(err, "%s: cannot open: do all ranks see this directory?", path);
    if (verifying) {
        f->direct = tsr_io_open_read(s->io.mode, path, f->fd, why, sizeof why);
        return TSR_OK;
    }
    if (!s->tried_writes)
        tsr_io_choose_writes(&s->io, s->plan, s->dst, why, sizeof why);
    s->tried_writes = true;
    /* Rank 0 has made room for it. */
    if (s->io.told.writes && s->plan->files[file].bytes >= tsr_io_large(s->io.mode))
        f->direct = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    return TSR_OK;
}

static tsr_status find_output(server *s, size_t file, bool verifying, tsr_io_file *found, tsr_err *err)
{
    pthread_mutex_lock(&s->lock);
    const tsr_status status = s->files[file].fd >= 0 ? TSR_OK : open_output(s, file, verifying, err);
    *found = s->files[file];
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The last that is wanted of a file. */
static tsr_status settle(server *s, const tsr_request *q, tsr_err *err)
{
    if (q->index >= s->plan->n_files)
        return tsr_fail(err, TSR_E_FORMAT, "rank 0 speaks of a file that is not in the plan");
    const bool wrote = (q->flags & TSR_ASKED_TO_VERIFY) == 0;
    pthread_mutex_lock(&s->lock);
    const tsr_io_file f = s->files[q->index];
    s->files[q->index] = (tsr_io_file){.fd = -1, .direct = -1};
    pthread_mutex_unlock(&s->lock);
    tsr_status status = TSR_OK;
    if (f.direct >= 0 && close(f.direct) != 0 && wrote)
        status = tsr_fail_errno(err, "%s: cannot close", f.name);
    if (f.fd >= 0 && wrote && status == TSR_OK && fdatasync(f.fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", f.name);
    if (f.fd >= 0 && close(f.fd) != 0 && wrote && status == TSR_OK)
        status = tsr_fail_errno(err, "%s: cannot close", f.name);
    return status;
}

/* ---- reading and writing ---- */

/* Reads a window of the source to a place in *memory, which moves behind it. */
static tsr_status read_window(hand *h, const tsr_tensor *t, const tsr_window *w, char **memory, void **data,
                              tsr_err *err)
{
    const server *const s = h->s;
    const tsr_checkpoint *const source = s->plan->sources[t->source];
    const tsr_file *const file = &source->files[t->file];
    const uint64_t bytes = tsr_window_bytes(w), offset = t->offset + w->offset;
    const bool plain = (w->pitch == w->row_bytes || w->rows == 1) && file->archive == NULL;
    const tsr_io_file f = {.fd = file->fd, .direct = plain ? tsr_io_source(&s->io, t) : -1, .name = file->path};
    *data = tsr_io_place(&f, offset, bytes, memory);
    if (plain && bytes > 0) {
        tsr_io_read(h->io, &h->batch, &f, *data, bytes, offset);
        return tsr_io_wait(h->io, &h->batch, err);
    }
    char *at = *data;
    for (uint64_t i = 0; i < w->rows; i++, at += w->row_bytes)
        TSR_TRY(tsr_checkpoint_read(source, t, w->offset + i * w->pitch, at, w->row_bytes, err));
    return TSR_OK;
}

/* Writes a window of an output or, when verifying, reads it; counts it. */
static tsr_status transfer(hand *h, const tsr_io_file *f, bool verifying, const tsr_tensor *t, const tsr_window *w,
                           char *at, tsr_unit_answer *a, tsr_err *err)
{
    const bool gapless = w->pitch == w->row_bytes || w->rows == 1;
    const uint64_t runs = gapless ? 1 : w->rows, bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    tsr_stretches done = {0};
    tsr_status status = TSR_OK;
    if (bytes == 0)
        return TSR_OK;
    const char *const data = at;
    if (!verifying)
        tsr_run_count_window(&h->s->kernels, t, w, data, &done);
    for (uint64_t i = 0; i < runs && status == TSR_OK; i++, at += bytes) {
        const uint64_t offset = t->offset + w->offset + i * w->pitch;
        if (gapless && verifying)
            tsr_io_read(h->io, &h->batch, f, at, bytes, offset);
        else if (gapless)
            status = tsr_io_write(h->io, &h->batch, f, at, bytes, offset, err);
        else
            status = verifying ? tsr_read_at(f->fd, f->name, at, bytes, offset, err)
                               : tsr_io_write_cached(f, at, bytes, offset, err);
    }
    tsr_err later;
    const tsr_status ended = tsr_io_wait(h->io, &h->batch, status == TSR_OK ? err : &later);
    status = status == TSR_OK ? ended : status;
    if (verifying && status == TSR_OK)
        tsr_run_count_window(&h->s->kernels, t, w, data, &done);
    a->bytes_out += done.bytes;
    a->digest += done.digest;
    return status;
}

/* ---- units ---- */

/* A held output's room, which is zeros. */
static tsr_status place_held(hand *h, const tsr_tensor *t, unsigned i, tsr_err *err)
{
    const uint64_t bytes = t->bytes;
    if (h->held[i] != NULL && h->held_bytes[i] >= bytes)
        return TSR_OK;
    free(h->held[i]);
    h->held[i] = calloc(bytes + 8, 1);
    h->held_bytes[i] = h->held[i] == NULL ? 0 : bytes;
    return h->held[i] == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", t->name) : TSR_OK;
}

/* The step that this one is to give; NULL: none. */
static const tsr_step *given_step(const server *s, const tsr_request *q)
{
    const tsr_step *const step = &s->plan->steps[q->index];
    return (q->flags & TSR_ASKED_TO_GIVE) == 0 || step->gives == 0 ? NULL : &s->plan->steps[step->gives - 1];
}

static tsr_status place_given(hand *h, const tsr_step *given, tsr_unit *u, tsr_err *err)
{
    for (unsigned i = 0; given != NULL && i < given->n_out; i++) {
        TSR_TRY(place_held(h, given->out[i], TSR_MAX_OUTPUTS + i, err));
        u->given_data[i] = h->held[TSR_MAX_OUTPUTS + i];
    }
    return TSR_OK;
}

/* Where figures of blocks go, if the step has any. */
static tsr_status begin_notes(hand *h, size_t index, tsr_unit *u, tsr_err *err)
{
    tsr_block_map map;
    tsr_code_bins bins;
    if (!tsr_plan_has_blocks(h->s->plan, index, &map, &bins))
        return TSR_OK;
    if (h->cells_of != index + 1) {
        if (h->cells_of != 0)
            tsr_block_cells_free(&h->cells);
        h->cells_of = 0;
        if (!tsr_block_cells_begin(&h->cells, &map, bins))
            return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", h->s->plan->steps[index].in[0]->name);
        h->cells_of = index + 1;
    }
    tsr_block_notes_begin(&h->notes, &h->cells);
    u->notes = &h->notes;
    return TSR_OK;
}

/* Appends what the unit put into a held output, and makes it zeros again. */
static void pack_held(hand *h, const tsr_tensor *t, unsigned i, tsr_unit_answer *a, tsr_text *answer)
{
    char *const held = h->held[i];
    uint64_t first = 0, end = t->bytes;
    while (end - first >= 8 && memcmp(held + first, (const char[8]){0}, 8) == 0)
        first += 8;
    while (first < end && held[first] == 0)
        first++;
    while (end - first >= 8 && memcmp(held + end - 8, (const char[8]){0}, 8) == 0)
        end -= 8;
    while (end > first && held[end - 1] == 0)
        end--;
    a->held[i] = (tsr_held_part){.first = first, .bytes = end - first};
    tsr_text_append(answer, held + first, end - first);
    memset(held + first, 0, end - first);
}

/* Reads a unit's input, and makes room for its output in `of`. */
static tsr_status get_ready(hand *h, const tsr_step *step, bool verifying, const tsr_io_file *of, tsr_unit *u,
                            tsr_unit_answer *a, tsr_err *err)
{
    char *memory = h->memory;
    for (unsigned i = 0; i < TSR_MAX_INPUTS && !verifying; i++) {
        u->in_data[i] = memory;
        if (u->in[i].rows > 0)
            TSR_TRY(read_window(h, step->in[u->from[i]], &u->in[i], &memory, &u->in_data[i], err));
        a->bytes_in += tsr_window_bytes(&u->in[i]);
    }
    for (unsigned i = 0; i < step->n_out; i++) {
        if (tsr_is_held(step, i)) {
            TSR_TRY(place_held(h, step->out[i], i, err));
            u->out_data[i] = h->held[i];
        } else {
            u->out_data[i] =
                tsr_io_place(of, step->out[i]->offset + u->out[i].offset, tsr_window_bytes(&u->out[i]), &memory);
        }
    }
    u->scratch = (char *)tsr_round_up((uintptr_t)memory, 64);
    u->appended = &a->appended;
    return TSR_OK;
}

static tsr_status compute(hand *h, const tsr_request *q, const tsr_step *step, const tsr_unit *u, tsr_unit_answer *a,
                          tsr_err *err)
{
    const tsr_tensor *const t = step->in[u->from[0]];
    (void)sem_wait(&h->s->slots);
    const tsr_status status = step->op->run(step, q->part, u, &h->s->kernels, &a->stats, err);
    (void)sem_post(&h->s->slots);
    return status == TSR_OK ? TSR_OK
                            : tsr_prepend(err, status, "%s", h->s->plan->sources[t->source]->files[t->file].path);
}

/* The digest of a whole appended file, which is verified in one go. */
static tsr_status digest_appended(hand *h, const tsr_io_file *f, tsr_unit_answer *a, tsr_err *err)
{
    XXH3_state_t *const state = XXH3_createState();
    const off_t size = lseek(f->fd, 0, SEEK_END);
    tsr_status status = state == NULL ? tsr_out_of_memory(err, NULL)
                        : size < 0    ? tsr_fail_errno(err, "%s", f->name)
                                      : TSR_OK;
    if (status == TSR_OK)
        (void)XXH3_64bits_reset(state);
    for (uint64_t at = 0; status == TSR_OK && at < (uint64_t)size; at += DIGEST_PIECE) {
        const size_t n = (size_t)tsr_min_u64(DIGEST_PIECE, (uint64_t)size - at);
        status = tsr_read_at(f->fd, f->name, h->memory, n, at, err);
        if (status == TSR_OK)
            (void)XXH3_64bits_update(state, h->memory, n);
        a->bytes_out += n;
    }
    a->digest = state == NULL ? 0 : XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    return status;
}

static tsr_status do_unit(hand *h, const tsr_request *q, tsr_unit_answer *a, tsr_text *answer, tsr_err *err)
{
    const tsr_step *const step = &h->s->plan->steps[q->index];
    const bool appended = h->s->plan->files[step->file].appended, verifying = (q->flags & TSR_ASKED_TO_VERIFY) != 0;
    tsr_unit u = tsr_step_unit(step, q->part);
    tsr_io_file file = {.fd = -1, .direct = -1};
    const tsr_step *const given = given_step(h->s, q);
    u.amax = q->number;
    if (verifying || !appended)
        TSR_TRY(find_output(h->s, step->file, verifying, &file, err));
    if (verifying && appended)
        return digest_appended(h, &file, a, err);
    TSR_TRY(get_ready(h, step, verifying, &file, &u, a, err));
    if (!verifying) {
        TSR_TRY(begin_notes(h, q->index, &u, err));
        TSR_TRY(place_given(h, given, &u, err));
        TSR_TRY(compute(h, q, step, &u, a, err));
    }
    if (appended)
        tsr_text_append(answer, u.out_data[0], a->appended);
    for (unsigned i = 0; i < step->n_out && !appended; i++) {
        if (!tsr_is_held(step, i))
            TSR_TRY(transfer(h, &file, verifying, step->out[i], &u.out[i], u.out_data[i], a, err));
    }
    if (verifying)
        return TSR_OK;
    const size_t before = answer->size;
    if (u.notes != NULL)
        tsr_block_cells_pack(&h->cells, u.notes, answer);
    a->blocks = answer->size - before;
    for (unsigned i = 0; i < step->n_out; i++) {
        if (tsr_is_held(step, i))
            pack_held(h, step->out[i], i, a, answer);
    }
    for (unsigned i = 0; given != NULL && i < given->n_out; i++)
        pack_held(h, given->out[i], TSR_MAX_OUTPUTS + i, a, answer);
    return TSR_OK;
}

static tsr_status do_amax(hand *h, const tsr_request *q, tsr_unit_answer *a, tsr_err *err)
{
    const tsr_amax_rows at = tsr_amax_unit(h->s->plan->amaxes[q->index], q->part);
    const tsr_tensor *const t = tsr_amax_input(&at, 0);
    void *data[TSR_DECODED_INPUTS];
    char *memory = h->memory;
    for (uint32_t i = 0; i < at.n_in; i++) {
        data[i] = memory;
        if (at.in[i].rows > 0)
            TSR_TRY(read_window(h, tsr_amax_input(&at, i), &at.in[i], &memory, &data[i], err));
    }
    a->bytes_in = tsr_amax_rows_bytes(&at);
    memory = (char *)tsr_round_up((uintptr_t)memory, 64);
    (void)sem_wait(&h->s->slots);
    const tsr_status status = tsr_amax_of_rows(&h->s->kernels, &at, memory, data, &a->amax, err);
    (void)sem_post(&h->s->slots);
    return status == TSR_OK ? TSR_OK
                            : tsr_prepend(err, status, "%s", h->s->plan->sources[t->source]->files[t->file].path);
}

/* The memory of a thread that carries out units: one that only settles files needs none. */
static tsr_status find_memory(hand *h, tsr_err *err)
{
    if (h->memory == NULL)
        h->memory = aligned_alloc(tsr_io_page(), h->s->task_bytes);
    if (h->io == NULL && h->memory != NULL)
        h->io = tsr_io_begin(false, h->memory, h->s->task_bytes);
    return h->io != NULL ? TSR_OK
                         : tsr_fail(err, TSR_E_NOMEM, "out of memory for a worker's %llu bytes", U64(h->s->task_bytes));
}

/* After a failure rank 0 ends the job; nobody asks for another unit of this thread's leftovers. */
static tsr_status answer_request(void *argument, const tsr_request *q, tsr_text *answer, tsr_err *err)
{
    hand *const h = argument;
    tsr_unit_answer a;
    memset(&a, 0, sizeof a);
    if (q->asked == TSR_ASKED_SETTLE)
        return settle(h->s, q, err);
    TSR_TRY(find_memory(h, err));
    tsr_text_append(answer, &a, sizeof a); /* its place */
    if (q->asked == TSR_ASKED_UNIT && q->index < h->s->plan->n_steps)
        TSR_TRY(do_unit(h, q, &a, answer, err));
    else if (q->asked == TSR_ASKED_AMAX && q->index < h->s->plan->n_amaxes)
        TSR_TRY(do_amax(h, q, &a, err));
    else
        return tsr_fail(err, TSR_E_FORMAT, "rank 0 asks for what is not in the plan");
    TSR_TRY(tsr_text_status(answer, err));
    memcpy(answer->data, &a, sizeof a);
    return TSR_OK;
}

static void end_hand(void *argument)
{
    hand *const h = argument;
    for (unsigned i = 0; i < 2 * TSR_MAX_OUTPUTS; i++)
        free(h->held[i]);
    if (h->cells_of != 0)
        tsr_block_cells_free(&h->cells);
    tsr_io_end(h->io);
    free(h->memory);
    free(h);
}

static void *begin_hand(void *context)
{
    hand *const h = calloc(1, sizeof *h);
    if (h != NULL)
        h->s = context;
    return h;
}

/* ---- the whole ---- */

/* Gets a rank ready, and finds how many units it can have under way. */
static tsr_status begin_server(server *s, const tsr_engine_options *options, unsigned *units, tsr_err *err)
{
    const uint64_t tables = tsr_plan_memory(s->plan, 0), each = tsr_plan_memory(s->plan, 1) - tables;
    char why[64];
    unsigned threads;
    TSR_TRY(tsr_choose_threads(&options->run, tables, each, &threads, err));
    *units = threads;
    if (tsr_ranks_mine(options->ranks) == 0)
        return TSR_OK; /* which has an engine for it */
    s->task_bytes = tsr_round_up(tsr_max_u64(tsr_plan_unit_bytes(s->plan), DIGEST_PIECE) + 64, tsr_io_page());
    s->files = calloc(s->plan->n_files + 1, sizeof *s->files);
    if (s->files == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < s->plan->n_files; i++)
        s->files[i] = (tsr_io_file){.fd = -1, .direct = -1};
    tsr_cpu_kernels_init(&s->kernels, options->cpu_flags);
    (void)sem_init(&s->slots, 0, threads);
    s->io.mode = options->io;
    tsr_io_choose_reads(&s->io, s->plan, why, sizeof why);
    if (s->io.told.reads) /* so that reading and writing go on while others compute, as far as the memory allows */
        *units *= (unsigned)tsr_min_u64(TSR_IO_BATCHES, (options->run.memory - tables) / (each * threads + 1));
    *units = (unsigned)tsr_max_u64(*units, threads);
    return TSR_OK;
}

static void end_server(server *s)
{
    for (size_t i = 0; s->files != NULL && i < s->plan->n_files; i++) {
        if (s->files[i].fd >= 0)
            close(s->files[i].fd);
        if (s->files[i].direct >= 0)
            close(s->files[i].direct);
    }
    free(s->files);
    tsr_io_choice_end(&s->io);
}

tsr_status tsr_engine_join(const tsr_plan *plan, const char *dst, const tsr_engine_options *options, tsr_err *err)
{
    server s = {.plan = plan, .dst = dst, .lock = PTHREAD_MUTEX_INITIALIZER};
    const tsr_server how = {.context = &s, .begin = begin_hand, .answer = answer_request, .end = end_hand};
    unsigned units = 0;
    tsr_status status = begin_server(&s, options, &units, err);
    status = tsr_ranks_agree(options->ranks, status, units, plan->fingerprint, err);
    if (status == TSR_OK && tsr_ranks_mine(options->ranks) > 0)
        status = tsr_ranks_serve(options->ranks, &how, err);
    end_server(&s);
    return status;
}
