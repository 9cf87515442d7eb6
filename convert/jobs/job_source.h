/* The source of a job and the size limit of the files that it writes. */
#pragma once

#include "common/options.h"

#include <stdint.h>

typedef struct tsr_job_source {
    const char *path;
    tsr_list ignore; /* globs of files that are ignored */
    uint64_t max_shard_bytes;
} tsr_job_source;
