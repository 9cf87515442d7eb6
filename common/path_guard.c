/* Collects the inodes of all inputs, and compares outputs with them. */
#include "common/path_guard.h"

#include "common/file.h"
#include "common/grow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DEPTH = 64 };

static int by_inode(const void *a, const void *b)
{
    const tsr_identity *const x = a, *const y = b;
    if (x->ino != y->ino)
        return x->ino < y->ino ? -1 : 1;
    return x->dev < y->dev ? -1 : x->dev > y->dev;
}

static const tsr_identity *find(const tsr_identities *s, const struct stat *st)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->items[i].ino == st->st_ino && s->items[i].dev == st->st_dev)
            return &s->items[i];
    }
    return NULL;
}

static const tsr_identity *find_file(const tsr_identities *sorted, const struct stat *st)
{
    const tsr_identity key = {.dev = st->st_dev, .ino = st->st_ino};
    return sorted->count == 0 ? NULL : bsearch(&key, sorted->items, sorted->count, sizeof key, by_inode);
}

static tsr_status add(tsr_identities *s, const struct stat *st, const char *source, tsr_err *err)
{
    if (!tsr_grow(&s->items, s->count, &s->capacity, sizeof *s->items))
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", source);
    s->items[s->count++] = (tsr_identity){.dev = st->st_dev, .ino = st->st_ino, .source = source};
    return TSR_OK;
}

/* ---- walking folders ---- */

/* Returns true if the last stat failed since the path does not exist. Any other error must be reported. */
static bool is_absent(void)
{
    return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
}

static tsr_status cannot_look(tsr_err *err, const char *path)
{
    return is_absent() ? TSR_OK : tsr_fail_errno(err, "%s: cannot access it", path);
}

/* Calls `visit` for every entry of a folder. Skips subfolders that this user may not list: no output can be written
 * there. */
static tsr_status each_entry(const char *folder,
                             tsr_status (*visit)(const char *path, int depth, void *data, tsr_err *err), int depth,
                             void *data, tsr_err *err)
{
    if (depth > MAX_DEPTH)
        return TSR_OK;
    DIR *const dir = opendir(folder);
    if (dir == NULL)
        return errno == EACCES && depth > 0 ? TSR_OK : cannot_look(err, folder);
    const struct dirent *entry;
    tsr_status status;
    while ((status = tsr_next_entry(dir, folder, &entry, err)) == TSR_OK && entry != NULL) {
        char *path;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (asprintf(&path, "%s/%s", folder, entry->d_name) < 0) {
            status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", folder);
            break;
        }
        status = visit(path, depth, data, err);
        free(path);
        if (status != TSR_OK)
            break;
    }
    closedir(dir);
    return status;
}

/* Adds the folder of `path` and all folders above it. */
static tsr_status add_above(tsr_identities *above, const char *path, const char *source, tsr_err *err)
{
    char real[PATH_MAX];
    if (realpath(path, real) == NULL)
        return cannot_look(err, path);
    struct stat st, last = {0};
    int fd = tsr_open(dirname(real), O_PATH | O_DIRECTORY);
    tsr_status status = TSR_OK;
    while (status == TSR_OK) {
        if (fd < 0 || fstat(fd, &st) != 0)
            status = tsr_fail_errno(err, "%s: cannot read the directories above it", path);
        else if (st.st_ino == last.st_ino && st.st_dev == last.st_dev)
            break;
        else
            status = add(above, &st, source, err);
        if (status != TSR_OK)
            break;
        int up;
        do
            up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        while (up < 0 && errno == EINTR);
        close(fd);
        fd = up;
        last = st;
    }
    if (fd >= 0)
        close(fd);
    return status;
}

typedef struct gathering {
    tsr_path_guard *to;
    const char *source;
} gathering;

static tsr_status gather(const char *path, int depth, void *data, tsr_err *err)
{
    const gathering *const g = data;
    struct stat st, link;
    char real[PATH_MAX];
    if (stat(path, &st) != 0 || lstat(path, &link) != 0)
        return cannot_look(err, path);
    if (!S_ISDIR(st.st_mode))
        TSR_TRY(add(&g->to->files, &st, g->source, err));
    /* In the cache of the Hugging Face hub, snapshots link to files in the folder `blobs`. */
    const bool linked = S_ISREG(st.st_mode) && S_ISLNK(link.st_mode) && depth > 0;
    if (linked && realpath(path, real) == NULL)
        return cannot_look(err, path);
    if (linked && strcmp(basename(dirname(real)), "blobs") == 0 && stat(real, &st) == 0 &&
        find(&g->to->folders, &st) == NULL)
        return add(&g->to->folders, &st, g->source, err);
    if (!S_ISDIR(st.st_mode) || find(&g->to->folders, &st) != NULL)
        return TSR_OK;
    TSR_TRY(add(&g->to->folders, &st, g->source, err));
    return each_entry(path, gather, depth + 1, data, err);
}

tsr_status tsr_path_guard_read(tsr_path_guard *guard, const char *const *sources, size_t n, tsr_err *err)
{
    for (size_t i = 0; i < n; i++) {
        gathering g = {.to = guard, .source = sources[i]};
        if (sources[i] == NULL)
            continue;
        TSR_TRY(gather(sources[i], 0, &g, err));
        TSR_TRY(add_above(&guard->above, sources[i], sources[i], err));
    }
    if (guard->files.count > 0)
        qsort(guard->files.items, guard->files.count, sizeof *guard->files.items, by_inode);
    return TSR_OK;
}

tsr_status tsr_path_guard_add_folder(tsr_path_guard *guard, const char *folder, const struct stat *st, tsr_err *err)
{
    return add(&guard->folders, st, folder, err);
}

void tsr_path_guard_free(tsr_path_guard *guard)
{
    free(guard->files.items);
    free(guard->folders.items);
    free(guard->above.items);
    *guard = (tsr_path_guard){0};
}

/* ---- the output directory ---- */

tsr_status tsr_path_guard_resolve(const char *path, char existing[PATH_MAX], size_t *missing, tsr_err *err)
{
    struct stat st;
    /* "/" ends in a slash; every other prefix gets one before the next name. */
    snprintf(existing, PATH_MAX, "%s", path[0] == '/' ? "/" : ".");
    size_t n = path[0] == '/' ? 0 : 1;
    *missing = 0;
    for (const char *p = path; *p != '\0';) {
        p += strspn(p, "/");
        const size_t length = strcspn(p, "/");
        const bool here = length == 0 || (length == 1 && *p == '.'), up = length == 2 && memcmp(p, "..", 2) == 0;
        if (*missing > 0 && !here) {
            *missing = up ? *missing - 1 : *missing + 1;
        } else if (!here) {
            if (n + length + 2 > PATH_MAX)
                return tsr_fail(err, TSR_E_USAGE, "%s: the path is too long", path);
            snprintf(existing + n, PATH_MAX - n, "/%.*s", (int)length, p);
            /* Another shard of the same job may create it between the two calls. If only lstat finds it, it exists,
             * unless it is a dangling link. */
            const bool reached = stat(existing, &st) == 0, found = reached || lstat(existing, &st) == 0;
            if (found && !reached && S_ISLNK(st.st_mode))
                return tsr_fail(err, TSR_E_USAGE, "%s: dangling symlink", existing);
            if (found) {
                n += length + 1;
            } else {
                if (errno != ENOENT)
                    return tsr_fail_errno(err, "%.*s", (int)(p + length - path), path);
                existing[n > 0 ? n : 1] = '\0';
                *missing = 1;
            }
        }
        p += length;
    }
    return TSR_OK;
}

static tsr_status refuse_nested(const char *output, const char *source, const char *how, tsr_err *err)
{
    if (strcmp(output, source) == 0 && strcmp(how, "lies in") == 0)
        return tsr_fail(err, TSR_E_USAGE, "%s: the output is the same path as an input; choose another path", output);
    return tsr_fail(err, TSR_E_USAGE, "%s %s %s, which is an input; choose another path", output, how, source);
}

tsr_status tsr_path_guard_check_file(const tsr_path_guard *s, const char *output, const struct stat *st, tsr_err *err)
{
    const tsr_identity *const file = find_file(&s->files, st);
    return file == NULL ? TSR_OK : refuse_nested(output, file->source, "is a file of", err);
}

typedef struct holding {
    const tsr_path_guard *s;
    const char *own; /* see tsr_path_guard_check_directory; NULL: the output has no such folder */
} holding;

/* Refuses an entry of an output folder that is a file or folder of a source, or links to one. */
static tsr_status check_held(const char *path, int depth, void *data, tsr_err *err)
{
    const holding *h = data;
    const tsr_path_guard *const s = h->s;
    const holding all = {.s = s};
    struct stat st, link;
    if (depth == 0 && h->own != NULL && strcmp(strrchr(path, '/') + 1, h->own) == 0)
        h = &all;
    if (stat(path, &st) != 0 || lstat(path, &link) != 0)
        return cannot_look(err, path);
    const tsr_identity *const found = S_ISDIR(st.st_mode) ? find(&s->folders, &st) : find_file(&s->files, &st);
    if (found != NULL && (h->own == NULL || !S_ISREG(link.st_mode)))
        return refuse_nested(path, found->source, S_ISDIR(st.st_mode) ? "is a folder of" : "is a file of", err);
    return S_ISDIR(link.st_mode) ? each_entry(path, check_held, depth + 1, (void *)h, err) : TSR_OK;
}

tsr_status tsr_path_guard_check_outside(const tsr_path_guard *s, const char *output, const char *folder, tsr_err *err)
{
    char inside[PATH_MAX + 2];
    struct stat st;
    tsr_identities up = {0};
    snprintf(inside, sizeof inside, "%s/.", folder);
    if (stat(folder, &st) != 0)
        return tsr_fail_errno(err, "%s", folder);
    /* add_above() starts at the parent of its path: "folder/." makes it start at the parent of `folder`. */
    tsr_status status = add(&up, &st, output, err);
    if (status == TSR_OK)
        status = add_above(&up, inside, output, err);
    for (size_t i = 0; status == TSR_OK && i < up.count; i++) {
        const struct stat at = {.st_dev = up.items[i].dev, .st_ino = up.items[i].ino};
        const tsr_identity *const found = find(&s->folders, &at);
        if (found != NULL)
            status = refuse_nested(output, found->source, "lies in", err);
    }
    free(up.items);
    return status;
}

tsr_status tsr_path_guard_check_directory(const tsr_path_guard *s, const char *dst, const char *own, tsr_err *err)
{
    char existing[PATH_MAX], inside[PATH_MAX + 64];
    size_t missing;
    struct stat st;
    TSR_TRY(tsr_path_guard_resolve(dst, existing, &missing, err));
    if (stat(existing, &st) != 0)
        return tsr_fail_errno(err, "%s", existing);
    TSR_TRY(tsr_path_guard_check_file(s, dst, &st, err));
    TSR_TRY(tsr_path_guard_check_outside(s, dst, existing, err));
    if (missing > 0)
        return TSR_OK;
    const tsr_identity *const below = find(&s->above, &st);
    if (below != NULL)
        return refuse_nested(dst, below->source, "holds", err);
    snprintf(inside, sizeof inside, "%s/%s", existing, own);
    holding h = {.s = s, .own = lstat(inside, &st) == 0 && S_ISDIR(st.st_mode) ? own : NULL};
    return each_entry(existing, check_held, 0, &h, err);
}
