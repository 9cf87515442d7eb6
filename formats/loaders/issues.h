/* What was found wrong with a checkpoint, one line a fact: which tensor breaks which rule, by which numbers, and what
 * would help. A rule that is broken by the same module of every layer or expert is one issue with a count. */
#ifndef TSR_FORMATS_LOADERS_ISSUES_H
#define TSR_FORMATS_LOADERS_ISSUES_H

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_issue {
    bool fatal;         /* false: a warning */
    const char *loader; /* static; NULL: whoever reads it */
    const char
        *checked;       /* static: the version of the loader that the rule was checked against; NULL without a loader */
    unsigned tp;        /* 0: at any tensor-parallel size */
    const char *tensor; /* the first that breaks the rule; NULL: config.json or the index does */
    const char *rule;   /* static, one or two words: "pairing", "blocks" */
    const char *detail, *advice;
    uint64_t more; /* other tensors of the same name but for its numbers */
} tsr_issue;

/* More than anybody reads; what a file made to annoy gives cause for is only counted. */
enum { TSR_MAX_ISSUES = 4096 };

/* Zero-initialised is empty. Not thread-safe. */
typedef struct tsr_issues {
    tsr_issue *items;
    size_t count, capacity;
    size_t omitted; /* beyond TSR_MAX_ISSUES */
    tsr_arena arena;
    bool failed; /* out of memory: some are missing */
} tsr_issues;

/* Adds `issue`, all but loader and rule copied, or counts it where there is one of the same loader, tp and rule for
 * the same module of another layer or expert. Cannot fail visibly: whoever shows the issues looks at `failed`. */
void tsr_issues_add(tsr_issues *issues, const tsr_issue *issue);

void tsr_issues_free(tsr_issues *issues);

/* Whether one of them is fatal, or may be. */
bool tsr_issues_any_fatal(const tsr_issues *issues);

#endif
