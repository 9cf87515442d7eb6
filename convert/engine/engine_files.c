/* Output files: writing their bytes or, when verifying, reading them back; their digests; and their commits. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a window has in its file: `n` stretches, one where there are no gaps. */
typedef struct stretches {
    uint64_t n, bytes, pitch, offset;
} stretches;

static stretches stretches_of(const tsr_tensor *t, const tsr_window *w)
{
    const bool gapless = tsr_window_is_gapless(w);
    const uint64_t bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    return (stretches){.n = bytes == 0 ? 0
                            : gapless  ? 1
                                       : w->rows,
                       .bytes = bytes,
                       .pitch = w->pitch,
                       .offset = t->offset + w->offset};
}

void *tsr_run_place_output(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, char **memory)
{
    return tsr_io_place(&r->files[t->file].io, t->offset + w->offset, tsr_window_bytes(w), memory);
}

bool tsr_run_begin_output(const tsr_run *r, size_t step, unsigned i, const tsr_window *w, void *data, tsr_outgoing *out)
{
    const tsr_tensor *const t = r->plan->steps[step].out[i];
    const stretches s = stretches_of(t, w);
    if (s.n != 1)
        return false;
    const tsr_cpu_kernels *const kernels = tsr_is_by_unit(&r->digests, step, i) ? &r->kernels : NULL;
    tsr_outgoing_begin(out, kernels, &r->files[t->file].io, data, s.bytes, s.offset);
    return true;
}

tsr_status tsr_run_write_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, const void *data,
                                tsr_err *err)
{
    const tsr_io_file *const f = &r->files[t->file].io;
    const stretches s = stretches_of(t, w);
    const char *at = data;
    for (uint64_t i = 0; i < s.n; i++, at += s.bytes)
        TSR_TRY(tsr_io_write_cached(f, at, s.bytes, s.offset + i * s.pitch, err));
    return TSR_OK;
}

tsr_status tsr_run_read_back(tsr_run *r, tsr_task *task, const tsr_tensor *t, const tsr_window *w, void *data,
                             tsr_err *err)
{
    const tsr_io_file *const f = &r->files[t->file].io;
    const stretches s = stretches_of(t, w);
    char *at = data;
    if (task != NULL && s.n == 1) {
        tsr_io_read(task->io, &task->batch, f, data, s.bytes, s.offset);
        return TSR_OK;
    }
    for (uint64_t i = 0; i < s.n; i++, at += s.bytes)
        TSR_TRY(tsr_read_at(f->fd, f->name, at, s.bytes, s.offset + i * s.pitch, err));
    return TSR_OK;
}

/* Whether a window is one stretch of a file that nobody else reads. */
static bool is_plain(const tsr_run *r, const tsr_tensor *t, const tsr_window *w)
{
    return tsr_window_is_gapless(w) && r->crew->shared == NULL &&
           r->plan->sources[t->source]->files[t->file].archive == NULL;
}

/* Reads a window of a source as the checkpoint or the stretches that several share have it, at once. */
static tsr_status read_now(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, void *data, tsr_err *err)
{
    const tsr_checkpoint *const source = r->plan->sources[t->source];
    if (r->crew->shared != NULL)
        return tsr_shared_read(r->crew->shared, source, t, w, data, err);
    if (tsr_window_is_gapless(w))
        return tsr_checkpoint_read(source, t, w->offset, data, tsr_window_bytes(w), err);
    char *at = data;
    for (uint64_t row = 0; row < w->rows; row++, at += w->row_bytes)
        TSR_TRY(tsr_checkpoint_read(source, t, w->offset + row * w->pitch, at, w->row_bytes, err));
    return TSR_OK;
}

tsr_status tsr_run_read_window(tsr_task *task, const tsr_tensor *t, const tsr_window *w, char **memory, void **data,
                               tsr_err *err)
{
    const tsr_run *const r = task->work.run;
    const tsr_file *const file = &r->plan->sources[t->source]->files[t->file];
    const uint64_t bytes = tsr_window_bytes(w), offset = t->offset + w->offset;
    const bool plain = is_plain(r, t, w);
    const tsr_io_file f = {.fd = file->fd, .direct = plain ? tsr_io_source(&r->io, t) : -1, .name = file->path};
    *data = tsr_io_place(&f, offset, bytes, memory);
    if (!plain)
        return read_now(r, t, w, *data, err);
    if (bytes > 0)
        tsr_io_read(task->io, &task->batch, &f, *data, bytes, offset);
    return TSR_OK;
}

void tsr_run_prefetch_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w)
{
    const tsr_checkpoint *const source = r->plan->sources[t->source];
    if (is_plain(r, t, w) && tsr_io_source(&r->io, t) >= 0)
        return; /* it does not pass the page cache */
    if (r->crew->shared != NULL)
        tsr_shared_prefetch(r->crew->shared, source, t, w);
    else
        tsr_checkpoint_prefetch(source, t, w->offset, (w->rows - 1) * w->pitch + w->row_bytes);
}

/* Writes the header or, when verifying, reads it. */
static tsr_status transfer_header(tsr_run *r, size_t file, tsr_err *err)
{
    const tsr_out_file *const f = &r->plan->files[file];
    const tsr_tensor place = {.file = (uint32_t)file};
    if (f->raw)
        return TSR_OK;
    tsr_text header = {0};
    if (f->header != NULL)
        tsr_text_append(&header, f->header, f->header_bytes);
    else
        tsr_safetensors_write_header(&header, f->tensors, f->n_tensors);
    tsr_status status = tsr_text_status(&header, err);
    const tsr_window all = {.rows = 1, .row_bytes = header.size, .pitch = header.size};
    if (status == TSR_OK)
        status = r->verifying            ? tsr_run_read_back(r, NULL, &place, &all, header.data, err)
                 : r->files[file].linked ? TSR_OK /* it is the source's, byte for byte */
                                         : tsr_run_write_window(r, &place, &all, header.data, err);
    if (status == TSR_OK)
        r->digests.headers[file] = tsr_digest_of(&r->kernels, header.data, header.size);
    r->files[file].done += header.size;
    tsr_text_free(&header);
    return status;
}

/* Makes a file that is a source's whole a hard link, or the file that was just created a reflink. Where that cannot be done, it is
 * copied. */
static void try_link(tsr_run *r, size_t file, const char *path)
{
    tsr_file_state *const f = &r->files[file];
    const tsr_file *const source = tsr_links_source(r->plan, file);
    errno = 0;
    if (r->link == TSR_LINK_HARD) {
        f->io.fd = tsr_links_name(path, source);
        f->linked = f->named = f->io.fd >= 0;
    } else {
        f->linked = tsr_links_share(f->io.fd, source);
    }
    tsr_links_note(&r->links, f->io.name, f->linked ? 0 : errno);
}

/* Creates a file that is to be made, or links it. */
static tsr_status create_file(tsr_run *r, size_t file, tsr_err *err)
{
    tsr_file_state *const f = &r->files[file];
    const bool whole = r->whole != NULL && r->whole[file];
    char path[PATH_MAX];
    TSR_TRY(tsr_make_parent(tsr_run_path(r, file, path), err));
    if (whole && r->link == TSR_LINK_HARD)
        try_link(r, file, path);
    if (f->linked)
        return TSR_OK;
    f->io.fd = tsr_open(tsr_part_path(r->dst, file, path), O_RDWR | O_CREAT | O_EXCL);
    if (f->io.fd < 0)
        return tsr_fail_errno(err, "%s: cannot create", path);
    if (whole && r->link == TSR_LINK_REFLINK)
        try_link(r, file, path);
    return f->linked || r->plan->files[file].appended
               ? TSR_OK
               : tsr_io_open_write(&r->io, path, f->io.fd, r->plan->files[file].bytes, &f->io.direct, err);
}

tsr_status tsr_run_open_file(tsr_run *r, size_t file, tsr_err *err)
{
    tsr_file_state *const f = &r->files[file];
    char path[PATH_MAX], why[64];
    f->phase = TSR_FILE_OPEN;
    f->done = 0;
    f->io.name = r->plan->files[file].name;
    f->steps_left = r->plan->files[file].n_steps;
    r->n_open++;
    if (!r->verifying) {
        TSR_TRY(create_file(r, file, err));
        return transfer_header(r, file, err);
    }
    f->io.fd = tsr_open(tsr_run_path(r, file, path), O_RDONLY);
    if (f->io.fd < 0)
        return tsr_fail_errno(err, "%s: cannot open", path);
    f->io.direct = tsr_io_open_read(r->io.mode, path, f->io.fd, why, sizeof why);
    return transfer_header(r, file, err);
}

void tsr_run_close_file(tsr_file_state *f)
{
    if (f->io.fd >= 0)
        close(f->io.fd);
    if (f->io.direct >= 0)
        close(f->io.direct);
    f->io.fd = f->io.direct = -1;
}

/* Digests what is in no unit's hands as a whole piece: reads it back, as much at a time as stays in the processor's cache. */
static tsr_status digest_output(tsr_run *r, size_t step, unsigned i, char *memory, tsr_err *err)
{
    const tsr_tensor *const t = r->plan->steps[step].out[i];
    const tsr_io_file *const f = &r->files[t->file].io;
    tsr_digest *const to = tsr_digests_at(&r->digests, step, i);
    XXH3_state_t hash;
    for (uint64_t at = 0, n; at < t->bytes; at += n) {
        n = tsr_min_u64(TSR_PIECE_BYTES, t->bytes - at);
        if (at % TSR_DIGEST_PIECE == 0)
            (void)XXH3_128bits_reset(&hash);
        TSR_TRY(tsr_read_at(f->fd, f->name, memory, n, t->offset + at, err));
        r->kernels.hash_xxh3(&hash, memory, n);
        if ((at + n) % TSR_DIGEST_PIECE == 0 || at + n == t->bytes)
            to[at / TSR_DIGEST_PIECE] = XXH3_128bits_digest(&hash);
    }
    return TSR_OK;
}

static tsr_status digest_rest(tsr_run *r, size_t file, tsr_err *err)
{
    const tsr_out_file *const f = &r->plan->files[file];
    tsr_status status = TSR_OK;
    char *memory = NULL;
    for (size_t s = f->first_step; s < f->first_step + f->n_steps && status == TSR_OK && !f->appended; s++) {
        const tsr_step *const step = &r->plan->steps[s];
        for (unsigned i = 0; i < step->n_out && status == TSR_OK; i++) {
            if (tsr_is_held(step, i) || tsr_is_by_unit(&r->digests, s, i) || step->out[i]->bytes == 0)
                continue;
            memory = memory == NULL ? malloc(TSR_PIECE_BYTES) : memory;
            status = memory == NULL ? tsr_out_of_memory(err, "for the digests") : digest_output(r, s, i, memory, err);
        }
    }
    free(memory);
    return status;
}

/* The digest of a file by which the journal knows it. */
static tsr_status digest_file(tsr_run *r, size_t file, uint64_t *digest, tsr_err *err)
{
    tsr_digest all;
    TSR_TRY(digest_rest(r, file, err));
    TSR_TRY(tsr_digests_file(&r->digests, file, &all, err));
    *digest = all.low64;
    return TSR_OK;
}

/* Makes a whole file durable under its name. */
static tsr_status publish(const tsr_file_state *f, const char *from, const char *to, tsr_err *err)
{
    if (!f->named)
        return tsr_commit_file(f->io.fd, from, to, err);
    /* Whoever wrote the source may not have synced it. */
    return tsr_sync(f->io.fd) != 0 ? tsr_fail_errno(err, "%s: cannot sync", to) : tsr_sync_parent(to, err);
}

/* After converting: makes the file durable under its name and records it in the journal. After verifying: compares its
 * digest with the journal's. */
static tsr_status commit(tsr_run *r, size_t file, tsr_err *err)
{
    tsr_file_state *const f = &r->files[file];
    tsr_status status = tsr_run_settle_file(r, file, err);
    uint64_t digest = 0;
    if (status == TSR_OK)
        status = digest_file(r, file, &digest, err);
    if (r->verifying) {
        r->journal.finished[file] = digest == r->journal.digests[file];
    } else {
        char from[PATH_MAX], to[PATH_MAX];
        struct stat st;
        tsr_part_path(r->dst, file, from);
        tsr_run_path(r, file, to);
        const uint64_t bytes = r->plan->files[file].appended ? f->end : r->plan->files[file].bytes;
        if (status == TSR_OK && fstat(f->io.fd, &st) != 0)
            status = tsr_fail_errno(err, "%s: cannot look at it", f->named ? to : from);
        else if (status == TSR_OK && (uint64_t)st.st_size != bytes)
            status = tsr_fail(err, TSR_E_IO, "%s: %llu bytes were planned, but the file has %llu", from, U64(bytes),
                              U64(st.st_size));
        else if (f->done != bytes) /* room was made for all of them, so the size alone does not tell */
            status = tsr_fail(err, TSR_E_IO, "%s: %llu bytes were planned, but %llu were written", from, U64(bytes),
                              U64(f->done));
        if (status == TSR_OK)
            status = tsr_watch_check(&r->watch, r->plan, file, err);
        if (status == TSR_OK)
            status = publish(f, from, to, err);
        if (status == TSR_OK)
            status = tsr_run_keep_blocks(r, file, err);
        if (status == TSR_OK)
            status = tsr_journal_add(&r->journal, r->plan, file, digest, r->rows, err);
        if (status != TSR_OK)
            unlink(to); /* it is not in the journal, so no run would know it */
    }
    tsr_run_close_file(f);
    return status;
}

void *tsr_run_commit_files(void *argument)
{
    tsr_run *const r = argument;
    tsr_err err = {{0}};
    tsr_status status = TSR_OK;
    bool over = false;
    pthread_mutex_lock(&r->crew->lock);
    while (status == TSR_OK && !over) {
        tsr_lane *const lane = tsr_run_next_whole(r, &over);
        if (lane == NULL) {
            /* What is whole is kept even when the run has failed; the rest will not come. */
            over = over || r->failure.status != TSR_OK;
            if (!over)
                pthread_cond_wait(&r->crew->changed, &r->crew->lock);
            continue;
        }
        const size_t file = lane->next_file++;
        if (r->plan->files[file].n_steps == 0)
            status = tsr_run_open_file(r, file, &err);
        pthread_mutex_unlock(&r->crew->lock);
        if (status == TSR_OK)
            status = commit(r, file, &err);
        pthread_mutex_lock(&r->crew->lock);
        if (status != TSR_OK) {
            tsr_run_note_failure(r, status, &err);
            continue;
        }
        r->files[file].phase = TSR_FILE_DONE;
        r->n_open--;
        pthread_cond_broadcast(&r->crew->changed);
    }
    pthread_mutex_unlock(&r->crew->lock);
    return NULL;
}
