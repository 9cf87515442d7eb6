/* Declares the part of an output that a process makes (shards.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { TSR_MAX_SHARDS = 9999 };

typedef struct tsr_shard {
    unsigned index, count;    /* index < count */
    const char *const *words; /* the command that makes the plan, beginning with "quantize", without control
                               * characters */
    size_t n_words;
    bool finish;   /* this process puts all shards together */
    bool *lacking; /* finish: [count], set for incomplete shards */
} tsr_shard;
