/* Restricts the process: files with Landlock, system calls with seccomp. The C library has no wrappers for these. */
#include "cli/io/sandbox.h"

#include "cli/build.h"
#include "common/file.h"
#include "common/path_guard.h"
#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/remote/address.h"
#include "formats/remote/remote.h"
#include "formats/remote/settings/places.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sanitizers start programs and read other processes, which the sandbox would not allow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define WATCHED 1
#endif
#endif
#ifndef WATCHED
#define WATCHED 0
#endif

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#define ARCHITECTURE 0
#endif

const char *tsr_unconfined_ranks(bool mpi)
{
    return mpi ? "MPI communicates with other processes" : NULL;
}

const char *tsr_unconfined_device(bool device, bool blas, const char *tokens)
{
    if (device && TSR_WITH_CUDA)
        return "the CUDA driver opens devices and starts helper processes";
    if (blas)
        return "OpenBLAS is loaded at run time";
    return tokens != NULL ? "Python converts text to tokens" : NULL;
}

/* ---- files ---- */

/* Values of Landlock that are missing in the headers of Debian 12. */
enum {
    EXECUTE = 1 << 0,
    WRITE_FILE = 1 << 1,
    READ_FILE = 1 << 2,
    READ_DIR = 1 << 3,
    REMOVE_DIR = 1 << 4,
    REMOVE_FILE = 1 << 5,
    MAKE_DIR = 1 << 7,
    MAKE_REG = 1 << 8,
    ALL_OF_1 = (1 << 13) - 1,
    REFER = 1 << 13,    /* since version 2: renaming into another folder, which version 1 always refuses */
    TRUNCATE = 1 << 14, /* since version 3 */

    OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE,
    TO_READ = READ_FILE | READ_DIR,
    TO_REPORT = WRITE_FILE | TRUNCATE | MAKE_REG | REMOVE_FILE | READ_DIR,
    TO_BUILD = TO_READ | TO_REPORT | REMOVE_DIR | MAKE_DIR | REFER,
    /* For folders that receive links to source files. The kernel allows no link that would add rights to the file, so
     * files below them must not be writable. */
    TO_NAME = TO_BUILD & ~(WRITE_FILE | TRUNCATE),
};

enum { RULE_BELOW = 1, ASK_VERSION = 1, BIND_OF_4 = 1, TCP_OF_4 = 3 };

typedef struct ruleset_attr {
    uint64_t files, network;
} ruleset_attr;

typedef struct __attribute__((packed)) below_attr {
    uint64_t allowed;
    int32_t folder;
} below_attr;

#ifdef __NR_landlock_create_ruleset
static long create_ruleset(const ruleset_attr *attr, size_t size, uint32_t flags)
{
    return syscall(__NR_landlock_create_ruleset, attr, size, flags);
}
static long add_rule(int ruleset, const below_attr *rule)
{
    return syscall(__NR_landlock_add_rule, ruleset, RULE_BELOW, rule, 0);
}
static long restrict_self(int ruleset)
{
    return syscall(__NR_landlock_restrict_self, ruleset, 0);
}
#else
static long create_ruleset(const ruleset_attr *attr, size_t size, uint32_t flags)
{
    (void)attr, (void)size, (void)flags;
    return -1;
}
static long add_rule(int ruleset, const below_attr *rule)
{
    (void)ruleset, (void)rule;
    return -1;
}
static long restrict_self(int ruleset)
{
    (void)ruleset;
    return -1;
}
#endif

int tsr_sandbox_landlock(void)
{
    const long version = WATCHED ? -1 : create_ruleset(NULL, 0, ASK_VERSION);
    return version < 2 ? 0 : (int)version;
}

/* A set of Landlock rules that is being built. */
typedef struct rules {
    int fd;
    uint64_t handled;
} rules;

/* Accepts a failed call if the path does not exist or cannot be reached, because it needs no rule. After any other
 * failure a rule would be missing, and opening the path later would fail with "permission denied" instead of the real
 * reason. */
static tsr_status check_absent(const char *path, tsr_err *err)
{
    return errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP || errno == ENAMETOOLONG
               ? TSR_OK
               : tsr_fail_errno(err, "%s: cannot add it to the sandbox", path);
}

/* Allows `rights` for `path` and everything below it. An unnamed pipe needs no rule. */
static tsr_status allow(const rules *r, const char *path, uint64_t rights, tsr_err *err)
{
    const int fd = tsr_open(path, O_PATH);
    if (fd < 0)
        return check_absent(path, err);
    struct stat st;
    below_attr rule = {.folder = fd};
    const bool seen = fstat(fd, &st) == 0;
    if (seen)
        rule.allowed = rights & r->handled & (S_ISDIR(st.st_mode) ? ~(uint64_t)0 : OF_FILES);
    tsr_status status = TSR_OK;
    if (!seen || (rule.allowed != 0 && add_rule(r->fd, &rule) != 0 && errno != EBADFD))
        status = tsr_fail_errno(err, "%s: cannot add it to the sandbox", path);
    close(fd);
    return status;
}

static tsr_status allow_folder_of(const rules *r, const char *path, uint64_t rights, tsr_err *err)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    return allow(r, dirname(copy), rights, err);
}

/* Allows a source. Files beside a safetensors file are also read. In a hub's cache, files are links to a folder beside
 * snapshots/. */
static tsr_status allow_source(const rules *r, const char *path, const tsr_io_paths *to, tsr_err *err)
{
    const uint64_t rights = TO_READ | (to->links ? REFER : 0);
    char real[PATH_MAX + 8];
    struct stat st;
    TSR_TRY(allow(r, path, rights, err));
    if (stat(path, &st) != 0 || realpath(path, real) == NULL)
        return check_absent(path, err);
    const bool beside = to->beside || tsr_ends_with(path, ".safetensors") || tsr_ends_with(path, ".safetensors.zst");
    if (S_ISREG(st.st_mode) && beside) {
        TSR_TRY(allow_folder_of(r, path, rights, err));
        snprintf(real, sizeof real, "%s", path);
        char folder[PATH_MAX];
        if (realpath(dirname(real), folder) == NULL)
            return check_absent(path, err);
        snprintf(real, sizeof real, "%s", folder);
    }
    char *const revision = strrchr(real, '/');
    if (revision == NULL || revision - real < 10 || strncmp(revision - 10, "/snapshots", 10) != 0)
        return TSR_OK;
    memcpy(revision - 10, "/blobs", sizeof "/blobs");
    TSR_TRY(allow(r, real, rights, err));
    memcpy(revision - 10, "/refs", sizeof "/refs");
    return allow(r, real, TO_READ, err);
}

/* Allows a report. A regular file is replaced by a rename in its folder; anything else is written through. */
static tsr_status allow_report(const rules *r, const char *path, tsr_err *err)
{
    char real[PATH_MAX];
    struct stat st;
    if (path == NULL || tsr_is_stdout(path))
        return TSR_OK;
    if (stat(path, &st) != 0)
        TSR_TRY(check_absent(path, err));
    else if (!S_ISREG(st.st_mode))
        return allow(r, path, WRITE_FILE | READ_FILE | TRUNCATE, err);
    return allow_folder_of(r, realpath(path, real) != NULL ? real : path, TO_REPORT, err);
}

/* Writes DST/.tessera into path. Returns path. */
static const char *state_of(const char *dst, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/" TSR_STATE_DIR, dst);
    return path;
}

/* Returns true if a folder is empty. */
static bool is_empty(const char *path)
{
    DIR *const dir = opendir(path);
    size_t n = 0;
    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        closedir(dir);
    return dir != NULL && n == 2; /* itself and its parent */
}

/* Creates the folder for temporary files, unless it exists, or the output was not made by Tessera and must stay
 * unchanged. The last `missing` folders on the way to the output were just created. */
static bool make_state(const tsr_io_paths *to, size_t missing, tsr_made_folders *made)
{
    char path[PATH_MAX];
    struct stat st;
    if (lstat(state_of(to->dst, path), &st) == 0)
        return S_ISDIR(st.st_mode);
    if (!is_empty(to->dst) || tsr_make_dirs(path, NULL) != TSR_OK)
        return false;
    if (!to->shared) {
        free(made->path);
        made->path = strdup(path);
        made->folders = made->path == NULL ? 0 : missing + 1;
    }
    return true;
}

/* Allows links from DST to sources. All else is written in DST/.tessera and renamed from there. */
static tsr_status allow_links(const rules *r, const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    TSR_TRY(allow(r, dst, TO_NAME, err));
    return allow(r, state_of(dst, path), TO_BUILD, err);
}

/* Creates the output directory. If that fails, allows its parent, and the engine reports the reason. */
static tsr_status allow_output(const rules *r, const tsr_io_paths *to, tsr_made_folders *made, tsr_err *err)
{
    char existing[PATH_MAX];
    size_t missing;
    if (to->dst == NULL || to->untouched)
        return TSR_OK;
    TSR_TRY(tsr_path_guard_resolve(to->dst, existing, &missing, err));
    if (missing > 0 && (strstr(to->dst, "..") != NULL || tsr_make_dirs(to->dst, NULL) != TSR_OK))
        return allow(r, existing, TO_BUILD, err);
    if (missing > 0 && !to->shared && (made->path = strdup(to->dst)) != NULL) {
        made->folders = missing;
        TSR_TRY(allow(r, existing, REMOVE_DIR, err));
    }
    /* The parent is opened to sync the new name. */
    TSR_TRY(allow_folder_of(r, to->dst, READ_DIR, err));
    return to->links && make_state(to, missing, made) ? allow_links(r, to->dst, err) : allow(r, to->dst, TO_BUILD, err);
}

/* Allows a place that reading from servers needs. */
static tsr_status allow_place(const char *path, bool written, void *to, tsr_err *err)
{
    if (written)
        (void)!tsr_make_dirs(path, NULL); /* a folder that does not exist cannot be allowed */
    return allow(to, path, written ? TO_BUILD : TO_READ, err);
}

/* Returns true if a source or the output is on a server. */
static bool connects(const tsr_io_paths *to)
{
    bool any = to->address != NULL;
    for (size_t i = 0; i < TSR_MAX_SOURCES; i++)
        any = any || (to->sources[i] != NULL && tsr_is_remote(to->sources[i]));
    return any;
}

static tsr_status allow_all(const rules *r, const tsr_io_paths *to, tsr_made_folders *made, tsr_err *err)
{
#ifdef TSR_COVERAGE
    /* gcov writes its counters there when the process ends */
    if (getenv("GCOV_PREFIX") != NULL)
        TSR_TRY(allow(r, getenv("GCOV_PREFIX"), TO_BUILD, err));
#endif
    /* CPUs and memory nodes */
    TSR_TRY(allow(r, "/sys/devices/system", TO_READ, err));
    if (connects(to))
        TSR_TRY(tsr_remote_places(allow_place, (void *)r, err));
    for (size_t i = 0; i < TSR_MAX_SOURCES; i++) {
        if (to->sources[i] != NULL && !tsr_is_remote(to->sources[i]))
            TSR_TRY(allow_source(r, to->sources[i], to, err));
    }
    const char *const usual[] = {to->json, to->junit, to->progress};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        TSR_TRY(allow_report(r, usual[i], err));
    for (size_t i = 0; to->more[i].option != NULL; i++)
        TSR_TRY(allow_report(r, to->more[i].path, err));
    return allow_output(r, to, made, err);
}

static tsr_status restrict_files(const tsr_io_paths *to, int version, tsr_made_folders *made, tsr_err *err)
{
    const ruleset_attr attr = {.files = ALL_OF_1 | REFER | (version >= 3 ? TRUNCATE : 0),
                               .network = version < 4    ? 0
                                          : connects(to) ? BIND_OF_4
                                                         : TCP_OF_4};
    const rules r = {.fd = (int)create_ruleset(&attr, version >= 4 ? sizeof attr : sizeof attr.files, 0),
                     .handled = attr.files};
    if (r.fd < 0)
        return tsr_fail_errno(err, "cannot set up the sandbox; --no-sandbox runs without it");
    tsr_status status = allow_all(&r, to, made, err);
    /* E2BIG: sixteen sandboxes are nested already, and they are effective */
    if (status == TSR_OK && restrict_self(r.fd) != 0 && errno != E2BIG)
        status = tsr_fail_errno(err, "cannot enter the sandbox; --no-sandbox runs without it");
    close(r.fd);
    return status;
}

/* ---- system calls ---- */

/* Calls that start programs, open sockets, access other processes or change the system, and those that Landlock does
 * not cover: modes, owners, attributes, times. */
static const uint32_t kRefused[] = {
    /* The first OF_CONNECTIONS are allowed if a source or the output is on a server: looking up a host binds a netlink
     * socket. */
    __NR_socket,
    __NR_socketpair,
    __NR_connect,
    __NR_bind,
    __NR_execve,
    __NR_execveat,
    __NR_listen,
    __NR_accept,
    __NR_accept4,
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    __NR_kcmp,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
    __NR_setns,
    __NR_unshare,
    __NR_open_by_handle_at,
    __NR_bpf,
    __NR_perf_event_open,
    __NR_userfaultfd,
    __NR_keyctl,
    __NR_add_key,
    __NR_request_key,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_kexec_load,
    __NR_reboot,
    __NR_swapon,
    __NR_swapoff,
    __NR_acct,
    __NR_settimeofday,
    __NR_clock_settime,
    __NR_sethostname,
    __NR_setuid,
    __NR_setgid,
    __NR_setresuid,
    __NR_setresgid,
    __NR_capset,
    __NR_fchmod,
    __NR_fchmodat,
    __NR_fchown,
    __NR_fchownat,
    __NR_setxattr,
    __NR_lsetxattr,
    __NR_fsetxattr,
    __NR_removexattr,
    __NR_lremovexattr,
    __NR_fremovexattr,
    __NR_utimensat,
#ifdef __NR_chmod
    __NR_chmod,
    __NR_chown,
    __NR_lchown,
    __NR_utime,
    __NR_utimes,
    __NR_futimesat,
    __NR_ioperm,
    __NR_iopl,
#endif
};

enum {
    N_REFUSED = sizeof kRefused / sizeof *kRefused,
    OF_CONNECTIONS = 4,
    OTHER_NUMBERS = 0x40000000 /* x32, on x86-64 */
};

bool tsr_sandbox_seccomp(void)
{
    return !WATCHED && ARCHITECTURE != 0 && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) >= 0;
}

static struct sock_filter load(size_t offset)
{
    return (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset);
}

static struct sock_filter jump(uint16_t test, uint32_t value, size_t if_so, size_t if_not)
{
    return (struct sock_filter)BPF_JUMP((uint16_t)(BPF_JMP | test | BPF_K), value, (uint8_t)if_so, (uint8_t)if_not);
}

/* Makes forbidden calls fail with EPERM. If the kernel has no seccomp, only Landlock restricts the process. */
static void restrict_calls(bool sockets)
{
    struct sock_filter program[N_REFUSED + 6];
    size_t n = 0;
    const size_t first = sockets ? OF_CONNECTIONS : 0, refuse = N_REFUSED - first + 5;
    program[n++] = load(offsetof(struct seccomp_data, arch));
    program[n] = jump(BPF_JEQ, ARCHITECTURE, 0, refuse - n - 1);
    n++;
    program[n++] = load(offsetof(struct seccomp_data, nr));
    program[n] = jump(BPF_JGE, OTHER_NUMBERS, refuse - n - 1, 0);
    n++;
    for (size_t i = first; i < N_REFUSED; i++, n++)
        program[n] = jump(BPF_JEQ, kRefused[i], refuse - n - 1, 0);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    const struct sock_fprog filter = {.len = (unsigned short)n, .filter = program};
    (void)prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
}

/* ---- both ---- */

tsr_status tsr_sandbox_enter(const tsr_io_paths *to, tsr_made_folders *made, tsr_err *err)
{
    const int version = tsr_sandbox_landlock();
    if (connects(to)) /* loaded before files are restricted */
        TSR_TRY(tsr_remote_prepare(err));
    const bool calls = tsr_sandbox_seccomp();
    if ((version == 0 && !calls) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return TSR_OK;
    if (version > 0)
        TSR_TRY(restrict_files(to, version, made, err));
    if (calls)
        restrict_calls(connects(to));
    return TSR_OK;
}

void tsr_sandbox_end(tsr_made_folders *made)
{
    for (char *folder = made->path; made->folders > 0 && rmdir(folder) == 0; made->folders--)
        folder = dirname(folder);
    free(made->path);
    *made = (tsr_made_folders){0};
}
