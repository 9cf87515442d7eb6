/* The requests of `tessera batch` to a command that runs as its job, in the same process. */
#ifndef TSR_CLI_IO_BATCH_CONTEXT_H
#define TSR_CLI_IO_BATCH_CONTEXT_H

#include <stdbool.h>

typedef struct tsr_batch_context {
    const char *job;      /* the job's name: begins its messages, and is in its lines of progress */
    int progress_fd;      /* gets the lines of progress; -1: there is no such file */
    bool jsonl;           /* lines of progress go to stderr as well */
    bool keep;            /* the JSON result stays in tsr_command_context.result */
    const char *promised; /* a folder that the batch makes before its jobs begin; NULL: there is none */
} tsr_batch_context;

#endif
