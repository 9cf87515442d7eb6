/* Collects the inodes of everything that is read, and compares outputs with them. */
#include "cli/places.h"

#include "cli/output.h"
#include "cli/stage.h"
#include "common/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 64, LOOKED_AT = 512, MAX_REPORTS = 8 };

typedef struct identity {
    dev_t dev;
    ino_t ino;
    const char *source; /* the path as the user gave it */
} identity;

typedef struct set {
    identity *items;
    size_t count, capacity;
} set;

typedef struct sources {
    set files, folders; /* of the sources themselves; files are sorted once complete */
    set above;          /* the folders that the sources lie in */
} sources;

static tsr_owed owed;

static int by_inode(const void *a, const void *b)
{
    const identity *const x = a, *const y = b;
    if (x->ino != y->ino)
        return x->ino < y->ino ? -1 : 1;
    return x->dev < y->dev ? -1 : x->dev > y->dev;
}

static const identity *find(const set *s, const struct stat *st)
{
    for (size_t i = 0; i < s->count; i++) {
        if (s->items[i].ino == st->st_ino && s->items[i].dev == st->st_dev)
            return &s->items[i];
    }
    return NULL;
}

static const identity *find_file(const set *sorted, const struct stat *st)
{
    const identity key = {.dev = st->st_dev, .ino = st->st_ino};
    return sorted->count == 0 ? NULL : bsearch(&key, sorted->items, sorted->count, sizeof key, by_inode);
}

static tsr_status add(set *s, const struct stat *st, const char *source, tsr_err *err)
{
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity == 0 ? 64 : 2 * s->capacity;
        identity *const items = realloc(s->items, capacity * sizeof *items);
        if (items == NULL)
            return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", source);
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->count++] = (identity){.dev = st->st_dev, .ino = st->st_ino, .source = source};
    return TSR_OK;
}

/* ---- going through folders ---- */

/* Calls `visit` for every entry of a folder. A folder that cannot be listed is passed over; opening it will fail later. */
static tsr_status each_entry(const char *folder,
                             tsr_status (*visit)(const char *path, int depth, void *data, tsr_err *err), int depth,
                             void *data, tsr_err *err)
{
    DIR *const dir = depth <= MAX_DEPTH ? opendir(folder) : NULL;
    const struct dirent *entry;
    tsr_status status = TSR_OK;
    while (dir != NULL && status == TSR_OK && (entry = readdir(dir)) != NULL) {
        char *path;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (asprintf(&path, "%s/%s", folder, entry->d_name) < 0) {
            status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", folder);
            break;
        }
        status = visit(path, depth, data, err);
        free(path);
    }
    if (dir != NULL)
        closedir(dir);
    return status;
}

/* Adds the folder of `path`, and all folders above it. */
static tsr_status add_above(set *above, const char *path, const char *source, tsr_err *err)
{
    char real[PATH_MAX];
    if (realpath(path, real) == NULL)
        return TSR_OK;
    struct stat st, last = {0};
    int fd = open(dirname(real), O_PATH | O_DIRECTORY | O_CLOEXEC);
    tsr_status status = TSR_OK;
    while (status == TSR_OK && fd >= 0 && fstat(fd, &st) == 0 &&
           (st.st_ino != last.st_ino || st.st_dev != last.st_dev)) {
        status = add(above, &st, source, err);
        const int up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
        close(fd);
        fd = up;
        last = st;
    }
    if (fd >= 0)
        close(fd);
    return status;
}

typedef struct gathering {
    sources *to;
    const char *source;
} gathering;

static tsr_status gather(const char *path, int depth, void *data, tsr_err *err)
{
    const gathering *const g = data;
    struct stat st, link;
    char real[PATH_MAX];
    if (stat(path, &st) != 0 || lstat(path, &link) != 0)
        return TSR_OK;
    if (!S_ISDIR(st.st_mode))
        TSR_TRY(add(&g->to->files, &st, g->source, err));
    /* In a hub's cache the files lie beside the folders that link to them. */
    if (S_ISREG(st.st_mode) && S_ISLNK(link.st_mode) && depth > 0 && realpath(path, real) != NULL &&
        strcmp(basename(dirname(real)), "blobs") == 0 && stat(real, &st) == 0 && find(&g->to->folders, &st) == NULL)
        return add(&g->to->folders, &st, g->source, err);
    if (!S_ISDIR(st.st_mode) || find(&g->to->folders, &st) != NULL)
        return TSR_OK;
    TSR_TRY(add(&g->to->folders, &st, g->source, err));
    return each_entry(path, gather, depth + 1, data, err);
}

/* ---- the output directory ---- */

/* Finds the deepest existing folder on the way to `path`, and how many folders have to be made below it. ".." undoes a
 * folder that has to be made, as it does for mkdir. */
static tsr_status resolve(const char *path, char existing[PATH_MAX], size_t *missing, tsr_err *err)
{
    struct stat st;
    size_t n = (size_t)snprintf(existing, PATH_MAX, "%s", path[0] == '/' ? "/" : ".");
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
            /* Another process may make it between two looks: what is no link is there. */
            if (stat(existing, &st) == 0 || (lstat(existing, &st) == 0 && !S_ISLNK(st.st_mode))) {
                n += length + 1;
            } else {
                const tsr_status failed = tsr_fail_errno(err, "%.*s", (int)(p + length - path), path);
                if (lstat(existing, &st) == 0)
                    return tsr_fail(err, TSR_E_USAGE, "%s: a link to nothing", existing);
                if (errno != ENOENT)
                    return failed;
                existing[n] = '\0';
                *missing = 1;
            }
        }
        p += length;
    }
    return TSR_OK;
}

static tsr_status refuse_nested(const char *output, const char *source, const char *how, tsr_err *err)
{
    return tsr_fail(err, TSR_E_USAGE, "%s %s %s, and what is read stays untouched: name another place", output, how,
                    source);
}

/* Fails for an entry of an output folder that leads into a source. */
static tsr_status check_held(const char *path, int depth, void *data, tsr_err *err)
{
    const sources *const s = data;
    struct stat st, link;
    if (stat(path, &st) != 0 || lstat(path, &link) != 0)
        return TSR_OK;
    const identity *const found = S_ISDIR(st.st_mode) ? find(&s->folders, &st) : find_file(&s->files, &st);
    if (found != NULL)
        return refuse_nested(path, found->source, S_ISDIR(st.st_mode) ? "is a folder of" : "is a file of", err);
    return S_ISDIR(link.st_mode) ? each_entry(path, check_held, depth + 1, data, err) : TSR_OK;
}

/* Fails if an existing folder, or one above it, belongs to a source. */
static tsr_status check_outside(const sources *s, const char *output, const char *folder, tsr_err *err)
{
    char inside[PATH_MAX + 2];
    struct stat st;
    set up = {0};
    snprintf(inside, sizeof inside, "%s/.", folder);
    if (stat(folder, &st) != 0)
        return tsr_fail_errno(err, "%s", folder);
    /* realpath() of "folder/." is the folder: add_above() begins a level higher. */
    tsr_status status = add(&up, &st, output, err);
    if (status == TSR_OK)
        status = add_above(&up, inside, output, err);
    for (size_t i = 0; status == TSR_OK && i < up.count; i++) {
        const struct stat at = {.st_dev = up.items[i].dev, .st_ino = up.items[i].ino};
        const identity *const found = find(&s->folders, &at);
        if (found != NULL)
            status = refuse_nested(output, found->source, "lies in", err);
    }
    free(up.items);
    return status;
}

static tsr_status check_directory(const sources *s, const char *dst, tsr_err *err)
{
    char existing[PATH_MAX];
    size_t missing;
    struct stat st;
    TSR_TRY(resolve(dst, existing, &missing, err));
    if (stat(existing, &st) != 0)
        return tsr_fail_errno(err, "%s", existing);
    const identity *const file = find_file(&s->files, &st);
    if (file != NULL)
        return refuse_nested(dst, file->source, "is a file of", err);
    TSR_TRY(check_outside(s, dst, existing, err));
    if (missing > 0)
        return TSR_OK;
    const identity *const below = find(&s->above, &st);
    if (below != NULL)
        return refuse_nested(dst, below->source, "holds", err);
    return each_entry(existing, check_held, 0, (void *)s, err);
}

/* ---- reports ---- */

static bool is_weights_name(const char *path)
{
    static const char *const kSuffixes[] = {".safetensors", ".safetensors.zst", ".gguf", ".bin", ".pt", ".pth"};
    const size_t n = strlen(path);
    for (size_t i = 0; i < sizeof kSuffixes / sizeof *kSuffixes; i++) {
        const size_t m = strlen(kSuffixes[i]);
        if (n >= m && strcmp(path + n - m, kSuffixes[i]) == 0)
            return true;
    }
    return false;
}

/* Whether a file has a NUL near its beginning: then it is not text, and so not an earlier report. */
static bool is_binary(const char *path)
{
    char bytes[LOOKED_AT];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd < 0 ? 0 : read(fd, bytes, sizeof bytes);
    if (fd >= 0)
        close(fd);
    return n > 0 && memchr(bytes, '\0', (size_t)n) != NULL;
}

/* The folder of a file that may not exist. */
static void folder_of(const char *path, char folder[PATH_MAX])
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    snprintf(folder, PATH_MAX, "%s", dirname(copy));
}

static tsr_status check_report(const sources *s, const char *option, const char *path, const char *dst, tsr_err *err)
{
    char real[PATH_MAX], folder[PATH_MAX], made[PATH_MAX];
    struct stat st;
    size_t missing;
    if (path == NULL || tsr_is_stdout(path))
        return TSR_OK;
    if (*path == '\0' || strlen(path) >= PATH_MAX)
        return tsr_fail(err, TSR_E_USAGE, "%s: that is no file name", option);
    const bool exists = stat(path, &st) == 0;
    if (!exists && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: a link to nothing", option, path);
    if (exists && S_ISDIR(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: a directory; name a file", option, path);
    if (exists && S_ISBLK(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: a block device; name a file", option, path);
    if (exists && !S_ISREG(st.st_mode))
        return TSR_OK; /* a terminal, /dev/null, a pipe: written to */
    const identity *const file = exists ? find_file(&s->files, &st) : NULL;
    if (file != NULL)
        return refuse_nested(path, file->source, "is a file of", err);
    if (is_weights_name(path) || (exists && is_binary(path)))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: %s; name another file", option, path,
                        is_weights_name(path) ? "a name that weights have" : "it exists, and is no text");
    folder_of(exists && realpath(path, real) != NULL ? real : path, folder);
    if (stat(folder, &st) != 0)
        return tsr_fail_errno(err, "%s %s: cannot write into the folder %s", option, path, folder);
    TSR_TRY(check_outside(s, path, folder, err));
    if (dst == NULL)
        return TSR_OK;
    /* A report inside the output directory would be taken for a part of the model. */
    if (resolve(dst, made, &missing, NULL) != TSR_OK || missing > 0 || stat(made, &st) != 0)
        return TSR_OK;
    sources output = {0};
    tsr_status status = add(&output.folders, &st, dst, err);
    if (status == TSR_OK && check_outside(&output, path, folder, NULL) == TSR_E_USAGE)
        status = tsr_fail(err, TSR_E_USAGE, "%s %s: reports lie beside %s, not in it", option, path, dst);
    free(output.folders.items);
    return status;
}

/* Whether two reports would become one file. */
static bool is_same_report(const char *a, const char *b)
{
    struct stat x, y;
    char folder[PATH_MAX], name[PATH_MAX], other[PATH_MAX];
    if (a == NULL || b == NULL)
        return false;
    if (stat(a, &x) == 0 && stat(b, &y) == 0)
        return S_ISREG(x.st_mode) && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
    snprintf(name, sizeof name, "%s", a);
    snprintf(other, sizeof other, "%s", b);
    if (strcmp(basename(name), basename(other)) != 0)
        return false;
    folder_of(a, folder);
    folder_of(b, other);
    return stat(folder, &x) == 0 && stat(other, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static tsr_status check_all(const tsr_places *p, tsr_err *err)
{
    sources s = {0};
    tsr_status status = TSR_OK;
    tsr_output reports[MAX_REPORTS] = {{"--json", p->json}, {"--junit", p->junit}, {"--progress-file", p->progress}};
    size_t n = 3;
    for (const tsr_output *more = p->more; more != NULL && more->option != NULL && n < MAX_REPORTS; more++)
        reports[n++] = *more;
    bool any = p->dst != NULL;
    for (size_t i = 0; i < n; i++)
        any = any || reports[i].path != NULL;
    if (!any)
        return TSR_OK;
    if (tsr_is_stdout(p->progress))
        return tsr_fail(err, TSR_E_USAGE, "--progress-file %s: stdout is for results; name another", p->progress);
    for (size_t i = 0; status == TSR_OK && i < TSR_MAX_SOURCES; i++) {
        gathering g = {.to = &s, .source = p->sources[i]};
        if (p->sources[i] == NULL)
            continue;
        status = gather(p->sources[i], 0, &g, err);
        if (status == TSR_OK)
            status = add_above(&s.above, p->sources[i], p->sources[i], err);
    }
    const bool known = status == TSR_OK;
    if (s.files.count > 0)
        qsort(s.files.items, s.files.count, sizeof *s.files.items, by_inode);
    if (known && p->dst != NULL)
        status = check_directory(&s, p->dst, err);
    bool usage = status == TSR_E_USAGE;
    for (size_t i = 0; known && i < n; i++) {
        const tsr_status one =
            check_report(&s, reports[i].option, reports[i].path, p->dst, status == TSR_OK ? err : NULL);
        reports[i].path = one == TSR_OK ? reports[i].path : NULL;
        status = status == TSR_OK ? one : status;
        usage = usage || one == TSR_E_USAGE;
    }
    for (size_t i = 0; status == TSR_OK && i < n; i++) {
        for (size_t k = 0; status == TSR_OK && k < i; k++) {
            const char *const a = reports[k].path, *const b = reports[i].path;
            if ((tsr_is_stdout(a) && tsr_is_stdout(b)) || is_same_report(a, b))
                status = tsr_fail(err, TSR_E_USAGE, "%s and %s: both to %s", reports[k].option, reports[i].option, a);
        }
    }
    free(s.files.items);
    free(s.folders.items);
    free(s.above.items);
    /* Where the one cannot be written, the other tells why. */
    if (known && !usage && status != TSR_E_USAGE)
        owed = (tsr_owed){reports[0].path, reports[1].path};
    return status;
}

static tsr_status note_output(const char *option, const char *path, bool folder, tsr_err *err)
{
    if (path != NULL && !tsr_stage_owns(path) && tsr_is_stdout(path))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: stdout is the batch's; name a file", option, path);
    return tsr_stage_note(&(tsr_stage_path){.option = option, .path = path, .folder = folder}, err);
}

tsr_status tsr_places_note(const tsr_places *p, tsr_err *err)
{
    tsr_stage *const stage = tsr_stage_now();
    if (stage == NULL)
        return TSR_OK;
    stage->n_paths = 0;
    for (size_t i = 0; i < TSR_MAX_SOURCES; i++)
        TSR_TRY(tsr_stage_note(&(tsr_stage_path){.path = p->sources[i]}, err));
    TSR_TRY(note_output("-o", p->dst, true, err));
    TSR_TRY(note_output("--json", p->json, false, err));
    TSR_TRY(note_output("--junit", p->junit, false, err));
    for (const tsr_output *more = p->more; more != NULL && more->option != NULL; more++)
        TSR_TRY(note_output(more->option, more->path, false, err));
    return TSR_OK;
}

tsr_status tsr_places_check(const tsr_places *places, tsr_err *err)
{
    owed = (tsr_owed){0};
    TSR_TRY(tsr_places_note(places, err));
    TSR_TRY(check_all(places, err));
    return tsr_stage_end_rehearsal(err);
}

/* ---- writing ---- */

tsr_owed tsr_reports_owed(void)
{
    return owed;
}

tsr_owed tsr_owe_reports(tsr_owed reports)
{
    const tsr_owed before = owed;
    owed = reports;
    return before;
}

/* Whoever writes to a path, writes there once: it is owed no more, even if writing fails. */
static void pay(const char *path)
{
    if (owed.json != NULL && strcmp(owed.json, path) == 0)
        owed.json = NULL;
    if (owed.junit != NULL && strcmp(owed.junit, path) == 0)
        owed.junit = NULL;
}

static bool is_descriptor(const char *path, int fd)
{
    struct stat there, here;
    return stat(path, &there) == 0 && fstat(fd, &here) == 0 && there.st_dev == here.st_dev &&
           there.st_ino == here.st_ino && there.st_rdev == here.st_rdev;
}

bool tsr_is_stdout(const char *path)
{
    return path != NULL && (strcmp(path, "-") == 0 || is_descriptor(path, STDOUT_FILENO));
}

/* Writes into something that exists and is not a file: a device, or a pipe that another process reads. */
static tsr_status write_through(const char *path, const tsr_text *text, tsr_err *err)
{
    const bool told = is_descriptor(path, STDERR_FILENO);
    const int fd = told ? dup(STDERR_FILENO) : open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errno == ENXIO ? tsr_fail(err, TSR_E_IO, "%s: a pipe that nobody reads", path)
                              : tsr_fail_errno(err, "%s: cannot open", path);
    tsr_status status = TSR_OK;
    if (!told && fcntl(fd, F_SETFL, 0) != 0)
        status = tsr_fail_errno(err, "%s: cannot write", path);
    for (size_t done = 0; status == TSR_OK && done < text->size;) {
        const ssize_t n = write(fd, text->data + done, text->size - done);
        if (n <= 0 && errno != EINTR)
            status = tsr_fail_errno(err, "%s: cannot write", path);
        done += n > 0 ? (size_t)n : 0;
    }
    if (close(fd) != 0 && status == TSR_OK)
        status = tsr_fail_errno(err, "%s: cannot close", path);
    return status;
}

tsr_status tsr_write_report(const char *path, const tsr_text *text, tsr_err *err)
{
    char real[PATH_MAX];
    struct stat st;
    TSR_TRY(tsr_text_status(text, err));
    pay(path);
    if (tsr_stage_owns(path))
        return tsr_stage_keep(text, err);
    if (tsr_is_stdout(path)) {
        tsr_print_raw(text->data, text->size);
        return TSR_OK;
    }
    if (stat(path, &st) == 0 && (!S_ISREG(st.st_mode) || is_descriptor(path, STDERR_FILENO)))
        return write_through(path, text, err);
    const char *const name = realpath(path, real) != NULL ? real : path;
    const tsr_status status = tsr_write_file(name, text->data, text->size, err);
    return status == TSR_OK ? TSR_OK : tsr_prepend(err, status, "%s", path);
}
