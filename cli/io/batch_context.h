/* Requests of `tessera batch` to a command that runs as its job, in the same process. */
#pragma once

#include <stdbool.h>

typedef struct tsr_batch_context {
    const char *job;      /* the job's name, for its messages and its lines of progress */
    int progress_fd;      /* receives the lines of progress; -1: none */
    bool jsonl;           /* lines of progress also go to stderr */
    bool keep;            /* keep the JSON result in tsr_command_context.result */
    const char *promised; /* a folder that the batch creates before its jobs begin; NULL: none */
} tsr_batch_context;
