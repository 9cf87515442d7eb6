/* Finds the commands that serve an output: one for each loader, or the reason why it cannot load the output. */
#pragma once

#include "common/text.h"
#include "formats/loaders/loaders.h"

enum { TSR_MAX_SERVE_HINTS = 4 };

typedef struct tsr_serve_hints {
    struct {
        const char *loader;   /* "vllm"; static */
        const char *command;  /* in the arena; NULL: it cannot load the checkpoint */
        const char *reason;   /* in the arena; without a command: the reason, and a remedy */
        unsigned tp[4], n_tp; /* the tensor-parallel sizes among 1, 2, 4 and 8 at which it can */
    } items[TSR_MAX_SERVE_HINTS];
    size_t count;
    const char *against; /* a reason against serving that applies to all loaders; borrowed; NULL: none */
    tsr_arena arena;
} tsr_serve_hints;

/* Checks the checkpoint at `path` by its headers and config.json, like inspect --can-load. `against` (borrowed; may be
 * NULL) is a reason to give no command. On failure *hints is empty. */
tsr_status tsr_serve_hints_find(tsr_serve_hints *hints, const char *path, const char *against, tsr_err *err);

/* Prints one line for each loader. */
void tsr_serve_hints_print(const tsr_serve_hints *hints);

/* Writes the member "serve". */
void tsr_serve_hints_json(tsr_text *text, const tsr_serve_hints *hints);

void tsr_serve_hints_free(tsr_serve_hints *hints);
