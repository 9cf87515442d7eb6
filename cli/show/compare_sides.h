/* Opens and compares two checkpoints, and writes the result as JSON: for diff and verify. */
#pragma once

#include "cli/command.h"
#include "formats/checkpoint/rank_file.h"
#include "report/model/result.h"
#include "verify/compare/compare.h"

/* The common options of such commands. */
enum { TSR_COMPARE_TAKES = TSR_TAKES_SOURCE_BLOCK | TSR_TAKES_THREADS | TSR_TAKES_MEMORY | TSR_TAKES_PROGRESS };

typedef struct tsr_compare_job {
    const char *path[2]; /* a, b */
    tsr_list tensors;

    /* Set by tsr_compare_job_open; the comparison by tsr_compare_job_run. */
    tsr_checkpoint *checkpoint[2];
    tsr_weights weights[2];
    tsr_comparison comparison;
    tsr_rank_file manifest[2];
    tsr_arena arena; /* memory of the manifests */
} tsr_compare_job;

/* Appends the options that such commands share. */
void tsr_compare_job_options(tsr_compare_job *job, tsr_option *options);

/* Opens both sides, and pairs their scales. */
tsr_status tsr_compare_job_open(tsr_compare_job *job, const tsr_command_context *context, tsr_err *err);

/* Compares them, and shows progress on the terminal. */
tsr_status tsr_compare_job_run(tsr_compare_job *job, const tsr_command_context *context, tsr_terminal *terminal,
                               tsr_err *err);

void tsr_compare_job_close(tsr_compare_job *job);

/* Returns "identical", "equal", "differs", "misshaped", "missing" or "extra". */
const char *tsr_pair_state_name(tsr_pair_state state);

/* Writes members of the open JSON object: name, state, dtypes and shapes of both sides. If values differ, also the
 * metrics, the position of the largest error, and the worst blocks. */
void tsr_pair_json(tsr_text *text, const tsr_pair *pair);

/* Adds a row for a pair, without an outcome. The name is borrowed. */
tsr_status tsr_compare_fill_row(tsr_result *result, const tsr_pair *pair, tsr_row **row, tsr_err *err);

/* Begins a result of this schema: sets its kind, and the whole to the sums over all pairs that differ. */
tsr_status tsr_compare_begin_result(tsr_result *result, const char *schema, const tsr_comparison *comparison,
                                    tsr_err *err);
