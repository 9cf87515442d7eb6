/* Replaces system calls that only read the state of files or of the system, each of which can be made to fail. */
#undef _FILE_OFFSET_BITS
#undef _FORTIFY_SOURCE
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static bool is_struck(faults_kind kind, int fd, const char *path)
{
    return faults_strike(kind, fd, path) != FAULTS_PASS;
}

int stat64(const char *path, struct stat64 *st)
{
    return is_struck(FAULT_stat, -1, path) ? -1 : fstatat64(AT_FDCWD, path, st, 0);
}

int lstat64(const char *path, struct stat64 *st)
{
    return is_struck(FAULT_lstat, -1, path) ? -1 : fstatat64(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

int fstat64(int fd, struct stat64 *st)
{
    return is_struck(FAULT_fstat, fd, NULL) ? -1 : fstatat64(fd, "", st, AT_EMPTY_PATH);
}

int statx(int folder, const char *path, int flags, unsigned mask, struct statx *st)
{
    return is_struck(FAULT_statx, folder, path[0] == '\0' ? NULL : path)
               ? -1
               : (int)syscall(SYS_statx, folder, path, flags, mask, st);
}

int statvfs64(const char *path, struct statvfs64 *st)
{
    return is_struck(FAULT_statvfs, -1, path) ? -1 : FAULTS_REAL(statvfs64)(path, st);
}

/* With FAULTS_DISK a file system in memory is reported as one on a disk: tests are faster there. */
int fstatfs64(int fd, struct statfs64 *st)
{
    if (is_struck(FAULT_fstatfs, fd, NULL))
        return -1;
    const int rc = FAULTS_REAL(fstatfs64)(fd, st);
    if (rc == 0 && st->f_type == TMPFS_MAGIC && getenv("FAULTS_DISK") != NULL)
        st->f_type = EXT4_SUPER_MAGIC;
    return rc;
}

int access(const char *path, int mode)
{
    return is_struck(FAULT_access, -1, path) ? -1 : (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

char *realpath(const char *path, char *to)
{
    return is_struck(FAULT_realpath, -1, path) ? NULL : FAULTS_REAL(realpath)(path, to);
}

/* As programs call it whose calls are checked (_FORTIFY_SOURCE). */
char *__realpath_chk(const char *path, char *to, size_t room);
char *__realpath_chk(const char *path, char *to, size_t room)
{
    (void)room;
    return realpath(path, to);
}

ssize_t readlink(const char *path, char *to, size_t size)
{
    return is_struck(FAULT_readlink, -1, path) ? -1 : (ssize_t)syscall(SYS_readlinkat, AT_FDCWD, path, to, size);
}

char *getcwd(char *to, size_t size)
{
    return is_struck(FAULT_getcwd, -1, "") ? NULL : FAULTS_REAL(getcwd)(to, size);
}

int flock(int fd, int how)
{
    return is_struck(FAULT_flock, fd, NULL) ? -1 : (int)syscall(SYS_flock, fd, how);
}

int madvise(void *at, size_t size, int advice)
{
    return is_struck(FAULT_madvise, -1, "") ? -1 : (int)syscall(SYS_madvise, at, size, advice);
}

int posix_fadvise64(int fd, off64_t offset, off64_t size, int advice)
{
    return is_struck(FAULT_fadvise, fd, NULL) ? errno : FAULTS_REAL(posix_fadvise64)(fd, offset, size, advice);
}

/* ---- the system ---- */

int clock_gettime(clockid_t which, struct timespec *now)
{
    const faults_action action = faults_strike(FAULT_clock, -1, "");
    if (action == FAULTS_FAIL)
        return -1;
    const int rc = FAULTS_REAL(clock_gettime)(which, now);
    if (action == FAULTS_SHORT) /* somebody sets it back by an hour */
        now->tv_sec -= now->tv_sec < 3600 ? now->tv_sec : 3600;
    return rc;
}

int getrlimit64(__rlimit_resource_t which, struct rlimit64 *limit)
{
    return is_struck(FAULT_rlimit, -1, "") ? -1 : FAULTS_REAL(getrlimit64)(which, limit);
}

int setrlimit64(__rlimit_resource_t which, const struct rlimit64 *limit)
{
    return is_struck(FAULT_rlimit, -1, "") ? -1 : FAULTS_REAL(setrlimit64)(which, limit);
}

int sched_getaffinity(pid_t process, size_t size, cpu_set_t *set)
{
    return is_struck(FAULT_affinity, -1, "") ? -1 : FAULTS_REAL(sched_getaffinity)(process, size, set);
}

int sched_setaffinity(pid_t process, size_t size, const cpu_set_t *set)
{
    return is_struck(FAULT_affinity, -1, "") ? -1 : FAULTS_REAL(sched_setaffinity)(process, size, set);
}

int poll(struct pollfd *files, nfds_t n, int milliseconds)
{
    return is_struck(FAULT_poll, -1, "") ? -1 : FAULTS_REAL(poll)(files, n, milliseconds);
}

int posix_spawnp(pid_t *process, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const argv[], char *const environment[])
{
    return is_struck(FAULT_spawn, -1, file)
               ? errno
               : FAULTS_REAL(posix_spawnp)(process, file, actions, attributes, argv, environment);
}
