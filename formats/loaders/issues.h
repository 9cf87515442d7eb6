/* A list of problems of a checkpoint: the tensor, the broken rule with its numbers, and the remedy. If the same module
 * of every layer or expert breaks a rule, it is one issue with a count. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_issue {
    bool fatal;          /* false: a warning */
    const char *loader;  /* static; NULL: all loaders */
    const char *checked; /* static: the loader version that the rule was checked against; NULL without a loader */
    unsigned tp;         /* 0: at any tensor-parallel size */
    const char *tensor;  /* the first tensor that breaks the rule; NULL: config.json or the index does */
    const char *rule;    /* static, one or two words: "pairing", "blocks" */
    const char *detail, *advice;
    uint64_t more; /* number of further tensors that break it whose names differ only in numbers */
    uint64_t kind; /* hash set by tsr_issues_add: equal for issues that are counted as one, rarely for others */
} tsr_issue;

/* Limit of listed issues. A hostile file may cause more; those are only counted. */
enum { TSR_MAX_ISSUES = 4096 };

/* A zero-initialized list is empty. Not thread-safe. */
typedef struct tsr_issues {
    tsr_issue *items;
    size_t count, capacity;
    size_t omitted; /* beyond TSR_MAX_ISSUES */
    tsr_arena arena;
    bool failed; /* out of memory: some issues are missing */
} tsr_issues;

/* Adds `issue` and copies its texts, except loader and rule. If the list has an issue with the same loader, tp and rule
 * for the same module of another layer or expert, only increments its count. Errors are recorded in `failed`, which
 * must be checked before the issues are shown. */
void tsr_issues_add(tsr_issues *issues, const tsr_issue *issue);

void tsr_issues_free(tsr_issues *issues);

/* Returns the first fatal issue of this loader, or NULL. */
const tsr_issue *tsr_issues_first_fatal(const tsr_issues *issues, const char *loader);

/* Returns true if an issue is fatal, or an omitted one may be. */
bool tsr_issues_any_fatal(const tsr_issues *issues);
