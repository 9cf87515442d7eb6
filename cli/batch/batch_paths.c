/* Compares inputs and outputs of the jobs of a batch: by path, because most files do not exist yet, and by inode if
 * they exist. */
#include "cli/batch/batch.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Removes the last component of `path`. Returns false if there is none. `name` points to it, within the buffer. */
static bool take_name(char *path, char **name)
{
    char *const slash = strrchr(path, '/');
    if (slash == NULL || path[1] == '\0')
        return false;
    *name = slash + 1;
    memmove(slash + 2, slash + 1, strlen(slash + 1) + 1); /* so that "/" remains of "/name" */
    *name += 1;
    slash[slash == path] = '\0';
    return true;
}

/* Resolves a path without links and dots, as far as it exists. In the rest, ".." removes the folder before it, as in
 * tsr_io_paths_check. A path with a broken prefix stays unchanged. Returns false, with errno, if a system call
 * fails. */
static bool resolve(const char *path, char real[PATH_MAX])
{
    char head[PATH_MAX + 4], rest[PATH_MAX] = "", longer[PATH_MAX], *name;
    size_t ups = 0;
    errno = ENAMETOOLONG;
    if (strlen(path) >= PATH_MAX)
        return false;
    strcpy(real, path);
    if (path[0] == '\0')
        return true;
    snprintf(head, sizeof head, "%s%s", path[0] == '/' ? "" : "./", path);
    while (realpath(head, real) == NULL) {
        if (errno != ENOENT && errno != ENOTDIR)
            return false;
        if (!take_name(head, &name))
            return strcpy(real, path) != NULL; /* the current folder has been deleted */
        if (strcmp(name, "..") == 0)
            ups++;
        else if (*name == '\0' || strcmp(name, ".") == 0)
            continue;
        else if (ups > 0)
            ups--;
        else if (snprintf(longer, sizeof longer, "/%s%s", name, rest) < (int)sizeof longer)
            strcpy(rest, longer);
        else
            return errno = ENAMETOOLONG, false;
    }
    while (ups-- > 0 && take_name(real, &name))
        continue;
    const size_t n = strcmp(real, "/") == 0 ? 0 : strlen(real);
    errno = ENAMETOOLONG;
    return n + strlen(rest) < PATH_MAX && strcpy(real + n, rest) != NULL;
}

/* Returns true if `inner` is `outer` or lies in it. Both are resolved. */
static bool is_within(const char *inner, const char *outer)
{
    const size_t n = strlen(outer);
    return strncmp(inner, outer, n) == 0 && (inner[n] == '\0' || inner[n] == '/');
}

/* Returns true if writing to a path does not replace a file: /dev/null, a pipe. Many jobs may write to it. */
static bool is_stream(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

typedef struct place {
    size_t job;
    const tsr_batch_path *of;
    char *real; /* in the batch's arena */
} place;

typedef struct places {
    place *reads, *writes;
    size_t n_reads, n_writes;
} places;

static tsr_status gather(tsr_batch *batch, places *all, tsr_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i <= batch->n_jobs; i++)
        n += batch->jobs[i].n_paths;
    all->reads = tsr_arena_alloc(&batch->arena, (n + 1) * sizeof *all->reads);
    all->writes = tsr_arena_alloc(&batch->arena, (n + 1) * sizeof *all->writes);
    if (all->reads == NULL || all->writes == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i <= batch->n_jobs; i++) {
        const tsr_batch_job *const s = &batch->jobs[i];
        for (size_t k = 0; k < s->n_paths; k++) {
            char real[PATH_MAX];
            const bool writes = s->paths[k].option != NULL;
            if (!resolve(s->paths[k].path, real))
                return tsr_batch_blame(batch, &batch->jobs[i],
                                       tsr_fail_errno(err, "%s: cannot access it", s->paths[k].path), err);
            const place p = {.job = i, .of = &s->paths[k], .real = tsr_arena_dup(&batch->arena, real, strlen(real))};
            if (p.real == NULL)
                return tsr_out_of_memory(err, NULL);
            if (writes && is_stream(p.of->path))
                continue;
            if (writes)
                all->writes[all->n_writes++] = p;
            else
                all->reads[all->n_reads++] = p;
        }
    }
    return TSR_OK;
}

static tsr_status check_writers(tsr_batch *batch, const place *a, const place *b, tsr_err *err)
{
    const bool same = strcmp(a->real, b->real) == 0, inner = b->of->folder && is_within(a->real, b->real),
               outer = a->of->folder && is_within(b->real, a->real);
    if (a->job == b->job || !(same || inner || outer))
        return TSR_OK;
    const tsr_batch_job *const first = &batch->jobs[a->job], *const second = &batch->jobs[b->job];
    const tsr_status status =
        tsr_fail(err, TSR_E_USAGE, "%s %s %s %s of job '%s' in line %zu; give each output its own path", b->of->option,
                 b->of->path,
                 same    ? "is"
                 : inner ? "holds"
                         : "lies in",
                 a->of->option, first->name, first->line);
    return tsr_batch_blame(batch, second, status, err);
}

/* Checks that job b->job may read path b, which job a->job writes as path a, and records the dependency. */
static tsr_status check_reader(tsr_batch *batch, const place *a, const place *b, tsr_err *err)
{
    tsr_batch_job *const writer = &batch->jobs[a->job], *const reader = &batch->jobs[b->job];
    if (a->job == b->job || !is_within(b->real, a->real))
        return TSR_OK;
    if (a->job < b->job && b->job < batch->n_jobs) {
        reader->dependent = reader->after[a->job] = true;
        return TSR_OK;
    }
    const tsr_status status = tsr_fail(
        err, TSR_E_USAGE, "it reads %s, which the later job '%s' in line %zu writes%s", b->of->path, writer->name,
        writer->line,
        a->job < batch->n_jobs && b->job < batch->n_jobs ? ": jobs run in their order, so put that job first" : "");
    return tsr_batch_blame(batch, reader, status, err);
}

/* Compares the outputs of a job with the inputs of all other jobs by inode, except jobs that are known to depend on
 * it. */
static tsr_status check_inodes(tsr_batch *batch, const places *all, size_t job, tsr_err *err)
{
    tsr_io_paths p = {.promised = batch->results};
    tsr_pending_reports unused;
    size_t n = 0, reports = 0;
    for (size_t i = 0; i < all->n_writes; i++) {
        const place *const w = &all->writes[i];
        if (w->job == job && w->of->folder)
            p.dst = w->of->path;
        else if (w->job == job && reports + 1 < sizeof p.more / sizeof *p.more)
            p.more[reports++] = (tsr_output){w->of->option, w->of->path, w->of->tensors};
    }
    for (size_t i = 0; i < all->n_reads; i++) {
        const place *const r = &all->reads[i];
        bool known = r->job == job || batch->jobs[r->job].after[job];
        for (size_t k = 0; k < i && !known; k++)
            known = strcmp(all->reads[k].real, r->real) == 0 && all->reads[k].job != job &&
                    !batch->jobs[all->reads[k].job].after[job];
        if (!known)
            p.sources[n++] = r->of->path;
        if (n == TSR_MAX_SOURCES || i + 1 == all->n_reads) {
            TSR_TRY(tsr_io_paths_check(&p, &unused, err));
            memset(p.sources, 0, sizeof p.sources);
            n = 0;
        }
    }
    return TSR_OK;
}

tsr_status tsr_batch_relate(tsr_batch *batch, tsr_err *err)
{
    places all = {0};
    for (size_t i = 0; i <= batch->n_jobs; i++) {
        batch->jobs[i].after = tsr_arena_alloc(&batch->arena, batch->n_jobs * sizeof(bool));
        if (batch->jobs[i].after == NULL)
            return tsr_out_of_memory(err, NULL);
        memset(batch->jobs[i].after, 0, batch->n_jobs * sizeof(bool));
    }
    TSR_TRY(gather(batch, &all, err));
    for (size_t i = 0; i < all.n_writes; i++) {
        for (size_t k = 0; k < i; k++)
            TSR_TRY(check_writers(batch, &all.writes[k], &all.writes[i], err));
        for (size_t k = 0; k < all.n_reads; k++)
            TSR_TRY(check_reader(batch, &all.writes[i], &all.reads[k], err));
    }
    for (size_t i = 0; i <= batch->n_jobs; i++) {
        const tsr_status status = check_inodes(batch, &all, i, err);
        if (status != TSR_OK)
            return tsr_batch_blame(batch, &batch->jobs[i], status, err);
    }
    return TSR_OK;
}
