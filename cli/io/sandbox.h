/* Restricts the process before it reads untrusted data (docs/reliability.md).
 *
 * From then on it can only read the inputs of its command line, and write its output and reports. It can start no
 * program, open no socket (connections only if a source or the output is on a server), and change no permissions, so
 * that a hostile file cannot exploit a fault in a parser. Linux enforces this: with Landlock since 5.19, and with
 * seccomp. Without them, the tool runs unrestricted. libtessera does not restrict its process, because a library must
 * not. */
#pragma once

#include "cli/io/io_paths.h"

/* Returns the Landlock version of the running kernel; 0: none, or one that does not allow renames between folders. */
int tsr_sandbox_landlock(void);

/* Returns true if this build can filter system calls on this machine. */
bool tsr_sandbox_seccomp(void);

/* Return the reason why a command cannot be sandboxed (tsr_io_paths.unconfined); NULL: it can. */
const char *tsr_unconfined_ranks(bool mpi);

/* `device`: a GPU may be used. `blas`: products are by OpenBLAS on the CPU. `tokens`: a token file, which a Python
 * program reads if it is text; may be NULL. */
const char *tsr_unconfined_device(bool device, bool blas, const char *tokens);

/* The folders that tsr_sandbox_enter created: the deepest, and their number. */
typedef struct tsr_made_folders {
    char *path;
    size_t folders;
} tsr_made_folders;

/* Restricts this process, which must have one thread, to the paths. Creates the output directory, because a folder that
 * does not exist cannot be allowed, and records it in `made`. */
tsr_status tsr_sandbox_enter(const tsr_io_paths *paths, tsr_made_folders *made, tsr_err *err);

/* Removes the created folders that are still empty. */
void tsr_sandbox_end(tsr_made_folders *made);
