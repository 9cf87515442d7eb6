/* Collects issues. The same issue of repeated modules is stored once with a count. */
#include "formats/loaders/issues.h"

#include "common/grow.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Returns true if two names differ only in their numbers. */
static bool alike(const char *a, const char *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    for (;;) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            while (isdigit((unsigned char)*a))
                a++;
            while (isdigit((unsigned char)*b))
                b++;
        }
        if (*a != *b)
            return false;
        if (*a == '\0')
            return true;
        a++;
        b++;
    }
}

/* Returns the FNV-1a of the rule and of the name without its digits. */
static uint64_t kind_of(const tsr_issue *issue)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (const char *c = issue->rule; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    for (const char *c = issue->tensor; c != NULL && *c != '\0'; c++) {
        if (!isdigit((unsigned char)*c))
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
    }
    return hash;
}

static const char *copy(tsr_issues *f, const char *text)
{
    if (text == NULL)
        return NULL;
    const char *const made = tsr_arena_dup(&f->arena, text, strlen(text));
    f->failed = f->failed || made == NULL;
    return made;
}

void tsr_issues_add(tsr_issues *f, const tsr_issue *issue)
{
    const uint64_t kind = kind_of(issue);
    for (size_t i = 0; i < f->count; i++) {
        tsr_issue *const old = &f->items[i];
        if (old->kind == kind && old->fatal == issue->fatal && old->loader == issue->loader && old->tp == issue->tp &&
            strcmp(old->rule, issue->rule) == 0 && issue->tensor != NULL && alike(old->tensor, issue->tensor)) {
            old->more++;
            return;
        }
    }
    if (f->count == TSR_MAX_ISSUES) {
        f->omitted++;
        return;
    }
    if (!tsr_grow(&f->items, f->count, &f->capacity, sizeof *f->items)) {
        f->failed = true;
        return;
    }
    tsr_issue *const made = &f->items[f->count++];
    *made = *issue;
    made->kind = kind;
    made->tensor = copy(f, issue->tensor);
    made->detail = copy(f, issue->detail);
    made->advice = copy(f, issue->advice);
}

void tsr_issues_free(tsr_issues *f)
{
    free(f->items);
    tsr_arena_free(&f->arena);
    *f = (tsr_issues){0};
}

const tsr_issue *tsr_issues_first_fatal(const tsr_issues *issues, const char *loader)
{
    for (size_t i = 0; i < issues->count; i++) {
        if (issues->items[i].fatal && issues->items[i].loader != NULL && strcmp(issues->items[i].loader, loader) == 0)
            return &issues->items[i];
    }
    return NULL;
}

bool tsr_issues_any_fatal(const tsr_issues *f)
{
    if (f->omitted > 0)
        return true;
    for (size_t i = 0; i < f->count; i++) {
        if (f->items[i].fatal)
            return true;
    }
    return false;
}
