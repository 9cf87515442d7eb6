/* Shows the progress of a job: one line on a terminal, plain lines in a pipe. Catches Ctrl-C.
 *
 * Other programs get JSON lines instead (docs/schemas/progress.schema.json): at the beginning and end of each phase,
 * and every second. A full pipe does not delay the job: the line is dropped. */
#pragma once

#include "cli/io/batch_context.h"
#include "cli/io/common_options.h"
#include "common/parallel/threads.h"

typedef struct tsr_terminal {
    bool quiet, tty;
    double last_seconds; /* when the last plain line was printed */
    const char *last_phase;
    const char *verb; /* the word to show for the engine's "converting" */
    bool line_open;
    bool jsonl;       /* lines of JSON on stderr */
    const char *path; /* --progress-file, opened as `fd`; NULL: none */
    int fd;
    const char *job;         /* name of the job in a batch; NULL: none */
    double began, last_line; /* tsr_now: when it was opened, and when the last line of JSON was written */
    const char *line_phase;  /* phase that the line shows */
    const char *kind;        /* name of the running kind of check, if a command runs several; NULL: none */
} tsr_terminal;

/* Opens the progress file, if there is one. A job of a batch (NULL: none) uses that of the batch. After a failure there
 * is nothing to close. */
tsr_status tsr_terminal_open(tsr_terminal *terminal, bool quiet, const tsr_progress_options *progress,
                             const tsr_batch_context *batch, tsr_err *err);

/* Begins a kind of check, whose name ("gemm", static) is in its progress from now on. */
void tsr_terminal_begin_kind(tsr_terminal *terminal, const char *kind);

/* Returns run options for a job that shows its progress on `terminal` and stops at Ctrl-C. */
tsr_run_options tsr_terminal_run_options(tsr_terminal *terminal, uint64_t threads, uint64_t memory);

/* Erases the progress line, and reports the end of the job to other programs. */
void tsr_terminal_close(tsr_terminal *terminal);

/* Installs handlers that set *flag on SIGINT and SIGTERM: the first signal requests a stop, a second one kills as
 * usual. */
const atomic_bool *tsr_terminal_catch_interrupt(void);
