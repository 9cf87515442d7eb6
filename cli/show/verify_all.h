/* Runs all kinds of verify that apply to a checkpoint, and prints one verdict. */
#ifndef TSR_CLI_SHOW_VERIFY_ALL_H
#define TSR_CLI_SHOW_VERIFY_ALL_H

#include "cli/command.h"

typedef enum tsr_kind_status {
    TSR_KIND_PASSED,
    TSR_KIND_FAILED,         /* something is beyond its limits */
    TSR_KIND_ERROR,          /* it applies, and could not be carried out: nothing is known */
    TSR_KIND_NOT_APPLICABLE, /* the checkpoint has nothing for it, or it was left out on purpose */
} tsr_kind_status;

/* A kind, and its outcome. */
typedef struct tsr_kind_run {
    const char *name;            /* "gemm" */
    tsr_command_context context; /* invocation of its command; closed once it has run */
    bool open, skipped;          /* the context is open; --skip names the kind */

    tsr_kind_status status;
    tsr_status ended;
    tsr_err why; /* of an error, and of what does not apply */
    double seconds;
    tsr_text judged; /* "34 tensors" */
    tsr_text json;   /* its own result, without a line end; empty where it does not apply */
} tsr_kind_run;

enum { TSR_MAX_KINDS = 8 };

typedef struct tsr_verify_all {
    const char *dst, *against, *device;
    tsr_kind_run runs[TSR_MAX_KINDS];
    size_t count;
    double seconds;
} tsr_verify_all;

/* Carries out all runs, even if some fail. TSR_E_USAGE: the options make no sense with the checkpoint.
 * TSR_E_NOT_APPLICABLE: not a single kind was carried out. */
tsr_status tsr_verify_all_run(tsr_verify_all *all, tsr_terminal *terminal, tsr_err *err) TSR_WARN_UNUSED;

/* Returns the first of the runs with the gravest exit code, in the order of tsr_graver_code. */
const tsr_kind_run *tsr_verify_all_gravest(const tsr_verify_all *all);

/* Returns the exit code of a run; 0 if it does not apply. */
int tsr_kind_exit_code(const tsr_kind_run *run);

/* Appends the result as JSON, with the result of each kind in it. */
void tsr_verify_all_json(tsr_text *text, const tsr_verify_all *all);

/* Prints a table of the kinds, then the failures, from `json`, the result. */
tsr_status tsr_verify_all_print(const tsr_verify_all *all, const tsr_text *json, tsr_err *err) TSR_WARN_UNUSED;

void tsr_verify_all_free(tsr_verify_all *all);

#endif
