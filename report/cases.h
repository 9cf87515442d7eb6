/* What CI counts: cases, each with a name, an outcome, and what is wrong. JUnit, Markdown and JSON tell the same ones.
 *
 * Where a result has checks over many tensors, a case is a check of a group of tensors (a layer), so that a dashboard shows
 * which layer fell short in which respect. Where it has judgements, such as those of kernels, each is a case. */
#ifndef TSR_REPORT_CASES_H
#define TSR_REPORT_CASES_H

#include "report/baseline.h"

typedef struct tsr_case {
    const char *class_name; /* "verify weights.values" */
    const char *name;       /* "model.layers.3" */
    tsr_outcome outcome;    /* passed, failed or skipped */
    const char *message;    /* of what failed or was skipped, one line; NULL: passed */
    const char *text;       /* of what failed: tensor, block, figures and limits, a line for each finding; NULL: none */
    double seconds;         /* 0: not known */
    bool error;             /* failed because the command ended before it could judge */
} tsr_case;

typedef struct tsr_cases {
    tsr_case *items;
    size_t count, capacity;
    size_t failed, skipped, errors; /* errors are not among what failed */
    tsr_arena arena;
} tsr_cases;

/* The cases of one result, which is never without any. After a failure there is nothing to free. */
tsr_status tsr_cases_make(tsr_cases *cases, const tsr_overview *overview, tsr_err *err) TSR_WARN_UNUSED;

/* The cases of a comparison with an earlier result: one for each layer, and one for the whole. */
tsr_status tsr_cases_of_baseline(tsr_cases *cases, const tsr_baseline *baseline, const tsr_overview *overview,
                                 tsr_err *err) TSR_WARN_UNUSED;

/* Appends one; what it points to has to live as long. */
tsr_status tsr_cases_add(tsr_cases *cases, const tsr_case *more, tsr_err *err) TSR_WARN_UNUSED;

void tsr_cases_free(tsr_cases *cases);

/* "limits: min_sqnr_db 30, ...", for the text of what failed; "" where there are none. In the arena; NULL: no memory. */
const char *tsr_limits_text(const tsr_result *result, tsr_arena *arena);

#endif
