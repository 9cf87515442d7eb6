/* Opens output files, appends to them, and commits them. */
#include "convert/run/output_files.h"

#include "common/checked.h"
#include "common/file.h"
#include "convert/run/step_blocks.h"
#include "convert/run/windows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

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
                 : r->files[file].linked ? TSR_OK /* the linked file already has it */
                                         : tsr_run_write_window(r, &place, &all, header.data, err);
    if (status == TSR_OK)
        r->digests.headers[file] = tsr_digest_of(&r->kernels, header.data, header.size);
    r->files[file].done += header.size;
    tsr_text_free(&header);
    return status;
}

/* Links a file that is a whole source file: a hard link in place of the file, or a reflink of the file that was just
 * created. If the link fails, the bytes are copied. */
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

/* ---- appended files ---- */

/* Units are taken in order, so all earlier ones are done or in progress, and the wait for them ends. */
tsr_status tsr_run_append(tsr_run *r, size_t index, uint64_t unit, const void *data, uint64_t size, tsr_err *err)
{
    tsr_step_state *const s = r->steps[index];
    const size_t file = r->plan->steps[index].file;
    pthread_mutex_lock(&r->pool->lock);
    while (s->turn != unit && r->failure.status == TSR_OK)
        pthread_cond_wait(&r->pool->changed, &r->pool->lock);
    const tsr_status status = tsr_return_failure(&r->failure, err);
    const uint64_t offset = r->files[file].end;
    r->files[file].end += status == TSR_OK ? size : 0;
    pthread_mutex_unlock(&r->pool->lock);
    if (status != TSR_OK)
        return status;
    tsr_digests_feed(&r->digests, &r->kernels, index, s->stream, &s->fed, data, size);
    pthread_mutex_lock(&r->pool->lock);
    s->turn++;
    pthread_cond_broadcast(&r->pool->changed);
    pthread_mutex_unlock(&r->pool->lock);
    const int fd = r->files[file].io.fd;
    TSR_TRY(tsr_write_at(fd, r->plan->files[file].name, data, size, offset, err));
    /* Starts write-back early, because a single file may take hours. Outputs of units may be tiny, so this is done
     * every TSR_UNIT_BYTES. */
    const uint64_t from = offset - offset % TSR_UNIT_BYTES, to = offset + size - (offset + size) % TSR_UNIT_BYTES;
    if (to > from)
        (void)sync_file_range(fd, (off_t)from, (off_t)(to - from), SYNC_FILE_RANGE_WRITE);
    return TSR_OK;
}

tsr_status tsr_run_digest_appended(tsr_run *r, size_t index, void *memory, size_t capacity, tsr_err *err)
{
    tsr_step_state *const s = r->steps[index];
    const size_t file = r->plan->steps[index].file;
    const int fd = r->files[file].io.fd;
    const char *const name = r->plan->files[file].name;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return tsr_fail_errno(err, "%s: cannot access it", name);
    const uint64_t size = (uint64_t)st.st_size;
    for (uint64_t at = 0; at < size; at += capacity) {
        const size_t n = (size_t)tsr_min_u64(capacity, size - at);
        TSR_TRY(tsr_read_at(fd, name, memory, n, at, err));
        tsr_digests_feed(&r->digests, &r->kernels, index, s->stream, &s->fed, memory, n);
    }
    pthread_mutex_lock(&r->pool->lock);
    r->bytes_read += size;
    pthread_mutex_unlock(&r->pool->lock);
    return TSR_OK;
}

/* ---- commits ---- */

/* Digests an output whose pieces are not those of units. It is read back in parts that fit the processor's cache. */
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
            if (tsr_is_buffered(step, i) || tsr_is_by_unit(&r->digests, s, i) || step->out[i]->bytes == 0)
                continue;
            memory = memory == NULL ? malloc(TSR_PIECE_BYTES) : memory;
            status = memory == NULL ? tsr_out_of_memory(err, "for the digests") : digest_output(r, s, i, memory, err);
        }
    }
    free(memory);
    return status;
}

/* Computes the digest of a file that the journal records. */
static tsr_status digest_file(tsr_run *r, size_t file, uint64_t *digest, tsr_err *err)
{
    tsr_digest all;
    TSR_TRY(digest_rest(r, file, err));
    TSR_TRY(tsr_digests_file(&r->digests, file, &all, err));
    *digest = all.low64;
    return TSR_OK;
}

/* Renames a complete file to its final name, durably. */
static tsr_status publish(const tsr_file_state *f, const char *from, const char *to, tsr_err *err)
{
    if (!f->named)
        return tsr_commit_file(f->io.fd, from, to, err);
    /* The source may not be durable yet. */
    return tsr_sync(f->io.fd) != 0 ? tsr_fail_errno(err, "%s: cannot sync", to) : tsr_sync_parent(to, err);
}

tsr_status tsr_run_commit_file(tsr_run *r, size_t file, tsr_err *err)
{
    tsr_file_state *const f = &r->files[file];
    uint64_t digest = 0;
    tsr_status status = digest_file(r, file, &digest, err);
    if (r->verifying) {
        r->journal.finished[file] = digest == r->journal.digests[file];
    } else {
        char from[PATH_MAX], to[PATH_MAX];
        struct stat st;
        tsr_part_path(r->dst, file, from);
        tsr_run_path(r, file, to);
        const uint64_t bytes = r->plan->files[file].appended ? f->end : r->plan->files[file].bytes;
        if (status == TSR_OK && fstat(f->io.fd, &st) != 0)
            status = tsr_fail_errno(err, "%s: cannot access it", f->named ? to : from);
        else if (status == TSR_OK && (uint64_t)st.st_size != bytes)
            status = tsr_fail(err, TSR_E_IO, "%s: %llu bytes were planned, but the file has %llu", from, U64(bytes),
                              U64(st.st_size));
        else if (f->done != bytes) /* the file was allocated at full size, so its size alone proves nothing */
            status = tsr_fail(err, TSR_E_IO, "%s: %llu bytes were planned, but %llu were written", from, U64(bytes),
                              U64(f->done));
        if (status == TSR_OK)
            status = tsr_watch_check(&r->watch, r->plan, file, err);
        if (status == TSR_OK)
            status = publish(f, from, to, err);
        if (status == TSR_OK)
            status = tsr_run_keep_blocks(r, file, err);
        if (status == TSR_OK)
            status = tsr_journal_add(&r->journal, r->plan, file, digest, &r->rows, err);
        if (status != TSR_OK)
            unlink(to); /* a file that the journal does not record must not remain */
    }
    tsr_run_close_file(f);
    return status == TSR_OK && r->uploads != NULL && r->journal.finished[file]
               ? tsr_uploads_add(r->uploads, &r->digests, file, digest, err)
               : status;
}
