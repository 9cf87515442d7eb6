/* A command that runs as a job of `tessera batch`, in the batch's own process: what the batch asks of the command, and what it
 * learns of it. A command that runs by itself finds nothing here.
 *
 * A job is first rehearsed: its command line is read and its places are checked as always, and then it stops without a word.
 * So a batch knows of all jobs what they read and write, and that no command line is wrong, before it begins the first one. */
#ifndef TSR_CLI_STAGE_H
#define TSR_CLI_STAGE_H

#include "common/arena.h"
#include "common/text.h"

/* A path that a command reads or writes. */
typedef struct tsr_stage_path {
    const char *option; /* of an output: "-o", "--json"; NULL: it is read */
    const char *path;
    bool folder; /* an output directory */
} tsr_stage_path;

typedef struct tsr_stage {
    /* Asked by the batch. */
    const char *job; /* its name: before messages, and in lines of progress */
    bool rehearsal;
    const char *json; /* a --json of this path is kept in `result` and not written; NULL: none */
    int progress_fd;  /* where lines of progress go; -1: nowhere */
    bool jsonl;       /* they go to stderr as well */

    /* Learned of the command. */
    bool rehearsed;        /* it came to the end of its rehearsal: nothing is wrong */
    tsr_stage_path *paths; /* in `arena` */
    size_t n_paths, capacity;
    tsr_text result;
    tsr_status status; /* as given to tsr_end */
    tsr_err err;
    bool measured; /* a checkpoint was made, or found complete: */
    bool complete; /* nothing was left to do */
    uint64_t bytes_read, bytes_written;
    double sqnr; /* dB; NaN: nothing was quantized */
    tsr_arena arena;
} tsr_stage;

/* Puts a command on stage; NULL: none. */
void tsr_stage_set(tsr_stage *stage);

/* What is on stage; NULL: nothing. */
tsr_stage *tsr_stage_now(void);

/* Notes one path more that the command on stage reads or writes (copied); but for NULL, and for what the batch put there itself. */
tsr_status tsr_stage_note(const tsr_stage_path *path, tsr_err *err) TSR_WARN_UNUSED;

/* TSR_E_CANCELLED in a rehearsal, which has then come to its end. Called by tsr_places_check. */
tsr_status tsr_stage_end_rehearsal(tsr_err *err) TSR_WARN_UNUSED;

/* Whether a report of this path is the batch's to keep; and keeping it. Called by tsr_write_report. */
bool tsr_stage_owns(const char *path);
tsr_status tsr_stage_keep(const tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

void tsr_stage_free(tsr_stage *stage);

#endif
