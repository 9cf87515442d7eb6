/* What a person sees while a job runs: a progress line on a terminal, plain lines in a pipe; and Ctrl-C. */
#ifndef TSR_CLI_TERMINAL_H
#define TSR_CLI_TERMINAL_H

#include "common/threads.h"

typedef struct tsr_terminal {
    bool quiet, tty;
    double last_seconds; /* when the last plain line was printed */
    const char *last_phase;
    const char *verb; /* the word to show for the engine's "converting" */
    bool line_open;
} tsr_terminal;

tsr_terminal tsr_terminal_open(bool quiet);

/* Run options for a job that shows its progress on `terminal` and stops at Ctrl-C. */
tsr_run_options tsr_terminal_run_options(tsr_terminal *terminal, uint64_t threads, uint64_t memory);

/* A tsr_run_options.progress callback; `terminal` is a tsr_terminal. */
void tsr_terminal_progress(const tsr_progress *progress, void *terminal);

/* Erases the progress line, if there is one. */
void tsr_terminal_close(tsr_terminal *terminal);

/* Turns SIGINT and SIGTERM into *flag: the first asks to stop, a second kills as usual. */
const atomic_bool *tsr_terminal_catch_interrupt(void);

/* "1.31 TB", "512 MB": into `text`, at least 32 bytes. Returns text. */
const char *tsr_bytes_text(double bytes, char *text);

#endif
