/* Records every change of files in order: a line with words separated by tabs, followed by the bytes that were written:
 *   create PATH          a new file (open with O_CREAT)      mkdir PATH      rmdir PATH      unlink PATH      rename PATH PATH
 *   write PATH AT SIZE   and SIZE bytes                      size PATH SIZE  (also at fallocate)
 *   link PATH SIZE       a second name for a file, whose SIZE bytes follow
 *   fsync PATH           fdatasync PATH                      of files and folders */
#undef _FORTIFY_SOURCE
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int record = -1;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

void faults_record_begin(const char *path)
{
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0644);
    record = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 700);
    syscall(SYS_close, fd);
}

bool faults_records(void)
{
    return record >= 0;
}

void faults_record_lock(void)
{
    if (record >= 0)
        pthread_mutex_lock(&one_at_a_time);
}

void faults_record(bool done, const void *data, size_t size, const char *format, ...)
{
    char line[9000];
    const int code = errno;
    if (record < 0)
        return;
    if (done) {
        va_list args;
        va_start(args, format);
        const int n = vsnprintf(line, sizeof line, format, args);
        va_end(args);
        syscall(SYS_write, record, line, n);
        for (size_t at = 0; at < size;) {
            const long written = syscall(SYS_write, record, (const char *)data + at, size - at);
            if (written <= 0)
                break;
            at += (size_t)written;
        }
    }
    pthread_mutex_unlock(&one_at_a_time);
    errno = code;
}
