/* Wraps system calls and checks every result. */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static bool is_interrupted(int rc)
{
    return rc < 0 && errno == EINTR;
}

int tsr_open(const char *path, int flags)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, 0666);
    while (is_interrupted(fd));
    return fd;
}

int tsr_sync(int fd)
{
    int rc;
    do
        rc = fsync(fd);
    while (is_interrupted(rc));
    return rc;
}

int tsr_sync_data(int fd)
{
    int rc;
    do
        rc = fdatasync(fd);
    while (is_interrupted(rc));
    return rc;
}

int tsr_resize(int fd, uint64_t size)
{
    int rc;
    do
        rc = ftruncate(fd, (off_t)size);
    while (is_interrupted(rc));
    return rc;
}

int tsr_lock(int fd, int how)
{
    int rc;
    do
        rc = flock(fd, how);
    while (is_interrupted(rc));
    return rc;
}

tsr_status tsr_read_at(int fd, const char *path, void *data, size_t size, uint64_t offset, tsr_err *err)
{
    char *to = data;
    while (size > 0) {
        const ssize_t n = pread(fd, to, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tsr_fail_errno(err, "%s: cannot read %zu bytes at offset %llu", path, size,
                                  (unsigned long long)offset);
        if (n == 0)
            return tsr_fail(err, TSR_E_IO,
                            "%s: the file ends at byte %llu, %zu bytes short: it was truncated while being read", path,
                            (unsigned long long)offset, size);
        to += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return TSR_OK;
}

tsr_status tsr_write_at(int fd, const char *path, const void *data, size_t size, uint64_t offset, tsr_err *err)
{
    const char *from = data;
    while (size > 0) {
        const ssize_t n = pwrite(fd, from, size, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tsr_fail_errno(err, "%s: cannot write %zu bytes at offset %llu", path, size,
                                  (unsigned long long)offset);
        if (n == 0)
            return tsr_fail(err, TSR_E_IO,
                            "%s: cannot write %zu bytes at offset %llu: the system wrote none and reported no error",
                            path, size, (unsigned long long)offset);
        from += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return TSR_OK;
}

static int64_t nanoseconds(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static tsr_stamp stamp_of(const struct stat *st)
{
    return (tsr_stamp){
        .device = (uint64_t)st->st_dev,
        .inode = (uint64_t)st->st_ino,
        .size = (uint64_t)st->st_size,
        .names = (uint64_t)st->st_nlink,
        .mtime_ns = nanoseconds(st->st_mtim),
        .ctime_ns = nanoseconds(st->st_ctim),
    };
}

bool tsr_is_absent(int code)
{
    return code == ENOENT || code == ENOTDIR || code == ELOOP;
}

tsr_status tsr_open_input(const char *path, int *fd, uint64_t *size, tsr_stamp *stamp, tsr_err *err)
{
    /* O_NONBLOCK: opening a pipe does not wait for a writer. It has no effect on regular files. */
    *fd = tsr_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 && tsr_is_absent(errno))
        return tsr_fail(err, TSR_E_FORMAT, "%s: cannot open: %s", path, strerror(errno));
    if (*fd < 0)
        return tsr_fail_errno(err, "%s: cannot open", path);
    struct stat st;
    const bool known = fstat(*fd, &st) == 0;
    if (!known || !S_ISREG(st.st_mode)) {
        const tsr_status status =
            known ? tsr_fail(err, TSR_E_FORMAT, "%s: not a regular file (a pipe, device or directory)", path)
                  : tsr_fail_errno(err, "%s: cannot access it", path);
        close(*fd);
        *fd = -1;
        return status;
    }
    *size = (uint64_t)st.st_size;
    if (stamp != NULL)
        *stamp = stamp_of(&st);
    return TSR_OK;
}

tsr_status tsr_check_stamp(int fd, const char *path, const tsr_stamp *stamp, bool linked, tsr_err *err)
{
    struct stat open_now, named;
    if (fstat(fd, &open_now) != 0)
        return tsr_fail_errno(err, "%s: cannot access it again", path);
    const tsr_stamp now = stamp_of(&open_now);
    const char *what = NULL;
    const bool is_there = stat(path, &named) == 0;
    if (!is_there && errno != ENOENT && errno != ENOTDIR && errno != ESTALE)
        return tsr_fail_errno(err, "%s: cannot access it again", path);
    if (now.size != stamp->size)
        what = "its size differs";
    else if (now.mtime_ns != stamp->mtime_ns)
        what = "it was written to";
    else if (!is_there || (uint64_t)named.st_ino != stamp->inode || (uint64_t)named.st_dev != stamp->device)
        what = "it was removed or replaced";
    else if (now.ctime_ns != stamp->ctime_ns && now.names == stamp->names && !linked)
        what = "its modification time differs";
    return what == NULL
               ? TSR_OK
               : tsr_fail_as(err, TSR_ERROR_CHANGED_WHILE_READ, TSR_E_IO,
                             "%s: changed while it was read (%s); wait until nothing writes to it, and run again", path,
                             what);
}

tsr_status tsr_read_file(const char *path, uint64_t limit, tsr_arena *arena, const char **data, size_t *size,
                         tsr_err *err)
{
    int fd;
    uint64_t bytes;
    TSR_TRY(tsr_open_input(path, &fd, &bytes, NULL, err));
    tsr_status status = TSR_OK;
    char *const text = bytes <= limit ? tsr_arena_alloc(arena, (size_t)bytes + 1) : NULL;
    if (bytes > limit)
        status = tsr_fail(err, TSR_E_FORMAT, "%s: %llu bytes exceed the limit of %llu for such a file", path,
                          (unsigned long long)bytes, (unsigned long long)limit);
    else if (text == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory for %llu bytes", path, (unsigned long long)bytes);
    else
        status = tsr_read_at(fd, path, text, (size_t)bytes, 0, err);
    close(fd);
    *data = text;
    *size = (size_t)bytes;
    return status;
}

tsr_status tsr_sync_dir(const char *path, tsr_err *err)
{
    const int fd = tsr_open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return tsr_fail_errno(err, "%s: cannot open the directory", path);
    const int rc = tsr_sync(fd);
    /* Some file systems cannot sync a directory and return EINVAL; their renames cannot be made more durable. */
    const tsr_status status = rc != 0 && errno != EINVAL ? tsr_fail_errno(err, "%s: cannot sync", path) : TSR_OK;
    close(fd);
    return status;
}

tsr_status tsr_sync_parent(const char *path, tsr_err *err)
{
    char *const copy = strdup(path);
    if (copy == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    const char *const folder = dirname(copy);
    /* A folder with write but without read permission cannot be opened, so it cannot be synced. */
    const bool refused = access(folder, R_OK) != 0 && errno == EACCES;
    const tsr_status status = refused ? TSR_OK : tsr_sync_dir(folder, err);
    free(copy);
    return status;
}

tsr_status tsr_commit_file(int fd, const char *from, const char *to, tsr_err *err)
{
    if (tsr_sync(fd) != 0)
        return tsr_fail_errno(err, "%s: cannot sync", from);
    if (rename(from, to) != 0)
        return tsr_fail_errno(err, "%s: cannot rename to %s", from, to);
    return tsr_sync_parent(to, err);
}

/* Copies the end of a file from another one. */
static tsr_status copy_end(int fd, const char *path, uint64_t offset, const tsr_file_end *end, tsr_err *err)
{
    enum { STEP = 1 << 20 };
    char *const buffer = malloc(STEP);
    tsr_status status = buffer == NULL ? tsr_out_of_memory(err, "while writing a file") : TSR_OK;
    for (uint64_t at = 0; at < end->size && status == TSR_OK; at += STEP) {
        const size_t n = (size_t)(end->size - at < STEP ? end->size - at : STEP);
        status = tsr_read_at(end->fd, path, buffer, n, at, err);
        if (status == TSR_OK)
            status = tsr_write_at(fd, path, buffer, n, offset + at, err);
    }
    free(buffer);
    return status;
}

/* Writes `data` and *end as `temporary`, then commits it as `path`. */
static tsr_status replace(const char *path, const char *temporary, const void *data, size_t size,
                          const tsr_file_end *end, tsr_err *err)
{
    /* O_EXCL: never writes to a file of this name that another program left or shares. */
    const int fd = tsr_open(temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0)
        return tsr_fail_errno(err, "%s: cannot create", temporary);
    tsr_status status = tsr_write_at(fd, temporary, data, size, 0, err);
    if (status == TSR_OK)
        status = copy_end(fd, temporary, size, end, err);
    if (status == TSR_OK)
        status = tsr_commit_file(fd, temporary, path, err);
    close(fd); /* fsync has already reported any error */
    if (status != TSR_OK)
        unlink(temporary);
    return status;
}

tsr_status tsr_replace_file(const char *path, const char *temporary, const void *data, size_t size, tsr_err *err)
{
    return replace(path, temporary, data, size, &(tsr_file_end){.size = 0}, err);
}

/* Blocks signals until the file has its final name, so that no temporary file is left behind. */
static void hold_signals(sigset_t *before)
{
    static const int kEnding[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    sigset_t held;
    sigemptyset(&held);
    for (size_t i = 0; i < sizeof kEnding / sizeof *kEnding; i++)
        sigaddset(&held, kEnding[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

/* Finds a name beside `path` that no file has, from malloc. */
static tsr_status temporary_name(const char *path, char **name, tsr_err *err)
{
    const char *const slash = strrchr(path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    for (unsigned n = 0;; n++) {
        if (asprintf(name, "%.*s.tessera-%ld-%u.part", folder, path, (long)getpid(), n) < 0)
            return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
        if (access(*name, F_OK) != 0)
            return TSR_OK;
        free(*name);
    }
}

tsr_status tsr_write_long_file(const char *path, const void *data, size_t size, const tsr_file_end *end, tsr_err *err)
{
    sigset_t before;
    char *temporary;
    TSR_TRY(temporary_name(path, &temporary, err));
    hold_signals(&before);
    const tsr_status status = replace(path, temporary, data, size, end, err);
    free(temporary);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

tsr_status tsr_write_file(const char *path, const void *data, size_t size, tsr_err *err)
{
    return tsr_write_long_file(path, data, size, &(tsr_file_end){.size = 0}, err);
}

tsr_status tsr_next_entry(DIR *dir, const char *path, const struct dirent **entry, tsr_err *err)
{
    errno = 0;
    *entry = readdir(dir);
    return *entry == NULL && errno != 0 ? tsr_fail_errno(err, "%s: cannot list the directory", path) : TSR_OK;
}

tsr_status tsr_remove_file(const char *path, tsr_err *err)
{
    /* A name longer than the system allows cannot exist, but a damaged journal may contain one. */
    return unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG
               ? TSR_OK
               : tsr_fail_errno(err, "%s: cannot remove it", path);
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    (void)st, (void)kind, (void)place;
    return remove(path);
}

tsr_status tsr_remove_tree(const char *path, tsr_err *err)
{
    enum { MOST_OPEN = 16 };
    return nftw(path, remove_entry, MOST_OPEN, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT
               ? TSR_OK
               : tsr_fail_errno(err, "%s: cannot remove it", path);
}

tsr_status tsr_make_dirs(const char *path, tsr_err *err)
{
    char *const copy = strdup(path);
    if (copy == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    tsr_status status = TSR_OK;
    for (char *p = copy + 1; status == TSR_OK; p++) {
        const char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        struct stat st;
        if (mkdir(copy, 0777) == 0)
            status = tsr_sync_parent(copy, err);
        else if (errno != EEXIST || stat(copy, &st) != 0 || !S_ISDIR(st.st_mode))
            status = errno == EEXIST
                         ? tsr_fail(err, TSR_E_IO, "%s: cannot create the directory: a file has this name", copy)
                         : tsr_fail_errno(err, "%s: cannot create the directory", copy);
        *p = c;
        if (c == '\0')
            break;
    }
    free(copy);
    return status;
}

tsr_status tsr_exists(const char *path, bool *exists, tsr_err *err)
{
    struct stat st;
    *exists = stat(path, &st) == 0;
    if (!*exists && errno != ENOENT && errno != ENOTDIR)
        return tsr_fail_errno(err, "%s: cannot access it", path);
    return TSR_OK;
}

uint64_t tsr_free_bytes(const char *path)
{
    struct statvfs st;
    /* A file system that reports no blocks has no limit (ramfs, tmpfs with size=0) or does not know it. */
    return statvfs(path, &st) != 0 || st.f_blocks == 0 ? UINT64_MAX : (uint64_t)st.f_bavail * st.f_frsize;
}

uint64_t tsr_free_files(const char *path)
{
    struct statvfs st;
    return statvfs(path, &st) != 0 || st.f_files == 0 ? UINT64_MAX : (uint64_t)st.f_favail;
}
