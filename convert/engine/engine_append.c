/* Files whose size is not known before: units are written in their order, each behind the last. */
#include "convert/engine/engine_run.h"

#include "common/checked.h"
#include "common/file.h"

#include <fcntl.h>
#include <sys/stat.h>

/* Writes a unit's output behind that of all earlier units. Units are taken in order, so all earlier ones are done or
 * under way, and the wait for them ends. The held outputs come last, as if each were one more unit. */
tsr_status tsr_run_append(tsr_run *r, size_t index, uint64_t unit, const void *data, uint64_t size, tsr_err *err)
{
    tsr_step_state *const s = r->steps[index];
    const size_t file = r->plan->steps[index].file;
    pthread_mutex_lock(&r->crew->lock);
    while (s->turn != unit && r->failure.status == TSR_OK)
        pthread_cond_wait(&r->crew->changed, &r->crew->lock);
    const tsr_status status = tsr_return_failure(&r->failure, err);
    const uint64_t offset = r->files[file].end;
    r->files[file].end += status == TSR_OK ? size : 0;
    pthread_mutex_unlock(&r->crew->lock);
    if (status != TSR_OK)
        return status;
    tsr_digests_feed(&r->digests, &r->kernels, index, s->stream, &s->fed, data, size);
    pthread_mutex_lock(&r->crew->lock);
    s->turn++;
    pthread_cond_broadcast(&r->crew->changed);
    pthread_mutex_unlock(&r->crew->lock);
    const int fd = r->files[file].io.fd;
    TSR_TRY(tsr_write_at(fd, r->plan->files[file].name, data, size, offset, err));
    /* Writing back begins early: a single file may take hours. Stretches may be tiny here, so it happens every TSR_UNIT_BYTES. */
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
        return tsr_fail_errno(err, "%s: cannot look at it", name);
    const uint64_t size = (uint64_t)st.st_size;
    for (uint64_t at = 0; at < size; at += capacity) {
        const size_t n = (size_t)tsr_min_u64(capacity, size - at);
        TSR_TRY(tsr_read_at(fd, name, memory, n, at, err));
        tsr_digests_feed(&r->digests, &r->kernels, index, s->stream, &s->fed, memory, n);
    }
    pthread_mutex_lock(&r->crew->lock);
    r->bytes_read += size;
    pthread_mutex_unlock(&r->crew->lock);
    return TSR_OK;
}
