/* Makes test cases for CI, each with a name, an outcome and a fault.
 *
 * JUnit, Markdown and JSON have the same cases. In a result with checks over many tensors, a case is one check of
 * one layer, so that a dashboard shows which layer failed which check. In a result with judgements, such as those of
 * kernels, each judgement is a case. */
#pragma once

#include "report/read/baseline.h"

typedef struct tsr_case {
    const char *class_name; /* "verify weights.values" */
    const char *name;       /* "model.layers.3" */
    tsr_outcome outcome;    /* passed, failed or skipped */
    const char *message;    /* reason of a failure or skip, one line; NULL: passed */
    const char *text;       /* a line per finding: tensor, block, figures and limits; NULL: none */
    double seconds;         /* 0: unknown */
    bool error;             /* the command ended with an error before it could judge */
} tsr_case;

typedef struct tsr_cases {
    tsr_case *items;
    size_t count, capacity;
    size_t failed, skipped, errors; /* failed excludes errors */
    tsr_arena arena;
} tsr_cases;

/* Makes the cases of one result, at least one. After a failure there is nothing to free. */
tsr_status tsr_cases_make(tsr_cases *cases, const tsr_overview *overview, tsr_err *err);

/* Makes the cases of a comparison with an earlier result: one per layer, and one for the whole. */
tsr_status tsr_cases_of_baseline(tsr_cases *cases, const tsr_baseline *baseline, const tsr_overview *overview,
                                 tsr_err *err);

void tsr_cases_free(tsr_cases *cases);
