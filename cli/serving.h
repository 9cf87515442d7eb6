/* Who can serve an output: for each loader a command, or the reason why it does not take the output. */
#ifndef TSR_CLI_SERVING_H
#define TSR_CLI_SERVING_H

#include "common/text.h"
#include "formats/loaders/loaders.h"

enum { TSR_SERVING_MAX = 4 };

typedef struct tsr_serving {
    struct {
        const char *loader;   /* "vllm"; static */
        const char *command;  /* in the arena; NULL: it does not take the checkpoint */
        const char *reason;   /* in the arena; without a command: why not, and what would help */
        unsigned tp[4], n_tp; /* tensor-parallel sizes, of 1, 2, 4 and 8, at which it does */
    } items[TSR_SERVING_MAX];
    size_t count;
    tsr_arena arena;
} tsr_serving;

/* Judges the checkpoint at `path` by its headers and config.json, as inspect --can-load does. On failure empty. */
tsr_status tsr_serving_find(tsr_serving *serving, const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* To stdout, a line each. */
void tsr_serving_print(const tsr_serving *serving);

/* The member "serve". */
void tsr_serving_json(tsr_text *text, const tsr_serving *serving);

void tsr_serving_free(tsr_serving *serving);

#endif
