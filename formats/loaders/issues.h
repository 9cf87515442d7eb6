/* A list of what is wrong with a checkpoint: which tensor breaks which rule, with the numbers, and what would help. A
 * rule that the same module of every layer or expert breaks is one issue with a count. */
#ifndef TSR_FORMATS_LOADERS_ISSUES_H
#define TSR_FORMATS_LOADERS_ISSUES_H

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_issue {
    bool fatal;         /* false: a warning */
    const char *loader; /* static; NULL: every loader */
    const char
        *checked;       /* static: the version of the loader that the rule was checked against; NULL without a loader */
    unsigned tp;        /* 0: at any tensor-parallel size */
    const char *tensor; /* the first that breaks the rule; NULL: config.json or the index does */
    const char *rule;   /* static, one or two words: "pairing", "blocks" */
    const char *detail, *advice;
    uint64_t more; /* how many more tensors break it whose names differ in numbers only */
    uint64_t kind; /* set by tsr_issues_add: the same for issues that are counted as one, and seldom for others */
} tsr_issue;

/* More issues than anybody reads. A hostile file may cause more; those are only counted. */
enum { TSR_MAX_ISSUES = 4096 };

/* Zero-initialised is empty. Not thread-safe. */
typedef struct tsr_issues {
    tsr_issue *items;
    size_t count, capacity;
    size_t omitted; /* beyond TSR_MAX_ISSUES */
    tsr_arena arena;
    bool failed; /* out of memory: some are missing */
} tsr_issues;

/* Adds `issue` and copies its texts, except loader and rule. If the list has an issue of the same loader, tp and rule
 * for the same module of another layer or expert, that one's count goes up instead. Returns no error: the code that
 * shows the issues looks at `failed`. */
void tsr_issues_add(tsr_issues *issues, const tsr_issue *issue);

void tsr_issues_free(tsr_issues *issues);

/* Returns true if an issue is fatal, or an omitted one may be. */
bool tsr_issues_any_fatal(const tsr_issues *issues);

#endif
