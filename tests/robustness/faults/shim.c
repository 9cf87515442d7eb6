/* Preloaded into the tool: lets chosen system calls and allocations fail, and writes down what is done to files.
 *
 * - SHIM_ALLOC=N: the N-th allocation since main began fails; N+: so do all after it. Allocations before main are made
 *   by libraries (the CUDA runtime registers its kernels there) and do not count.
 * - SHIM_STOP=1: the process stops at the failing allocation, for a debugger.
 * - SHIM_COUNT=FILE: when the process ends by itself, it writes the number of allocations to FILE.
 * - SHIM_TRACE=FILE: a line for each call that changes files or makes changes durable: NAME<TAB>PATH[<TAB>PATH];
 *   "direct" where one is opened to be written past the page cache.
 * - SHIM_ERROR=CALL:ERRNO[:TEXT]: CALL (flock, pwrite, open, openw to write, access, fsync, stat) fails with ERRNO on
 *   paths that contain TEXT; pwrite with errno 0 writes nothing. CALL io_uring: the kernel forbids it.
 * - SHIM_RUN=CALL:N: before the N-th CALL (fsync, pread), the shell command in SHIM_COMMAND is run.
 * - SHIM_THREADS=N: the program itself, and not the libraries that it loads, cannot start more than N threads.
 * - SHIM_MXCSR=HEX: the floating-point mode that every thread begins with. */
/* The shim replaces open and open64 (and their like) separately, so no macro may turn one into the other, */
#undef _FILE_OFFSET_BITS
/* and none may be an inline function, as with the default options of Ubuntu's compilers. */
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);

static _Atomic long allocations;
static _Atomic int in_main;
static long fail_at, fail_forever;
static int trace = -1, count_at = -1;
static const char *error_call, *error_text, *run_call;
static int error_number, error_call_size;
static _Atomic long run_in;
static unsigned mxcsr;
static _Atomic long threads_left = -1; /* below 0: as many as it likes */

static void set_mode(void)
{
#ifdef __x86_64__
    if (mxcsr != 0)
        __builtin_ia32_ldmxcsr(mxcsr);
#endif
}

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("SHIM_TRACE");
    if (text != NULL)
        trace = (int)syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    text = getenv("SHIM_COUNT");
    if (text != NULL)
        count_at = (int)syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    error_call = getenv("SHIM_ERROR");
    if (error_call != NULL) {
        error_call_size = (int)strcspn(error_call, ":");
        error_number = atoi(error_call + error_call_size + 1);
        error_text = strchr(error_call + error_call_size + 1, ':');
        error_text = error_text == NULL ? "" : error_text + 1;
    }
    run_call = getenv("SHIM_RUN");
    if (run_call != NULL)
        run_in = atol(strchr(run_call, ':') + 1);
    text = getenv("SHIM_THREADS");
    threads_left = text == NULL ? -1 : atol(text);
    text = getenv("SHIM_MXCSR");
    mxcsr = text == NULL ? 0 : (unsigned)strtoul(text, NULL, 16);
    set_mode();
    unsetenv("LD_PRELOAD");
    text = getenv("SHIM_ALLOC");
    allocations = 0;
    if (text != NULL) {
        fail_forever = strchr(text, '+') != NULL;
        fail_at = atol(text);
    }
}

__attribute__((destructor)) static void end(void)
{
    char line[32];
    const int n = snprintf(line, sizeof line, "%ld\n", (long)allocations);
    if (count_at >= 0)
        syscall(SYS_write, count_at, line, n);
}

/* ---- memory ---- */

typedef int main_fn(int argc, char **argv, char **environment);
static main_fn *real_main;

static int counted_main(int argc, char **argv, char **environment)
{
    in_main = 1;
    return real_main(argc, argv, environment);
}

int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    int (*next)(main_fn *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = program;
    return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

static int refused(void)
{
    if (!in_main)
        return 0;
    const long n = ++allocations;
    if (fail_at == 0 || (n != fail_at && !(fail_forever && n > fail_at)))
        return 0;
    if (getenv("SHIM_STOP") != NULL)
        raise(SIGTRAP);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size)
{
    return refused() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return refused() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    return refused() ? NULL : __libc_realloc(old, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return refused() ? NULL : __libc_memalign(align, size);
}

int posix_memalign(void **at, size_t align, size_t size)
{
    if (refused())
        return ENOMEM;
    *at = __libc_memalign(align, size);
    return *at == NULL ? ENOMEM : 0;
}

/* ---- files ---- */

static const char *path_of(int fd, char path[4096])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, 4095);
    path[n < 0 ? 0 : n] = '\0';
    return path;
}

static void note(const char *call, const char *a, const char *b)
{
    char line[9000];
    const int code = errno;
    if (trace >= 0) {
        const int n = snprintf(line, sizeof line, "%s\t%s%s%s\n", call, a, b == NULL ? "" : "\t", b == NULL ? "" : b);
        syscall(SYS_write, trace, line, n);
    }
    errno = code;
}

static int has_error(const char *call, const char *path)
{
    if (error_call == NULL || (int)strlen(call) != error_call_size || strncmp(call, error_call, error_call_size) != 0 ||
        strstr(path, error_text) == NULL)
        return 0;
    errno = error_number;
    return 1;
}

static int has_error_fd(const char *call, int fd)
{
    char path[4096];
    return error_call != NULL && has_error(call, path_of(fd, path));
}

static void run_before(const char *call)
{
    const size_t n = strlen(call);
    if (run_call != NULL && strncmp(call, run_call, n) == 0 && run_call[n] == ':' && --run_in == 0 &&
        system(getenv("SHIM_COMMAND")) != 0)
        abort();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_any(const char *path, int flags, mode_t mode)
{
    if (has_error((flags & O_ACCMODE) == O_RDONLY ? "open" : "openw", path))
        return -1;
    const int is_new = (flags & O_CREAT) != 0 && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= 0 && (is_new || (flags & O_TRUNC) != 0))
        note(is_new ? "create" : "write", path, NULL);
    if (fd >= 0 && (flags & O_ACCMODE) == O_WRONLY && (flags & O_DIRECT) != 0)
        note("direct", path, NULL);
    return fd;
}

#define OPEN(name)                                     \
    int name(const char *path, int flags, ...)         \
    {                                                  \
        va_list args;                                  \
        va_start(args, flags);                         \
        const mode_t mode = (mode_t)va_arg(args, int); \
        va_end(args);                                  \
        return open_any(path, flags, mode);            \
    }
OPEN(open)
OPEN(open64)

static ssize_t pwrite_any(int fd, const void *data, size_t size, off_t offset)
{
    char path[4096];
    if (has_error_fd("pwrite", fd))
        return error_number == 0 ? 0 : -1;
    const ssize_t n = (ssize_t)syscall(SYS_pwrite64, fd, data, size, offset);
    note("write", path_of(fd, path), NULL);
    return n;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite_any(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite_any(fd, data, size, offset);
}

static ssize_t pread_any(int fd, void *data, size_t size, off_t offset)
{
    run_before("pread");
    return (ssize_t)syscall(SYS_pread64, fd, data, size, offset);
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    return pread_any(fd, data, size, offset);
}

ssize_t pread64(int fd, void *data, size_t size, off_t offset)
{
    return pread_any(fd, data, size, offset);
}

static int truncate_any(int fd, off_t size)
{
    char path[4096];
    note("write", path_of(fd, path), NULL);
    return (int)syscall(SYS_ftruncate, fd, size);
}

int ftruncate(int fd, off_t size)
{
    return truncate_any(fd, size);
}

int ftruncate64(int fd, off_t size)
{
    return truncate_any(fd, size);
}

static int sync_any(const char *call, long number, int fd)
{
    char path[4096];
    run_before("fsync");
    if (has_error_fd("fsync", fd))
        return -1;
    note(call, path_of(fd, path), NULL);
    return (int)syscall(number, fd);
}

int fsync(int fd)
{
    return sync_any("fsync", SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_any("fdatasync", SYS_fdatasync, fd);
}

int rename(const char *from, const char *to)
{
    const int rc = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
    if (rc == 0)
        note("rename", from, to);
    return rc;
}

int unlink(const char *path)
{
    const int rc = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (rc == 0)
        note("unlink", path, NULL);
    return rc;
}

int mkdir(const char *path, mode_t mode)
{
    const int rc = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (rc == 0)
        note("mkdir", path, NULL);
    return rc;
}

int flock(int fd, int how)
{
    return has_error_fd("flock", fd) ? -1 : (int)syscall(SYS_flock, fd, how);
}

int access(const char *path, int mode)
{
    return has_error("access", path) ? -1 : (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

int stat(const char *path, struct stat *st)
{
    return has_error("stat", path) ? -1 : fstatat(AT_FDCWD, path, st, 0);
}

int stat64(const char *path, struct stat64 *st)
{
    return has_error("stat", path) ? -1 : fstatat64(AT_FDCWD, path, st, 0);
}

/* Intercepts liburing, which calls the kernel without the C library. */
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
    return has_error("io_uring", "") ? -errno : REAL(io_uring_queue_init)(entries, ring, flags);
}

/* ---- threads ---- */

typedef struct start {
    void *(*work)(void *argument);
    void *argument;
} start;

static void *begin_thread(void *argument)
{
    const start s = *(start *)argument;
    free(argument);
    set_mode();
    return s.work(s.argument);
}

/* Returns true if a thread that runs `work` is one too many. */
static int is_refused_thread(void *(*work)(void *))
{
    Dl_info of_work, of_main;
    if (threads_left < 0 || dladdr(*(void **)&work, &of_work) == 0 || dladdr(*(void **)&real_main, &of_main) == 0 ||
        of_work.dli_fbase != of_main.dli_fbase)
        return 0;
    return threads_left == 0 || threads_left-- == 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument)
{
    if (is_refused_thread(work))
        return EAGAIN;
    start *const s = __libc_malloc(sizeof *s);
    if (s == NULL)
        return EAGAIN;
    *s = (start){work, argument};
    return REAL(pthread_create)(thread, attributes, begin_thread, s);
}
