/* Replaces system calls that write or change files, each of which can be made to fail. */
/* open and open64 (and their like) are replaced separately, so no macro may turn one into the other, */
#undef _FILE_OFFSET_BITS
/* and none may be an inline function, as with the default options of Ubuntu's compilers. */
#undef _FORTIFY_SOURCE
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

static bool is_struck(faults_kind kind, int fd, const char *path)
{
    return faults_strike(kind, fd, path) != FAULTS_PASS;
}

/* ---- opening and closing ---- */

static int open_any(faults_kind kind, int folder, const char *path, int flags, mode_t mode)
{
    if (is_struck(kind, -1, path))
        return -1;
    faults_record_lock();
    const bool is_new = (flags & O_CREAT) != 0 && syscall(SYS_faccessat, folder, path, F_OK) != 0;
    const int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    const bool emptied = !is_new && (flags & O_TRUNC) != 0;
    faults_record(fd >= 0 && (is_new || emptied), NULL, 0, emptied ? "size\t%s\t0\n" : "create\t%s\n", path);
    return fd;
}

static faults_kind kind_of(int flags)
{
    return (flags & O_ACCMODE) == O_RDONLY ? FAULT_open : FAULT_create;
}

#define OPEN(name)                                                    \
    int name(const char *path, int flags, ...)                        \
    {                                                                 \
        va_list args;                                                 \
        va_start(args, flags);                                        \
        const mode_t mode = (mode_t)va_arg(args, int);                \
        va_end(args);                                                 \
        return open_any(kind_of(flags), AT_FDCWD, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

/* As programs call it whose calls are checked (_FORTIFY_SOURCE). */
int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags)
{
    return open_any(kind_of(flags), AT_FDCWD, path, flags, 0);
}

#define OPENAT(name)                                              \
    int name(int folder, const char *path, int flags, ...)        \
    {                                                             \
        va_list args;                                             \
        va_start(args, flags);                                    \
        const mode_t mode = (mode_t)va_arg(args, int);            \
        va_end(args);                                             \
        return open_any(FAULT_openat, folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

/* Closes the file and then fails, as close() on Linux does. */
int close(int fd)
{
    const bool struck = is_struck(FAULT_close, fd, NULL);
    const int code = errno, rc = (int)syscall(SYS_close, fd);
    errno = struck ? code : errno;
    return struck ? -1 : rc;
}

int dup(int fd)
{
    return is_struck(FAULT_dup, fd, NULL) ? -1 : (int)syscall(SYS_dup, fd);
}

#define FCNTL(name)                                                                           \
    int name(int fd, int what, ...)                                                           \
    {                                                                                         \
        va_list args;                                                                         \
        va_start(args, what);                                                                 \
        void *const argument = va_arg(args, void *);                                          \
        va_end(args);                                                                         \
        return is_struck(FAULT_fcntl, fd, NULL) ? -1 : FAULTS_REAL(name)(fd, what, argument); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

int pipe2(int ends[2], int flags)
{
    return is_struck(FAULT_pipe, -1, "") ? -1 : (int)syscall(SYS_pipe2, ends, flags);
}

/* ---- folders ---- */

DIR *opendir(const char *path)
{
    return is_struck(FAULT_opendir, -1, path) ? NULL : FAULTS_REAL(opendir)(path);
}

struct dirent64 *readdir64(DIR *folder)
{
    return is_struck(FAULT_readdir, dirfd(folder), NULL) ? NULL : FAULTS_REAL(readdir64)(folder);
}

int closedir(DIR *folder)
{
    const bool struck = is_struck(FAULT_closedir, dirfd(folder), NULL);
    const int code = errno, rc = FAULTS_REAL(closedir)(folder);
    errno = struck ? code : errno;
    return struck ? -1 : rc;
}

/* ---- reading and writing ---- */

ssize_t faults_carry_out(bool write, int fd, void *data, size_t size, off_t offset)
{
    char path[4096];
    if (!write)
        return (ssize_t)syscall(SYS_pread64, fd, data, size, offset);
    faults_record_lock();
    const ssize_t n = (ssize_t)syscall(SYS_pwrite64, fd, data, size, offset);
    faults_record(n > 0, data, n > 0 ? (size_t)n : 0, "write\t%s\t%lld\t%zd\n", faults_path_of(fd, path),
                  (long long)offset, n);
    return n;
}

static ssize_t struck_at(faults_kind kind, bool write, int fd, void *data, size_t size, off_t offset)
{
    switch (faults_strike(kind, fd, NULL)) {
    case FAULTS_FAIL:
        return -1;
    case FAULTS_ZERO:
        return 0;
    case FAULTS_SHORT:
        size = (size + 1) / 2;
        break;
    case FAULTS_PASS:
        break;
    }
    return faults_carry_out(write, fd, data, size, offset);
}

#define PREAD(name)                                                   \
    ssize_t name(int fd, void *data, size_t size, off_t offset)       \
    {                                                                 \
        return struck_at(FAULT_pread, false, fd, data, size, offset); \
    }
PREAD(pread)
PREAD(pread64)

#define PWRITE(name)                                                                     \
    ssize_t name(int fd, const void *data, size_t size, off_t offset)                    \
    {                                                                                    \
        return struck_at(FAULT_pwrite, true, fd, (void *)(uintptr_t)data, size, offset); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t __pread64_chk(int fd, void *data, size_t size, off_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *data, size_t size, off_t offset, size_t room)
{
    return size > room ? abort(), -1 : struck_at(FAULT_pread, false, fd, data, size, offset);
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int n, off64_t offset, int flags)
{
    return is_struck(FAULT_preadv2, fd, NULL) ? -1 : FAULTS_REAL(preadv64v2)(fd, parts, n, offset, flags);
}

ssize_t read(int fd, void *data, size_t size)
{
    const faults_action action = faults_strike(FAULT_read, fd, NULL);
    if (action == FAULTS_FAIL || action == FAULTS_ZERO)
        return action == FAULTS_FAIL ? -1 : 0;
    return (ssize_t)syscall(SYS_read, fd, data, action == FAULTS_SHORT ? (size + 1) / 2 : size);
}

ssize_t write(int fd, const void *data, size_t size)
{
    const faults_action action = faults_strike(FAULT_write, fd, NULL);
    if (action == FAULTS_FAIL || action == FAULTS_ZERO)
        return action == FAULTS_FAIL ? -1 : 0;
    return (ssize_t)syscall(SYS_write, fd, data, action == FAULTS_SHORT ? (size + 1) / 2 : size);
}

ssize_t __read_chk(int fd, void *data, size_t size, size_t room);
ssize_t __read_chk(int fd, void *data, size_t size, size_t room)
{
    return size > room ? abort(), -1 : read(fd, data, size);
}

off64_t lseek64(int fd, off64_t offset, int whence)
{
    return is_struck(FAULT_lseek, fd, NULL) ? -1 : (off64_t)syscall(SYS_lseek, fd, offset, whence);
}

/* ---- what makes changes durable, and changes of size ---- */

static int sync_any(faults_kind kind, const char *call, int fd)
{
    char path[4096];
    if (is_struck(kind, fd, NULL))
        return -1;
    faults_record_lock();
    faults_record(true, NULL, 0, "%s\t%s\n", call, faults_path_of(fd, path));
    return 0;
}

int fsync(int fd)
{
    return sync_any(FAULT_fsync, "fsync", fd);
}

int fdatasync(int fd)
{
    return sync_any(FAULT_fdatasync, "fdatasync", fd);
}

int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags)
{
    (void)offset;
    (void)size;
    (void)flags;
    return is_struck(FAULT_sync_range, fd, NULL) ? -1 : 0;
}

int ftruncate64(int fd, off64_t size)
{
    char path[4096];
    if (is_struck(FAULT_ftruncate, fd, NULL))
        return -1;
    faults_record_lock();
    const int rc = (int)syscall(SYS_ftruncate, fd, size);
    faults_record(rc == 0, NULL, 0, "size\t%s\t%lld\n", faults_path_of(fd, path), (long long)size);
    return rc;
}

int fallocate64(int fd, int mode, off64_t offset, off64_t size)
{
    char path[4096];
    struct stat64 st;
    if (is_struck(FAULT_fallocate, fd, NULL))
        return -1;
    faults_record_lock();
    const int rc = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    const bool known = rc == 0 && fstatat64(fd, "", &st, AT_EMPTY_PATH) == 0;
    faults_record(known, NULL, 0, "size\t%s\t%lld\n", faults_path_of(fd, path), known ? (long long)st.st_size : 0);
    return rc;
}

/* ---- names ---- */

int rename(const char *from, const char *to)
{
    if (is_struck(FAULT_rename, -1, from))
        return -1;
    faults_record_lock();
    const int rc = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    faults_record(rc == 0, NULL, 0, "rename\t%s\t%s\n", from, to);
    return rc;
}

/* Returns all bytes of a file; the caller frees them. */
static char *bytes_of(int folder, const char *path, size_t *size)
{
    struct stat64 st;
    char *data = NULL;
    const int fd = (int)syscall(SYS_openat, folder, path, O_RDONLY | O_CLOEXEC, 0);
    *size = 0;
    if (fd >= 0 && fstatat64(fd, "", &st, AT_EMPTY_PATH) == 0 && (data = malloc((size_t)st.st_size + 1)) != NULL) {
        const long n = syscall(SYS_pread64, fd, data, st.st_size, 0);
        *size = n < 0 ? 0 : (size_t)n;
    }
    if (fd >= 0)
        syscall(SYS_close, fd);
    return data;
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    size_t size;
    if (is_struck(FAULT_linkat, -1, to))
        return -1;
    faults_record_lock();
    const int rc = (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    char *const data = rc == 0 && faults_records() ? bytes_of(to_folder, to, &size) : NULL;
    faults_record(rc == 0, data, data == NULL ? 0 : size, "link\t%s\t%zu\n", to, data == NULL ? (size_t)0 : size);
    free(data);
    return rc;
}

/* Reports that a file system without shared blocks has them, so that the tests reach the code that follows. */
static int clone_file(int fd, int from)
{
    char link[64];
    size_t size;
    if (is_struck(FAULT_clone, fd, NULL))
        return -1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", from);
    char *const data = bytes_of(AT_FDCWD, link, &size);
    const ssize_t n = data == NULL ? -1 : faults_carry_out(true, fd, data, size, 0);
    free(data);
    return n == (ssize_t)size ? 0 : -1;
}

int ioctl(int fd, unsigned long what, ...)
{
    va_list args;
    va_start(args, what);
    void *const argument = va_arg(args, void *);
    va_end(args);
    return what == FICLONE ? clone_file(fd, (int)(intptr_t)argument) : (int)syscall(SYS_ioctl, fd, what, argument);
}

int unlink(const char *path)
{
    if (is_struck(FAULT_unlink, -1, path))
        return -1;
    faults_record_lock();
    const int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    faults_record(rc == 0, NULL, 0, "unlink\t%s\n", path);
    return rc;
}

int unlinkat(int folder, const char *path, int flags)
{
    char parent[4096] = "";
    if (is_struck(FAULT_unlinkat, -1, path))
        return -1;
    if (folder != AT_FDCWD && path[0] != '/') {
        faults_path_of(folder, parent);
        strcat(parent, "/");
    }
    faults_record_lock();
    const int rc = (int)syscall(SYS_unlinkat, folder, path, flags);
    faults_record(rc == 0, NULL, 0, "%s\t%s%s\n", (flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink", parent, path);
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    if (is_struck(FAULT_mkdir, -1, path))
        return -1;
    faults_record_lock();
    const int rc = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    faults_record(rc == 0, NULL, 0, "mkdir\t%s\n", path);
    return rc;
}
