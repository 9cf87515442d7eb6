/* Locks the tool in before it reads a byte that somebody else wrote (docs/reliability.md).
 *
 * From then on it reads what its command line names, and writes its output and its reports. It starts no program, opens no socket,
 * and changes no rights, so that a fault in a parser gives a hostile file nothing to work with. Linux enforces it: by Landlock from
 * 5.19 on, and by seccomp. Where it has neither, the tool runs as before. A library may not restrict its program, and libtessera
 * does not. */
#ifndef TSR_CLI_IO_SANDBOX_H
#define TSR_CLI_IO_SANDBOX_H

#include "cli/io/io_paths.h"

/* Returns the version of the running kernel's Landlock; 0: it has none, or none that allows a rename between folders. */
int tsr_sandbox_landlock(void);

/* Returns true if this build can filter system calls on this machine. */
bool tsr_sandbox_seccomp(void);

/* Return why a command cannot be locked in (tsr_io_paths.unconfined); NULL: it can. */
const char *tsr_unconfined_ranks(bool mpi);

/* `device`: a GPU may be used. `tokens`: a file of tokens, which a Python program reads if it is text; may be NULL. */
const char *tsr_unconfined_device(bool device, const char *tokens);

/* The folders that tsr_sandbox_enter made: the deepest, and their number. */
typedef struct tsr_made_folders {
    char *path;
    size_t folders;
} tsr_made_folders;

/* Restricts this process to the paths, as long as it has one thread. Makes the output directory, since a folder that does not
 * exist cannot be allowed, and notes it in `made`. */
tsr_status tsr_sandbox_enter(const tsr_io_paths *paths, tsr_made_folders *made, tsr_err *err) TSR_WARN_UNUSED;

/* Removes the folders that were made and are still empty. */
void tsr_sandbox_end(tsr_made_folders *made);

#endif
