/* What the commands over two checkpoints share: their options, opening both sides, comparing with progress, and the
 * result as JSON. */
#ifndef TSR_CLI_COMPARE_SIDES_H
#define TSR_CLI_COMPARE_SIDES_H

#include "cli/options.h"
#include "cli/terminal.h"
#include "common/text.h"
#include "formats/checkpoint/manifest.h"
#include "verify/weights/compare.h"

typedef struct tsr_compare_job {
    const char *command; /* "diff": for messages */
    const char *path[2]; /* a, b */
    const char *block, *json, *junit;
    tsr_list tensors;
    tsr_progress_options progress;
    uint64_t threads, memory;
    bool quiet, help;
    tsr_ranks *ranks; /* who works with this process; NULL: nobody */

    /* After tsr_compare_job_open; the comparison after tsr_compare_job_compare. */
    tsr_checkpoint *checkpoint[2];
    tsr_weights weights[2];
    tsr_comparison comparison;
    tsr_manifest manifest[2];
    tsr_arena arena; /* of the manifests */
} tsr_compare_job;

/* With the defaults of this machine. */
tsr_compare_job tsr_compare_job_defaults(const char *command);

/* Puts the shared options behind the command's own. */
void tsr_compare_job_options(tsr_compare_job *job, tsr_option *options);

/* Opens both sides, and pairs their scales. */
tsr_status tsr_compare_job_open(tsr_compare_job *job, tsr_err *err) TSR_WARN_UNUSED;

/* Compares them, and shows on the terminal how far it is. */
tsr_status tsr_compare_job_compare(tsr_compare_job *job, tsr_terminal *terminal, tsr_err *err) TSR_WARN_UNUSED;

/* Both, with a terminal of its own. */
tsr_status tsr_compare_job_run(tsr_compare_job *job, tsr_err *err) TSR_WARN_UNUSED;

/* Whether stdout belongs to people: not to --json - or --junit -, and not --quiet. */
bool tsr_compare_job_talks(const tsr_compare_job *job);

void tsr_compare_job_close(tsr_compare_job *job);

/* "identical", "equal", "differs", "misshaped", "missing", "extra". */
const char *tsr_pair_state_name(tsr_pair_state state);

/* Members of the JSON object that is open: name, state, dtypes and shapes of both sides and, where values differ, the
 * figures, the place of the largest error, and the worst blocks. */
void tsr_pair_json(tsr_text *text, const tsr_pair *pair);

/* "rows 128..255, columns 0..127" (", matrix 3" in a stack) into `text`, at least 192 bytes. Returns text. */
const char *tsr_tile_text(const tsr_tile_metrics *tile, const tsr_pair *pair, char *text, size_t size);

/* How many pairs are in each state; `counts` has TSR_PAIR_EXTRA + 1 elements. */
void tsr_count_states(const tsr_comparison *comparison, size_t *counts);

/* The sums over all pairs that differ. */
tsr_metrics tsr_sum_differing(const tsr_comparison *comparison);

#endif
