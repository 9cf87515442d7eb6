/* Opening and closing, by name. */
#include "convert/engine/engine_serve_files.h"

#include "convert/engine/destination.h"
#include "convert/engine/engine_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Another client of a network file system may not see a new file's name at once. */
enum { OPEN_TRIES = 300, OPEN_PAUSE_MS = 100 };

static const tsr_io_file kClosed = {.fd = -1, .direct = -1};

tsr_status tsr_served_begin(tsr_served_files *s, tsr_err *err)
{
    s->files = calloc(s->plan->n_files + 1, sizeof *s->files);
    for (size_t i = 0; s->files != NULL && i < s->plan->n_files; i++)
        s->files[i] = kClosed;
    return s->files == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
}

void tsr_served_end(tsr_served_files *s)
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

/* Only for writing: then a network file system does not read the rest of a page of which another rank writes that rest, and does
 * not write it back. */
static int open_patiently(const char *path, int flags)
{
    int fd = -1;
    for (int i = 0; i < OPEN_TRIES; i++) {
        fd = tsr_open(path, flags);
        if (fd >= 0 || errno != ENOENT)
            break;
        const struct timespec rest = {.tv_nsec = OPEN_PAUSE_MS * 1000000L};
        (void)nanosleep(&rest, NULL);
    }
    return fd;
}

/* Called with the lock held. */
static tsr_status open_output(tsr_served_files *s, size_t file, bool verifying, tsr_err *err)
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
        f->direct = tsr_open(path, O_WRONLY | O_DIRECT);
    return TSR_OK;
}

tsr_status tsr_served_find(tsr_served_files *s, size_t file, bool verifying, tsr_io_file *found, tsr_err *err)
{
    pthread_mutex_lock(&s->lock);
    const tsr_status status = s->files[file].fd >= 0 ? TSR_OK : open_output(s, file, verifying, err);
    *found = s->files[file];
    pthread_mutex_unlock(&s->lock);
    return status;
}

tsr_status tsr_served_settle(tsr_served_files *s, const tsr_request *q, tsr_err *err)
{
    if (q->index >= s->plan->n_files)
        return tsr_fail(err, TSR_E_FORMAT, "rank 0 speaks of a file that is not in the plan");
    const bool wrote = (q->flags & TSR_ASKED_TO_VERIFY) == 0;
    pthread_mutex_lock(&s->lock);
    const tsr_io_file f = s->files[q->index];
    s->files[q->index] = kClosed;
    pthread_mutex_unlock(&s->lock);
    tsr_status status = TSR_OK;
    if (f.direct >= 0)
        close(f.direct);
    if (f.fd >= 0 && wrote && status == TSR_OK && tsr_sync_data(f.fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", f.name);
    if (f.fd >= 0)
        close(f.fd); /* what it could say, the sync has said */
    return status;
}
