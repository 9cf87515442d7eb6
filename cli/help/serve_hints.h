/* Finds the commands that serve an output: one for each loader, or the reason why it does not take the output. */
#ifndef TSR_CLI_HELP_SERVE_HINTS_H
#define TSR_CLI_HELP_SERVE_HINTS_H

#include "common/text.h"
#include "formats/loaders/loaders.h"

enum { TSR_MAX_SERVE_HINTS = 4 };

typedef struct tsr_serve_hints {
    struct {
        const char *loader;   /* "vllm"; static */
        const char *command;  /* in the arena; NULL: it does not take the checkpoint */
        const char *reason;   /* in the arena; without a command: why not, and what would help */
        unsigned tp[4], n_tp; /* tensor-parallel sizes, of 1, 2, 4 and 8, at which it does */
    } items[TSR_MAX_SERVE_HINTS];
    size_t count;
    const char *against; /* the reason for all, whatever loaders take; borrowed; NULL: none */
    tsr_arena arena;
} tsr_serve_hints;

/* Judges the checkpoint at `path` by its headers and config.json, as inspect --can-load does. `against` (borrowed; may be
 * NULL) is a reason to give no command. On failure empty. */
tsr_status tsr_serve_hints_find(tsr_serve_hints *hints, const char *path, const char *against,
                                tsr_err *err) TSR_WARN_UNUSED;

/* Prints one line for each loader. */
void tsr_serve_hints_print(const tsr_serve_hints *hints);

/* Writes the member "serve". */
void tsr_serve_hints_json(tsr_text *text, const tsr_serve_hints *hints);

void tsr_serve_hints_free(tsr_serve_hints *hints);

#endif
