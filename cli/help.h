/* What `help` tells programs: every command with its options, and the tensors that a glob may mean. The manual's pages and the
 * completions of shells are made from the first (cli/manual/), and completions ask for the second as a word is typed. */
#ifndef TSR_CLI_HELP_H
#define TSR_CLI_HELP_H

#include "cli/commands.h"
#include "common/status.h"

/* What exit codes mean; the last entry has no meaning. */
typedef struct tsr_exit_meaning {
    int code;
    const char *meaning;
} tsr_exit_meaning;

extern const tsr_exit_meaning tsr_exit_meanings[];

/* Writes the help of all commands as JSON to `path` ('-': stdout). */
tsr_status tsr_help_json(const tsr_command *commands, size_t n, const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Prints the tensors of a checkpoint that begin with `beginning`, a line each. A number that is a whole part of a name is *
 * behind `beginning`, so that a large model has as few lines as a small one. */
tsr_status tsr_help_tensors(const char *checkpoint, const char *beginning, tsr_err *err) TSR_WARN_UNUSED;

#endif
