/* A rank but 0: each of its threads waits for units, carries them out, and says what they came to. */
#include "convert/engine/ranks_wire.h"

#include "common/checked.h"
#include "common/file.h"
#include "convert/engine/destination.h"
#include "convert/engine/engine_run.h"
#include "convert/engine/plan_reads.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Another client of a network file system may not see a new file's name at once. */
enum { OPEN_TRIES = 300, OPEN_PAUSE_MS = 100, DIGEST_PIECE = 1 << 20 };

/* What all threads of a rank share. */
typedef struct server {
    tsr_ranks *ranks;
    const tsr_plan *plan;
    const char *dst;
    tsr_cpu_kernels kernels;
    uint64_t unit_bytes;
    pthread_mutex_t lock;
    int *fds; /* [n_files]: open output files; -1 */
    atomic_uint next_channel;
} server;

/* What a thread works with. */
typedef struct hand {
    server *s;
    int channel;
    char *memory;
    char *held[TSR_MAX_OUTPUTS]; /* zeros, but while a unit is carried out */
    uint64_t held_bytes[TSR_MAX_OUTPUTS];
    tsr_block_cells cells; /* of step cells_of - 1, and zeros likewise */
    size_t cells_of;
    tsr_block_notes notes;
    tsr_text payload;
} hand;

/* ---- files ---- */

/* Only for writing: then a network file system does not read the rest of a page of which another rank writes that rest, and does
 * not write it back. */
static int open_patiently(const char *path, int flags)
{
    int fd = -1;
    for (int i = 0; i < OPEN_TRIES; i++) {
        fd = open(path, flags);
        if (fd >= 0 || errno != ENOENT)
            break;
        const struct timespec rest = {.tv_nsec = OPEN_PAUSE_MS * 1000000L};
        (void)nanosleep(&rest, NULL);
    }
    return fd;
}

static tsr_status open_output(server *s, size_t file, bool verifying, int *fd, tsr_err *err)
{
    char path[PATH_MAX];
    pthread_mutex_lock(&s->lock);
    if (s->fds[file] < 0 && verifying)
        s->fds[file] = open_patiently(tsr_output_path(s->dst, s->plan->files[file].name, path), O_RDONLY | O_CLOEXEC);
    else if (s->fds[file] < 0)
        s->fds[file] = open_patiently(tsr_part_path(s->dst, file, path), O_WRONLY | O_CLOEXEC);
    *fd = s->fds[file];
    const tsr_status status =
        *fd < 0 ? tsr_fail_errno(err, "%s: cannot open: do all ranks see this directory?", path) : TSR_OK;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* The last that is wanted of a file. */
static tsr_status settle(server *s, const tsr_request *q, tsr_err *err)
{
    if (q->index >= s->plan->n_files)
        return tsr_fail(err, TSR_E_FORMAT, "rank 0 speaks of a file that is not in the plan");
    pthread_mutex_lock(&s->lock);
    const int fd = s->fds[q->index];
    s->fds[q->index] = -1;
    pthread_mutex_unlock(&s->lock);
    tsr_status status = TSR_OK;
    if (fd >= 0 && !q->verifying && fdatasync(fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", s->plan->files[q->index].name);
    if (fd >= 0 && close(fd) != 0 && status == TSR_OK && !q->verifying)
        status = tsr_fail_errno(err, "%s: cannot close", s->plan->files[q->index].name);
    return status;
}

/* ---- units ---- */

static tsr_status read_window(const server *s, const tsr_tensor *t, const tsr_window *w, char *to, tsr_err *err)
{
    const tsr_checkpoint *const source = s->plan->sources[t->source];
    const bool gapless = w->pitch == w->row_bytes;
    const uint64_t runs = gapless ? w->rows > 0 : w->rows, bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    for (uint64_t i = 0; i < runs; i++)
        TSR_TRY(tsr_checkpoint_read(source, t, w->offset + i * w->pitch, to + i * bytes, bytes, err));
    return TSR_OK;
}

/* Writes a window of an output or, when verifying, reads it; counts it. */
static tsr_status transfer(const server *s, int fd, bool verifying, const tsr_tensor *t, const tsr_window *w, char *at,
                           tsr_answer *a, tsr_err *err)
{
    const char *const name = s->plan->files[t->file].name;
    const bool gapless = w->pitch == w->row_bytes || w->rows == 1;
    const uint64_t runs = gapless ? 1 : w->rows, bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    for (uint64_t i = 0; i < runs && bytes > 0; i++, at += bytes) {
        const uint64_t offset = t->offset + w->offset + i * w->pitch;
        if (verifying)
            TSR_TRY(tsr_read_at(fd, name, at, bytes, offset, err));
        a->digest += XXH3_64bits_withSeed(at, bytes, offset);
        if (!verifying)
            TSR_TRY(tsr_write_at(fd, name, at, bytes, offset, err));
        a->bytes_out += bytes;
    }
    return TSR_OK;
}

/* A held output's room, which is zeros. */
static tsr_status place_held(hand *h, const tsr_step *step, unsigned i, tsr_err *err)
{
    const uint64_t bytes = step->out[i]->bytes;
    if (h->held[i] != NULL && h->held_bytes[i] >= bytes)
        return TSR_OK;
    free(h->held[i]);
    h->held[i] = calloc(bytes + 8, 1);
    h->held_bytes[i] = h->held[i] == NULL ? 0 : bytes;
    return h->held[i] == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", step->out[i]->name) : TSR_OK;
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

static tsr_status place_buffers(hand *h, const tsr_step *step, tsr_unit *u, tsr_err *err)
{
    char *memory = h->memory;
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        u->in_data[i] = memory;
        memory += tsr_round_up(tsr_window_bytes(&u->in[i]), 64);
    }
    for (unsigned i = 0; i < step->n_out; i++) {
        u->out_data[i] = memory;
        if (tsr_is_held(step, i)) {
            TSR_TRY(place_held(h, step, i, err));
            u->out_data[i] = h->held[i];
        } else {
            memory += tsr_round_up(tsr_window_bytes(&u->out[i]), 64);
        }
    }
    u->scratch = memory;
    return TSR_OK;
}

/* Appends what the unit put into a held output, and makes it zeros again. */
static void pack_held(hand *h, const tsr_step *step, unsigned i, tsr_held_part *part)
{
    char *const held = h->held[i];
    uint64_t first = 0, end = step->out[i]->bytes;
    while (end - first >= 8 && memcmp(held + first, (const char[8]){0}, 8) == 0)
        first += 8;
    while (first < end && held[first] == 0)
        first++;
    while (end - first >= 8 && memcmp(held + end - 8, (const char[8]){0}, 8) == 0)
        end -= 8;
    while (end > first && held[end - 1] == 0)
        end--;
    *part = (tsr_held_part){.first = first, .bytes = end - first};
    tsr_text_append(&h->payload, held + first, end - first);
    memset(held + first, 0, end - first);
}

static tsr_status make_unit(hand *h, const tsr_request *q, const tsr_step *step, tsr_unit *u, tsr_answer *a,
                            tsr_err *err)
{
    TSR_TRY(begin_notes(h, q->index, u, err));
    for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
        if (u->in[i].rows > 0)
            TSR_TRY(read_window(h->s, step->in[u->from[i]], &u->in[i], u->in_data[i], err));
        a->bytes_in += tsr_window_bytes(&u->in[i]);
    }
    u->appended = &a->appended;
    u->amax = q->amax;
    const tsr_status status = step->op->run(step, q->unit, u, &h->s->kernels, &a->stats, err);
    const tsr_tensor *const t = step->in[u->from[0]];
    if (status != TSR_OK)
        return tsr_prepend(err, status, "%s", h->s->plan->sources[t->source]->files[t->file].path);
    return TSR_OK;
}

/* The digest of a whole appended file, which is verified in one go. */
static tsr_status digest_appended(int fd, const char *name, char *memory, tsr_answer *a, tsr_err *err)
{
    XXH3_state_t *const state = XXH3_createState();
    const off_t size = lseek(fd, 0, SEEK_END);
    tsr_status status = state == NULL ? tsr_out_of_memory(err, NULL)
                        : size < 0    ? tsr_fail_errno(err, "%s", name)
                                      : TSR_OK;
    if (status == TSR_OK)
        (void)XXH3_64bits_reset(state);
    for (uint64_t at = 0; status == TSR_OK && at < (uint64_t)size; at += DIGEST_PIECE) {
        const size_t n = (size_t)tsr_min_u64(DIGEST_PIECE, (uint64_t)size - at);
        status = tsr_read_at(fd, name, memory, n, at, err);
        if (status == TSR_OK)
            (void)XXH3_64bits_update(state, memory, n);
        a->bytes_out += n;
    }
    a->digest = state == NULL ? 0 : XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    return status;
}

static tsr_status do_unit(hand *h, const tsr_request *q, tsr_answer *a, tsr_err *err)
{
    const tsr_step *const step = &h->s->plan->steps[q->index];
    const tsr_out_file *const file = &h->s->plan->files[step->file];
    tsr_unit u = tsr_step_unit(step, q->unit);
    int fd = -1;
    if (q->verifying || !file->appended)
        TSR_TRY(open_output(h->s, step->file, q->verifying, &fd, err));
    if (q->verifying && file->appended)
        return digest_appended(fd, file->name, h->memory, a, err);
    TSR_TRY(place_buffers(h, step, &u, err));
    if (!q->verifying)
        TSR_TRY(make_unit(h, q, step, &u, a, err));
    if (file->appended && !q->verifying)
        tsr_text_append(&h->payload, u.out_data[0], a->appended);
    for (unsigned i = 0; i < step->n_out && !file->appended; i++) {
        if (!tsr_is_held(step, i))
            TSR_TRY(transfer(h->s, fd, q->verifying, step->out[i], &u.out[i], u.out_data[i], a, err));
    }
    if (q->verifying)
        return TSR_OK;
    const size_t before = h->payload.size;
    if (u.notes != NULL)
        tsr_block_cells_pack(&h->cells, u.notes, &h->payload);
    a->blocks = h->payload.size - before;
    for (unsigned i = 0; i < step->n_out; i++) {
        if (tsr_is_held(step, i))
            pack_held(h, step, i, &a->held[i]);
    }
    return tsr_text_status(&h->payload, err);
}

static tsr_status do_amax(hand *h, const tsr_request *q, tsr_answer *a, tsr_err *err)
{
    const tsr_amax_rows at = tsr_amax_unit(h->s->plan->amaxes[q->index], q->unit);
    const tsr_tensor *const t = tsr_amax_input(&at, 0);
    void *data[TSR_DECODED_INPUTS];
    char *memory = h->memory;
    for (uint32_t i = 0; i < at.n_in; i++) {
        data[i] = memory;
        memory += tsr_round_up(tsr_window_bytes(&at.in[i]), 64);
        if (at.in[i].rows > 0)
            TSR_TRY(read_window(h->s, tsr_amax_input(&at, i), &at.in[i], data[i], err));
    }
    a->bytes_in = tsr_amax_rows_bytes(&at);
    const tsr_status status = tsr_amax_of_rows(&h->s->kernels, &at, memory, data, &a->amax, err);
    return status == TSR_OK ? TSR_OK
                            : tsr_prepend(err, status, "%s", h->s->plan->sources[t->source]->files[t->file].path);
}

/* After a failure rank 0 ends the job; nobody asks for another unit of this thread's leftovers. */
static void answer(hand *h, const tsr_request *q, tsr_answer *a)
{
    const tsr_plan *const plan = h->s->plan;
    h->payload.size = 0;
    if (q->asked == TSR_ASKED_UNIT && q->index < plan->n_steps)
        a->status = do_unit(h, q, a, &a->err);
    else if (q->asked == TSR_ASKED_AMAX && q->index < plan->n_amaxes)
        a->status = do_amax(h, q, a, &a->err);
    else if (q->asked == TSR_ASKED_SETTLE)
        a->status = settle(h->s, q, &a->err);
    else
        a->status = tsr_fail(&a->err, TSR_E_FORMAT, "rank 0 asks for what is not in the plan");
    if (a->status != TSR_OK) {
        a->appended = a->blocks = 0;
        memset(a->held, 0, sizeof a->held);
    }
}

static void free_hand(hand *h)
{
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++)
        free(h->held[i]);
    if (h->cells_of != 0)
        tsr_block_cells_free(&h->cells);
    tsr_text_free(&h->payload);
    free(h->memory);
}

/* A thread, on a channel of its own; the one of channel 0 settles files. */
static void *serve(void *argument)
{
    server *const s = argument;
    const tsr_transport *const t = s->ranks->transport;
    hand h = {.s = s,
              .channel = (int)atomic_fetch_add(&s->next_channel, 1),
              .memory = aligned_alloc(64, tsr_round_up(tsr_max_u64(s->unit_bytes, DIGEST_PIECE) + 64, 64))};
    tsr_request q;
    while (t->receive(0, h.channel, &q, sizeof q) && q.asked != TSR_ASKED_STOP) {
        tsr_answer a;
        memset(&a, 0, sizeof a);
        if (h.memory == NULL)
            a.status = tsr_fail(&a.err, TSR_E_NOMEM, "out of memory for a worker's %llu bytes", U64(s->unit_bytes));
        else
            answer(&h, &q, &a);
        const uint64_t more = tsr_answer_bytes(&a);
        if (!t->send(0, h.channel, &a, sizeof a) || (more > 0 && !t->send(0, h.channel, h.payload.data, more)))
            break;
    }
    free_hand(&h);
    return NULL;
}

static void say_nothing(void *argument)
{
    (void)argument;
}

tsr_status tsr_ranks_serve(tsr_ranks *ranks, const tsr_plan *plan, const char *dst, unsigned cpu_flags, tsr_err *err)
{
    server s = {.ranks = ranks,
                .plan = plan,
                .dst = dst,
                .unit_bytes = tsr_plan_unit_bytes(plan),
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .fds = malloc((plan->n_files + 1) * sizeof *s.fds)};
    const unsigned threads = ranks->threads[ranks->transport->rank] + TSR_CHANNEL_THREADS;
    if (s.fds == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < plan->n_files; i++)
        s.fds[i] = -1;
    tsr_cpu_kernels_init(&s.kernels, cpu_flags);
    /* Fewer threads than were promised would leave rank 0 waiting: the process ends, and mpirun the others. */
    const unsigned ran = tsr_run_threads(threads, serve, say_nothing, &s);
    for (size_t i = 0; i < plan->n_files; i++) {
        if (s.fds[i] >= 0)
            close(s.fds[i]);
    }
    free(s.fds);
    return ran == threads ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "cannot start %u threads", threads);
}
