/* Reads and writes windows of tensors. */
#include "convert/run/windows.h"

#include "common/file.h"

/* The extents of a window in its file: one if it has no gaps, else one per row. */
typedef struct extents {
    uint64_t n, bytes, pitch, offset;
} extents;

static extents extents_of(const tsr_tensor *t, const tsr_window *w)
{
    const bool gapless = tsr_window_is_gapless(w);
    const uint64_t bytes = gapless ? tsr_window_bytes(w) : w->row_bytes;
    return (extents){.n = bytes == 0 ? 0
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
    const extents s = extents_of(t, w);
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
    const extents s = extents_of(t, w);
    const char *at = data;
    for (uint64_t i = 0; i < s.n; i++, at += s.bytes)
        TSR_TRY(tsr_io_write_cached(f, at, s.bytes, s.offset + i * s.pitch, err));
    return TSR_OK;
}

tsr_status tsr_run_read_back(tsr_run *r, tsr_task *task, const tsr_tensor *t, const tsr_window *w, void *data,
                             tsr_err *err)
{
    const tsr_io_file *const f = &r->files[t->file].io;
    const extents s = extents_of(t, w);
    char *at = data;
    if (task != NULL && s.n == 1) {
        tsr_io_read(task->io, &task->batch, f, data, s.bytes, s.offset);
        return TSR_OK;
    }
    for (uint64_t i = 0; i < s.n; i++, at += s.bytes)
        TSR_TRY(tsr_read_at(f->fd, f->name, at, s.bytes, s.offset + i * s.pitch, err));
    return TSR_OK;
}

/* Returns true if a window is one extent of a file, and is not shared with other readers. */
static bool is_plain(const tsr_run *r, const tsr_tensor *t, const tsr_window *w)
{
    return tsr_window_is_gapless(w) && r->pool->shared == NULL &&
           r->plan->sources[t->source]->files[t->file].archive == NULL;
}

/* Reads a window of a source immediately: from the shared chunks or from the checkpoint. */
static tsr_status read_now(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, void *data, tsr_err *err)
{
    const tsr_checkpoint *const source = r->plan->sources[t->source];
    if (r->pool->shared != NULL)
        return tsr_shared_read(r->pool->shared, source, t, w, data, err);
    return tsr_read_window(source, t, w, data, err);
}

tsr_status tsr_run_read_window(tsr_task *task, const tsr_tensor *t, const tsr_window *w, char **memory, void **data,
                               tsr_err *err)
{
    const tsr_run *const r = task->work.run;
    const tsr_file *const file = &r->plan->sources[t->source]->files[t->file];
    const uint64_t bytes = tsr_window_bytes(w), offset = t->offset + w->offset;
    const bool plain = is_plain(r, t, w);
    const tsr_io_file f = {
        .fd = file->fd, .remote = file->remote, .direct = plain ? tsr_io_source(&r->io, t) : -1, .name = file->path};
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
        return; /* the read bypasses the page cache */
    if (r->pool->shared != NULL)
        tsr_shared_prefetch(r->pool->shared, source, t, w);
    else
        tsr_checkpoint_prefetch(source, t, w->offset, (w->rows - 1) * w->pitch + w->row_bytes);
}

tsr_status tsr_run_fail_at(const tsr_run *r, const tsr_tensor *first, const tsr_tensor *const *in, uint32_t n_in,
                           tsr_status status, tsr_err *err)
{
    const tsr_tensor *const at = tsr_tensor_of_error(err, in, n_in, first);
    return tsr_prepend(err, status, "%s", r->plan->sources[at->source]->files[at->file].path);
}
