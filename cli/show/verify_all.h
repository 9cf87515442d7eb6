/* Runs all kinds of verify that apply to a checkpoint, and prints one verdict. */
#pragma once

#include "cli/command.h"
#include "report/report.h"

typedef enum tsr_kind_status {
    TSR_KIND_PASSED,
    TSR_KIND_FAILED,         /* a value is beyond its limits */
    TSR_KIND_ERROR,          /* it applies but could not run, so nothing is known */
    TSR_KIND_NOT_APPLICABLE, /* the checkpoint has nothing for it, or it was skipped by an option */
} tsr_kind_status;

/* A kind of check and its outcome. */
typedef struct tsr_kind_run {
    const char *name;            /* "gemm" */
    tsr_command_context context; /* invocation of its command; closed after the run */
    bool open, skipped;          /* the context is open; --skip names the kind */

    tsr_kind_status status;
    tsr_status ended;
    tsr_err why; /* reason of an error, or why it does not apply */
    double seconds;
    tsr_text judged; /* "34 tensors" */
    tsr_text json;   /* its own result, without a line end; empty if it does not apply */
} tsr_kind_run;

enum { TSR_MAX_KINDS = 8 };

typedef struct tsr_verify_all {
    const char *dst, *against, *device;
    tsr_kind_run runs[TSR_MAX_KINDS];
    size_t count;
    double seconds;
} tsr_verify_all;

/* Runs all kinds, even if some fail. TSR_E_USAGE: the options are invalid for the checkpoint. TSR_E_NOT_APPLICABLE: no
 * kind could run. */
tsr_status tsr_verify_all_run(tsr_verify_all *all, tsr_terminal *terminal, tsr_err *err);

/* Returns the first run with the most severe exit code, in the order of tsr_graver_code. */
const tsr_kind_run *tsr_verify_all_gravest(const tsr_verify_all *all);

/* Returns the exit code of a run; 0 if it does not apply. */
int tsr_kind_exit_code(const tsr_kind_run *run);

/* Appends the members of the result, including the result of each kind. */
void tsr_verify_all_json(tsr_text *text, const tsr_verify_all *all);

/* Prints a table of the kinds, then the failures, from `report`, the results of the kinds. */
tsr_status tsr_verify_all_print(const tsr_verify_all *all, const tsr_report *report, tsr_err *err);

void tsr_verify_all_free(tsr_verify_all *all);
