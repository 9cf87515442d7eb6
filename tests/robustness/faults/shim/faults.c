/* Reads the plan of a run, decides which calls fail, and writes the log of the run. */
#undef _FORTIFY_SOURCE
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The descriptor of the log is above those that a program with few files gets. */
enum { FIRST_OWN = 700, MOST_TOLD = 200 };

typedef int main_fn(int argc, char **argv, char **environment);

static main_fn *real_main;
static _Atomic long counts[FAULTS_N];
static _Atomic bool in_main;
static int told = -1;
static unsigned char open_at_start[FIRST_OWN];

#define FAULTS_NAME(name) #name,
static const char *const kNames[] = {FAULTS_KINDS(FAULTS_NAME)};

enum { NOTHING = -1, ANY = FAULTS_N };

static struct {
    int kind; /* or NOTHING, or ANY */
    long at;
    bool on; /* and all after it */
    faults_action action;
    int code, signal;
    bool runs;      /* FAULTS_COMMAND */
    char text[256]; /* in the paths of calls that count */
} plan = {.kind = NOTHING};
static _Atomic long meant; /* calls that the plan may strike */

bool faults_is_program(void (*code)(void))
{
    Dl_info of_code, of_main;
    return dladdr(*(void **)&code, &of_code) != 0 && dladdr(*(void **)&real_main, &of_main) != 0 &&
           of_code.dli_fbase == of_main.dli_fbase;
}

bool faults_in_main(void)
{
    return in_main;
}

const char *faults_path_of(int fd, char path[4096])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    path[n < 0 ? 0 : n] = '\0';
    return path;
}

void faults_tell(const char *format, ...)
{
    char line[4400];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (told >= 0)
        syscall(SYS_write, told, line, n);
}

/* Returns true if the plan may strike this call. What takes memory or the time is no call that any work has an order
 * of. */
static bool is_meant(faults_kind kind, const char *path)
{
    return (plan.kind == (int)kind || (plan.kind == ANY && kind != FAULT_malloc && kind != FAULT_clock)) &&
           (plan.text[0] == '\0' || strstr(path, plan.text) != NULL);
}

static void run_command(void)
{
    unsetenv("LD_PRELOAD");
    if (system(getenv("FAULTS_COMMAND")) != 0)
        abort();
}

faults_action faults_strike(faults_kind kind, int fd, const char *path)
{
    char own[4096];
    if (!in_main)
        return FAULTS_PASS;
    ++counts[kind];
    if (plan.kind != (int)kind && plan.kind != ANY)
        return FAULTS_PASS;
    path = path == NULL ? faults_path_of(fd, own) : path;
    if (!is_meant(kind, path))
        return FAULTS_PASS;
    const long n = ++meant;
    if (n != plan.at && !(plan.on && n > plan.at))
        return FAULTS_PASS;
    if (n < plan.at + MOST_TOLD)
        faults_tell("hit %s %ld %s\n", kNames[kind], n, path);
    if (plan.signal != 0) /* to this thread, so that it comes before this call */
        syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), plan.signal);
    if (plan.runs)
        run_command();
    errno = plan.code;
    return plan.signal != 0 || plan.runs ? FAULTS_PASS : plan.action;
}

/* Reads the file `given`, or takes `given` as the text if it is no absolute path. */
static void read_text(const char *given, char *text, size_t room)
{
    if (given[0] != '/') {
        snprintf(text, room, "%s", given);
        return;
    }
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, given, O_RDONLY | O_CLOEXEC, 0);
    const long n = fd < 0 ? -1 : syscall(SYS_read, fd, text, room - 1);
    text[n < 0 ? 0 : n] = '\0';
    if (fd >= 0)
        syscall(SYS_close, fd);
}

static void read_plan(const char *given)
{
    char text[512], kind[32], action[16];
    char on = ' ';
    int end = 0;
    read_text(given, text, sizeof text);
    if (sscanf(text, "%31s %ld%c %15s%n", kind, &plan.at, &on, action, &end) != 4)
        return;
    plan.kind = strcmp(kind, "any") == 0 ? ANY : NOTHING;
    for (int i = 0; i < FAULTS_N; i++) {
        if (strcmp(kind, kNames[i]) == 0)
            plan.kind = i;
    }
    plan.on = on == '+';
    plan.code = atoi(action);
    plan.runs = strcmp(action, "run") == 0;
    plan.signal = strncmp(action, "signal", 6) == 0 ? atoi(action + 6) : 0;
    if (plan.signal != 0)
        signal(plan.signal, SIG_DFL); /* a shell's background jobs ignore SIGINT */
    plan.action = strcmp(action, "short") == 0 ? FAULTS_SHORT : strcmp(action, "zero") == 0 ? FAULTS_ZERO : FAULTS_FAIL;
    if (text[end] == ' ') {
        text[strcspn(text, "\n")] = '\0';
        snprintf(plan.text, sizeof plan.text, "%s", text + end + 1);
    }
}

/* ---- the mode of numbers ---- */

static unsigned rounding, mxcsr;
static bool has_float;

static void read_float(const char *text)
{
    has_float = text != NULL && sscanf(text, "%x %x", &rounding, &mxcsr) == 2;
    faults_set_float();
}

void faults_set_float(void)
{
    if (!has_float)
        return;
    fesetround((int)rounding);
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(mxcsr);
#endif
}

/* ---- descriptors ---- */

static bool is_open(int fd)
{
    return syscall(SYS_fcntl, fd, F_GETFD) >= 0;
}

static void tell_descriptors(void)
{
    char path[4096];
    for (int fd = 0; fd < FIRST_OWN; fd++) {
        if (!open_at_start[fd] && is_open(fd))
            faults_tell("descriptor %s\n", faults_path_of(fd, path));
    }
}

/* ---- around main ---- */

static int judged_main(int argc, char **argv, char **environment)
{
    if (getenv("FAULTS_PLAN") != NULL)
        read_plan(getenv("FAULTS_PLAN"));
    if (getenv("FAULTS_TOLD") != NULL) {
        const int fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("FAULTS_TOLD"),
                                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0644);
        told = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, FIRST_OWN);
        syscall(SYS_close, fd);
    }
    if (getenv("FAULTS_RECORD") != NULL)
        faults_record_begin(getenv("FAULTS_RECORD"));
    for (int fd = 0; fd < FIRST_OWN; fd++)
        open_at_start[fd] = is_open(fd);
    read_float(getenv("FAULTS_FLOAT"));
    in_main = true;
    const int code = real_main(argc, argv, environment);
    in_main = false;
    for (int i = 0; i < FAULTS_N; i++)
        faults_tell("count %s %ld\n", kNames[i], (long)counts[i]);
    faults_tell_blocks();
    tell_descriptors();
    faults_tell("end %d\n", code);
    return code;
}

int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    int (*next)(main_fn *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = program;
    return next(judged_main, argc, argv, init, fini, rtld_fini, stack_end);
}
