/* A rank but 0: each of its threads waits for units, carries them out, and says what they came to.
 *
 * Where files are read past the page cache, a rank has several threads for each unit that it may compute at a time: while one
 * computes, others read and write (`slots`). */
#include "convert/engine/engine.h"

#include "common/checked.h"
#include "common/file.h"
#include "convert/engine/engine_run.h"
#include "convert/engine/engine_serve_files.h"
#include "convert/engine/engine_wire.h"
#include "convert/engine/plan_reads.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What all threads of a rank share. */
typedef struct server {
    const tsr_plan *plan;
    tsr_cpu_kernels kernels;
    uint64_t task_bytes;
    sem_t slots; /* units that may be computed at a time */
    tsr_served_files files;
    tsr_shared_reads *shared; /* NULL: each unit reads for itself */
    pthread_mutex_t lock;
    uint64_t read_told; /* bytes read of the source that rank 0 knows of */
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

/* ---- reading and writing ---- */

/* Reads a window of the source to a place in *memory, which moves behind it. */
static tsr_status read_window(hand *h, const tsr_tensor *t, const tsr_window *w, char **memory, void **data,
                              tsr_err *err)
{
    const server *const s = h->s;
    const tsr_checkpoint *const source = s->plan->sources[t->source];
    const tsr_file *const file = &source->files[t->file];
    const uint64_t bytes = tsr_window_bytes(w), offset = t->offset + w->offset;
    const bool plain = tsr_window_is_gapless(w) && file->archive == NULL && s->shared == NULL;
    const tsr_io_file f = {.fd = file->fd, .direct = plain ? tsr_io_source(&s->files.io, t) : -1, .name = file->path};
    *data = tsr_io_place(&f, offset, bytes, memory);
    if (plain && bytes > 0) {
        tsr_io_read(h->io, &h->batch, &f, *data, bytes, offset);
        return tsr_io_wait(h->io, &h->batch, err);
    }
    if (s->shared != NULL)
        return tsr_shared_read(s->shared, source, t, w, *data, err);
    char *at = *data;
    for (uint64_t i = 0; i < w->rows; i++, at += w->row_bytes)
        TSR_TRY(tsr_checkpoint_read(source, t, w->offset + i * w->pitch, at, w->row_bytes, err));
    return TSR_OK;
}

/* Writes a window of an output or, when verifying, reads it; counts it. */
static tsr_status transfer(hand *h, const tsr_io_file *f, bool verifying, const tsr_tensor *t, const tsr_window *w,
                           char *at, tsr_digest *digest, tsr_err *err)
{
    const bool gapless = tsr_window_is_gapless(w);
    const uint64_t runs = gapless ? 1 : w->rows, bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    tsr_status status = TSR_OK;
    if (bytes == 0)
        return TSR_OK;
    const char *const data = at;
    if (!verifying && gapless)
        *digest = tsr_digest_of(&h->s->kernels, data, bytes);
    for (uint64_t i = 0; i < runs && status == TSR_OK; i++, at += bytes) {
        const uint64_t offset = t->offset + w->offset + i * w->pitch;
        if (gapless && verifying)
            tsr_io_read(h->io, &h->batch, f, at, bytes, offset);
        else if (gapless)
            status = tsr_io_write(h->io, &h->batch, f, at, bytes, offset, err);
        else if (!verifying) /* else rank 0 reads it in one go */
            status = tsr_io_write_cached(f, at, bytes, offset, err);
    }
    tsr_err later;
    const tsr_status ended = tsr_io_wait(h->io, &h->batch, status == TSR_OK ? err : &later);
    status = status == TSR_OK ? ended : status;
    if (verifying && gapless && status == TSR_OK)
        *digest = tsr_digest_of(&h->s->kernels, data, bytes);
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

/* Waits for a turn to compute, as long as it takes. */
static void take_slot(hand *h)
{
    while (sem_wait(&h->s->slots) != 0 && errno == EINTR)
        ;
}

static tsr_status compute(hand *h, const tsr_request *q, const tsr_step *step, const tsr_unit *u, tsr_unit_answer *a,
                          tsr_err *err)
{
    const tsr_tensor *const t = step->in[u->from[0]];
    take_slot(h);
    const tsr_digest read = tsr_source_sum(step, u, &h->s->kernels);
    const tsr_status status = step->op->run(step, q->part, u, &h->s->kernels, &a->stats, err);
    tsr_source_sum_add(&a->stats, read);
    (void)sem_post(&h->s->slots);
    return status == TSR_OK ? TSR_OK
                            : tsr_prepend(err, status, "%s", h->s->plan->sources[t->source]->files[t->file].path);
}

/* The digests of a whole appended file, which is verified in one go. */
static tsr_status digest_appended(hand *h, const tsr_io_file *f, tsr_unit_answer *a, tsr_text *answer, tsr_err *err)
{
    char *const memory = malloc(TSR_DIGEST_PIECE);
    const off_t size = lseek(f->fd, 0, SEEK_END);
    tsr_status status = memory == NULL ? tsr_out_of_memory(err, NULL)
                        : size < 0     ? tsr_fail_errno(err, "%s", f->name)
                                       : TSR_OK;
    for (uint64_t at = 0; status == TSR_OK && at < (uint64_t)size; at += TSR_DIGEST_PIECE) {
        const size_t n = (size_t)tsr_min_u64(TSR_DIGEST_PIECE, (uint64_t)size - at);
        status = tsr_read_at(f->fd, f->name, memory, n, at, err);
        const tsr_digest digest = status == TSR_OK ? tsr_digest_of(&h->s->kernels, memory, n) : (tsr_digest){0};
        tsr_text_append(answer, &digest, sizeof digest);
        a->appended += sizeof digest;
        a->bytes_out += n;
    }
    free(memory);
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
        TSR_TRY(tsr_served_find(&h->s->files, step->file, verifying, &file, err));
    if (verifying && appended)
        return digest_appended(h, &file, a, answer, err);
    TSR_TRY(get_ready(h, step, verifying, &file, &u, a, err));
    if (!verifying) {
        TSR_TRY(begin_notes(h, q->index, &u, err));
        TSR_TRY(place_given(h, given, &u, err));
        TSR_TRY(compute(h, q, step, &u, a, err));
    }
    if (appended)
        tsr_text_append(answer, u.out_data[0], a->appended);
    for (unsigned i = 0; i < step->n_out && !appended; i++) {
        if (tsr_is_held(step, i))
            continue;
        TSR_TRY(transfer(h, &file, verifying, step->out[i], &u.out[i], u.out_data[i], &a->digests[i], err));
        a->bytes_out += tsr_window_bytes(&u.out[i]);
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
    take_slot(h);
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

/* Bytes of source files that this rank has read and not told of; `mine`: by this unit, where nothing is shared. */
static uint64_t bytes_read_since(server *s, uint64_t mine)
{
    if (s->shared == NULL)
        return mine;
    pthread_mutex_lock(&s->lock);
    const uint64_t before = s->read_told;
    s->read_told = tsr_shared_bytes(s->shared);
    const uint64_t since = s->read_told - before;
    pthread_mutex_unlock(&s->lock);
    return since;
}

/* After a failure rank 0 ends the job; nobody asks for another unit of this thread's leftovers. */
static tsr_status answer_request(void *argument, const tsr_request *q, tsr_text *answer, tsr_err *err)
{
    hand *const h = argument;
    tsr_unit_answer a;
    memset(&a, 0, sizeof a);
    if (q->asked == TSR_ASKED_SETTLE)
        return tsr_served_settle(&h->s->files, q, err);
    TSR_TRY(find_memory(h, err));
    tsr_text_append(answer, &a, sizeof a); /* its place */
    if (q->asked == TSR_ASKED_UNIT && q->index < h->s->plan->n_steps)
        TSR_TRY(do_unit(h, q, &a, answer, err));
    else if (q->asked == TSR_ASKED_AMAX && q->index < h->s->plan->n_amaxes)
        TSR_TRY(do_amax(h, q, &a, err));
    else
        return tsr_fail(err, TSR_E_FORMAT, "rank 0 asks for what is not in the plan");
    TSR_TRY(tsr_text_status(answer, err));
    a.bytes_read = bytes_read_since(h->s, a.bytes_in);
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

/* What several lanes want is read once, if the memory holds the table. */
static void share_reads(server *s, uint64_t capacity)
{
    s->shared = tsr_shared_begin(capacity);
    if (s->shared != NULL && tsr_plan_announce(s->plan, NULL, s->shared, NULL, NULL) != TSR_OK) {
        tsr_shared_end(s->shared);
        s->shared = NULL;
    }
    for (size_t k = 0; s->shared != NULL && k < s->plan->n_sources; k++) {
        const tsr_checkpoint *const source = s->plan->sources[k];
        for (uint32_t file = 0; file < source->n_files; file++)
            tsr_shared_read_directly(s->shared, &source->files[file],
                                     tsr_io_source(&s->files.io, &(tsr_tensor){.source = (uint16_t)k, .file = file}),
                                     false);
    }
}

/* Gets a rank ready, and finds how many units it can have under way. */
static tsr_status begin_server(server *s, const tsr_engine_options *options, unsigned *units, tsr_err *err)
{
    char why[64];
    const unsigned ranks = tsr_ranks_count(options->ranks);
    tsr_rank_memory memory;
    s->files.io.mode = options->io;
    if (tsr_ranks_mine(options->ranks) > 0) /* rank 0 has an engine for it */
        tsr_io_choose_reads(&s->files.io, s->plan, why, sizeof why);
    /* Where files do not pass the page cache, reading and writing go on while others compute. */
    TSR_TRY(tsr_divide_rank_memory(s->plan, &options->run, ranks, s->files.io.told.reads, &memory, err));
    *units = memory.units;
    if (tsr_ranks_mine(options->ranks) == 0)
        return TSR_OK;
    s->task_bytes = tsr_round_up(tsr_plan_unit_bytes(s->plan) + 64, tsr_io_page());
    TSR_TRY(tsr_served_begin(&s->files, err));
    tsr_cpu_kernels_init(&s->kernels, options->cpu_flags);
    (void)sem_init(&s->slots, 0, memory.threads);
    if (memory.shared > 0)
        share_reads(s, memory.shared);
    return TSR_OK;
}

static void end_server(server *s)
{
    tsr_shared_end(s->shared);
    tsr_served_end(&s->files);
}

tsr_status tsr_engine_join(const tsr_plan *plan, const char *dst, const tsr_engine_options *options, tsr_err *err)
{
    server s = {.plan = plan,
                .lock = PTHREAD_MUTEX_INITIALIZER,
                .files = {.plan = plan, .dst = dst, .lock = PTHREAD_MUTEX_INITIALIZER}};
    const tsr_server how = {.context = &s, .begin = begin_hand, .answer = answer_request, .end = end_hand};
    unsigned units = 0;
    tsr_status status = begin_server(&s, options, &units, err);
    status = tsr_ranks_agree(options->ranks, status, units, plan->fingerprint, err);
    if (status == TSR_OK && tsr_ranks_mine(options->ranks) > 0)
        status = tsr_ranks_serve(options->ranks, &how, err);
    end_server(&s);
    return status;
}
