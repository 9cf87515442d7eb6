/* Which part of an output a process makes: shards.h. */
#ifndef TSR_CONVERT_ENGINE_SHARD_H
#define TSR_CONVERT_ENGINE_SHARD_H

#include <stdbool.h>
#include <stddef.h>

enum { TSR_MAX_SHARDS = 9999 };

typedef struct tsr_shard {
    unsigned index, count;    /* index < count */
    const char *const *words; /* the command that plans this anew, without control characters; "quantize" comes first */
    size_t n_words;
    bool finish;   /* not one of them: puts all of them together */
    bool *lacking; /* finish: [count], to be set for the shards that are not complete */
} tsr_shard;

#endif
