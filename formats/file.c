/* System calls, with every result looked at. */
#include "formats/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

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
                            "%s: the file ends at byte %llu, %zu bytes short: it shrank while being read", path,
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
        from += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return TSR_OK;
}

tsr_status tsr_open_input(const char *path, int *fd, uint64_t *size, int64_t *mtime_ns, tsr_err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return tsr_fail_errno(err, "%s: cannot open", path);
    struct stat st;
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return tsr_fail(err, TSR_E_FORMAT, "%s: not a regular file", path);
    }
    *size = (uint64_t)st.st_size;
    if (mtime_ns != NULL)
        *mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return TSR_OK;
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
        status = tsr_fail(err, TSR_E_FORMAT, "%s: %llu bytes, more than the %llu that such a file may have", path,
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
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return tsr_fail_errno(err, "%s: cannot open the directory", path);
    const int rc = fsync(fd);
    /* Some file systems cannot sync a directory and say EINVAL; their renames are as durable as they get. */
    const tsr_status status = rc != 0 && errno != EINVAL ? tsr_fail_errno(err, "%s: cannot sync", path) : TSR_OK;
    close(fd);
    return status;
}

tsr_status tsr_commit_file(int fd, const char *from, const char *to, tsr_err *err)
{
    if (fsync(fd) != 0)
        return tsr_fail_errno(err, "%s: cannot sync", from);
    if (rename(from, to) != 0)
        return tsr_fail_errno(err, "%s: cannot rename to %s", from, to);
    char *const copy = strdup(to);
    if (copy == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", to);
    const tsr_status status = tsr_sync_dir(dirname(copy), err);
    free(copy);
    return status;
}

tsr_status tsr_write_file(const char *path, const void *data, size_t size, tsr_err *err)
{
    char *temporary;
    if (asprintf(&temporary, "%s.part", path) < 0)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", path);
    tsr_status status = TSR_OK;
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = tsr_fail_errno(err, "%s: cannot create", temporary);
        goto out;
    }
    status = tsr_write_at(fd, temporary, data, size, 0, err);
    if (status == TSR_OK)
        status = tsr_commit_file(fd, temporary, path, err);
    if (close(fd) != 0 && status == TSR_OK)
        status = tsr_fail_errno(err, "%s: cannot close", path);
    if (status != TSR_OK)
        unlink(temporary);
out:
    free(temporary);
    return status;
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
        if (mkdir(copy, 0777) != 0 && (errno != EEXIST || stat(copy, &st) != 0 || !S_ISDIR(st.st_mode)))
            status = tsr_fail_errno(err, "%s: cannot make the directory", copy);
        *p = c;
        if (c == '\0')
            break;
    }
    free(copy);
    return status;
}

tsr_status tsr_free_space(const char *path, uint64_t *bytes, tsr_err *err)
{
    struct statvfs st;
    if (statvfs(path, &st) != 0)
        return tsr_fail_errno(err, "%s: cannot ask for free space", path);
    *bytes = (uint64_t)st.f_bavail * st.f_frsize;
    return TSR_OK;
}
