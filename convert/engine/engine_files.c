/* Output files: writing their bytes or, when verifying, reading them back; their digests; and their commits. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"
#include "common/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORTH_WRITING_BACK = 1 << 16 }; /* bytes of a run */

static tsr_status transfer(tsr_run *r, size_t file, void *data, size_t size, uint64_t offset, uint64_t *digest,
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
    /* Writing back begins now, so that the fsync at the end has little left to wait for. Not so after a small run: its
     * pages are about to get their other runs, and would be written once for each. */
    if (size >= WORTH_WRITING_BACK)
        (void)sync_file_range(fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
    return TSR_OK;
}

tsr_status tsr_run_transfer_window(tsr_run *r, const tsr_tensor *t, const tsr_window *w, void *data, uint64_t *digest,
                                   tsr_err *err)
{
    char *at = data;
    const bool gapless = w->pitch == w->row_bytes;
    const uint64_t rows = gapless ? 1 : w->rows, bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    for (uint64_t row = 0; row < rows && bytes > 0; row++, at += bytes)
        TSR_TRY(transfer(r, t->file, at, bytes, t->offset + w->offset + row * w->pitch, digest, err));
    return TSR_OK;
}

tsr_status tsr_run_read_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, void *data, tsr_err *err)
{
    const tsr_checkpoint *const source = r->plan->sources[t->source];
    if (r->crew->shared != NULL)
        return tsr_shared_read(r->crew->shared, source, t, w, data, err);
    if (w->pitch == w->row_bytes)
        return tsr_checkpoint_read(source, t, w->offset, data, tsr_window_bytes(w), err);
    char *at = data;
    for (uint64_t row = 0; row < w->rows; row++, at += w->row_bytes)
        TSR_TRY(tsr_checkpoint_read(source, t, w->offset + row * w->pitch, at, w->row_bytes, err));
    return TSR_OK;
}

void tsr_run_prefetch_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w)
{
    const tsr_checkpoint *const source = r->plan->sources[t->source];
    if (r->crew->shared != NULL)
        tsr_shared_prefetch(r->crew->shared, source, t, w);
    else
        tsr_checkpoint_prefetch(source, t, w->offset, (w->rows - 1) * w->pitch + w->row_bytes);
}

static tsr_status transfer_header(tsr_run *r, size_t file, uint64_t *digest, tsr_err *err)
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

tsr_status tsr_run_open_file(tsr_run *r, size_t file, tsr_err *err)
{
    tsr_file_state *const f = &r->files[file];
    char path[PATH_MAX];
    f->phase = TSR_FILE_OPEN;
    f->digest = 0;
    f->steps_left = r->plan->files[file].n_steps;
    if (r->verifying) {
        f->fd = open(tsr_run_path(r, file, path), O_RDONLY | O_CLOEXEC);
    } else {
        TSR_TRY(tsr_make_parent(tsr_run_path(r, file, path), err));
        f->fd = open(tsr_part_path(r->dst, file, path), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (f->fd < 0)
        return tsr_fail_errno(err, "%s: cannot %s", path, r->verifying ? "open" : "create");
    r->n_open++;
    return transfer_header(r, file, &f->digest, err);
}

/* After converting: makes the file durable under its name and records it in the journal. After verifying: compares its
 * digest with the journal's. */
static tsr_status commit(tsr_run *r, size_t file, tsr_err *err)
{
    tsr_file_state *const f = &r->files[file];
    tsr_status status = TSR_OK;
    if (r->verifying) {
        r->journal.finished[file] = f->digest == r->journal.digests[file];
    } else {
        char from[PATH_MAX], to[PATH_MAX];
        struct stat st;
        tsr_part_path(r->dst, file, from);
        tsr_run_path(r, file, to);
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
            status = tsr_run_keep_blocks(r, file, err);
        if (status == TSR_OK)
            status = tsr_journal_add(&r->journal, r->plan, file, f->digest, r->rows, err);
        if (status != TSR_OK)
            unlink(to); /* it is not in the journal, so no run would know it */
    }
    close(f->fd);
    f->fd = -1;
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
