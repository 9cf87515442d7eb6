/* Shared declarations of the preloaded object that makes system calls fail. It lets the N-th call of one kind fail, be short, or
 * do nothing. It counts the calls of each kind, and reports the call that failed, and the memory and descriptors that the tool kept
 * at the end of main. It can also record all changes of files, contents included, for a replay of power cuts.
 *
 * Environment variables, which are read when main begins, so that a forked process (tests/common/forked.c) gets a plan of its own:
 * - FAULTS_PLAN: "KIND N ACTION", "KIND N+ ACTION" (N and all later calls), or an absolute path of a file with this line. If " TEXT"
 *   follows, only calls count whose path contains it. KIND "any" counts calls of all kinds. ACTION is an errno, "short", "zero",
 *   "signal" and a number (sent before the call), or "run" (the shell runs FAULTS_COMMAND before the call). Empty: nothing fails.
 * - FAULTS_TOLD: "hit KIND N PATH" when it happens (the first 200); at the end of main "count KIND NUMBER", "block SITE BYTES" for each block of
 *   memory, and "descriptor PATH" for each descriptor that main did not find open.
 * - FAULTS_FLOAT: the floating-point mode that every thread begins with, as fenv.h's and MXCSR's numbers: "ROUNDING MXCSR", in hex.
 * - FAULTS_RECORD: the file to which all changes of files are written (record.c has the format).
 * - FAULTS_DISK: a file system in memory is reported as one on a disk, since it takes direct writes as well.
 * fsync and fdatasync are recorded and not executed: these tests cannot cut the power, and a sync takes longer than a run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The fault is not applied to a file on this list. */
/* clang-format off */
#define FAULTS_KINDS(K) \
    K(open) K(create) K(openat) K(opendir) K(readdir) K(closedir) K(read) K(pread) \
    K(preadv2) K(write) K(pwrite) K(fsync) K(fdatasync) K(rename) K(unlink) K(unlinkat) \
    K(mkdir) K(linkat) K(clone) K(ftruncate) K(fallocate) K(stat) K(lstat) K(fstat) K(statx) K(statvfs) \
    K(fstatfs) K(access) K(realpath) K(readlink) K(getcwd) K(flock) K(close) K(dup) \
    K(fcntl) K(pipe) K(lseek) K(clock) K(madvise) K(fadvise) K(sync_range) K(rlimit) \
    K(affinity) K(thread) K(lock) K(poll) K(semaphore) K(spawn) K(malloc) K(ring) \
    K(ring_register) K(ring_submit) K(ring_wait) K(ring_read) K(ring_write)
/* clang-format on */

#define FAULTS_MEMBER(name) FAULT_##name,
typedef enum faults_kind { FAULTS_KINDS(FAULTS_MEMBER) FAULTS_N } faults_kind;

typedef enum faults_action {
    FAULTS_PASS,
    FAULTS_FAIL, /* errno is set */
    FAULTS_SHORT,
    FAULTS_ZERO,
} faults_action;

/* Counts a call, and says what becomes of it. `path` names its file; where it is NULL, the descriptor does. */
faults_action faults_strike(faults_kind kind, int fd, const char *path);

/* The floating-point mode of this thread, as FAULTS_FLOAT has it. */
void faults_set_float(void);

/* Returns true if this is code of the program itself, not of a library. */
bool faults_is_program(void (*code)(void));

/* Returns true if main has begun: what libraries do before it is not judged. */
bool faults_in_main(void);

/* The name of an open file. */
const char *faults_path_of(int fd, char path[4096]);

/* A line of the log. */
void faults_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Requests at an offset, also of the ring; each is one call, which is recorded. */
ssize_t faults_carry_out(bool write, int fd, void *data, size_t size, off_t offset);

/* Tells of the blocks that are still there. */
void faults_tell_blocks(void);

/* The system's own function, behind this shared object's. */
#define FAULTS_REAL(name)                               \
    __extension__({                                     \
        static __typeof__(&name) real_;                 \
        if (real_ == NULL)                              \
            *(void **)&real_ = dlsym(RTLD_NEXT, #name); \
        real_;                                          \
    })

/* ---- recording ---- */

void faults_record_begin(const char *path);

bool faults_records(void);

/* From a change to its line nothing else is recorded, so that the lines stand in the order of the changes. */
void faults_record_lock(void);

/* A line, and bytes that follow it; and the end of the change. Nothing where the change failed: `done` is false. */
void faults_record(bool done, const void *data, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
