/* The tool locks itself in before it reads a byte that somebody else wrote: from then on it reads what its command line names,
 * writes its output and its reports, starts no program, opens no socket, and changes nobody's rights. So a fault in a parser, found
 * by a hostile file, has nothing to work with (docs/reliability.md).
 *
 * Linux does it, by Landlock from 5.19 on and by seccomp; where it has none of them, the tool runs as before. A library may not
 * restrict the program that it is in, and libtessera does not. */
#ifndef TSR_CLI_SANDBOX_H
#define TSR_CLI_SANDBOX_H

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>

/* The version of the running kernel's Landlock; 0: it has none, or none that a rename between folders works in. */
int tsr_sandbox_landlock(void);

/* Whether this build can filter system calls on this machine. */
bool tsr_sandbox_seccomp(void);

/* --no-sandbox: tsr_sandbox_enter does nothing from now on. */
void tsr_sandbox_leave_out(void);

/* Why a command cannot be locked in (`unconfined` of its places); NULL: it can. Other processes and drivers have needs of their own. */
const char *tsr_unconfined_ranks(bool mpi);

/* `device`: a GPU may be asked for. `tokens`: a file of tokens, which a program in Python reads if it is text; may be NULL. */
const char *tsr_unconfined_device(bool device, const char *tokens);

/* What a command may touch from now on. */
typedef struct tsr_sandbox {
    const char *const *sources; /* `n_sources` files and folders; NULL: none */
    size_t n_sources;
    bool beside;                /* what lies beside the sources is read, too */
    const char *const *reports; /* `n_reports` files that are written, not stdout */
    size_t n_reports;
    const char
        *dst;    /* the output directory, which is made here, since what does not exist cannot be allowed; NULL: none */
    bool shared; /* others make the same dst: it is not removed again */
    bool links;  /* files of the sources get names in dst, where they must not become writable by that */
} tsr_sandbox;

/* Locks this process in, as long as it has one thread. */
tsr_status tsr_sandbox_enter(const tsr_sandbox *to, tsr_err *err) TSR_WARN_UNUSED;

/* Removes the folders that tsr_sandbox_enter made, where nothing came into them. */
void tsr_sandbox_end(void);

#endif
