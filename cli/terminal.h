/* What a person sees while a job runs: a progress line on a terminal, plain lines in a pipe; and Ctrl-C.
 *
 * Programs get an object of JSON a line instead (docs/schemas/progress.schema.json): at the beginning and end of each phase, and
 * every second. They never hold up a job: a line for which a pipe has no room is left out. */
#ifndef TSR_CLI_TERMINAL_H
#define TSR_CLI_TERMINAL_H

#include "cli/options.h"
#include "common/threads.h"

typedef struct tsr_terminal {
    bool quiet, tty;
    double last_seconds; /* when the last plain line was printed */
    const char *last_phase;
    const char *verb; /* the word to show for the engine's "converting" */
    bool line_open;
    bool jsonl;       /* lines of JSON on stderr */
    const char *path; /* --progress-file, open as `fd`; NULL: none */
    int fd;
    const char *job;         /* of a batch; NULL: none */
    double began, last_line; /* tsr_now: when it was opened; when the last line of JSON was written */
    const char *line_phase;  /* of that line */
    const char *kind;        /* of the checks that are running, where a command runs several; NULL: there are none */
} tsr_terminal;

/* Opens the file for progress, if there is one. After a failure there is nothing to close. */
tsr_status tsr_terminal_open(tsr_terminal *terminal, bool quiet, const tsr_progress_options *progress,
                             tsr_err *err) TSR_WARN_UNUSED;

/* From now on progress is that of this kind of check, and it has begun: "gemm", of static storage. */
void tsr_terminal_begin_kind(tsr_terminal *terminal, const char *kind);

/* Run options for a job that shows its progress on `terminal` and stops at Ctrl-C. */
tsr_run_options tsr_terminal_run_options(tsr_terminal *terminal, uint64_t threads, uint64_t memory);

/* A tsr_run_options.progress callback; `terminal` is a tsr_terminal. */
void tsr_terminal_progress(const tsr_progress *progress, void *terminal);

/* Erases the progress line, if there is one, and tells programs that the job has ended. */
void tsr_terminal_close(tsr_terminal *terminal);

/* Turns SIGINT and SIGTERM into *flag: the first asks to stop, a second kills as usual. */
const atomic_bool *tsr_terminal_catch_interrupt(void);

/* "1.31 TB", "512 MB": into `text`, at least 32 bytes. Returns text. */
const char *tsr_bytes_text(double bytes, char *text);

#endif
