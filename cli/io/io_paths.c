/* Checks that outputs do not overlap inputs, and writes reports. */
#include "cli/io/io_paths.h"

#include "cli/io/output.h"
#include "common/file.h"
#include "common/path_guard.h"
#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/rank_file.h"
#include "formats/remote/address.h"

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

enum { PROBED = 512 /* bytes */ };

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

/* Returns true for the name of a file that loaders or Tessera read beside weights. A report must not replace one. */
static bool is_model_name(const char *path)
{
    static const char *const kNames[] = {TSR_CONFIG_NAME,         "generation_config.json",   TSR_HF_QUANT_CONFIG_NAME,
                                         "quantize_config.json",  "quantization_config.json", "tokenizer.json",
                                         "tokenizer_config.json", TSR_MANIFEST_NAME,          TSR_RANK_NAME,
                                         TSR_LAYOUT_NAME};
    const char *const slash = strrchr(path, '/'), *const name = slash == NULL ? path : slash + 1;
    bool is = tsr_ends_with(name, ".index.json") || tsr_listing_is_manifest(name);
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++)
        is = is || strcmp(name, kNames[i]) == 0;
    return is;
}

/* Returns true if a file has a NUL near its beginning. Then it is not a text file and not an earlier report. */
static bool is_binary(const char *path)
{
    char bytes[PROBED];
    const int fd = tsr_open(path, O_RDONLY | O_NONBLOCK);
    const ssize_t n = fd < 0 ? 0 : read(fd, bytes, sizeof bytes);
    if (fd >= 0)
        close(fd);
    return n > 0 && memchr(bytes, '\0', (size_t)n) != NULL;
}

/* Finds the folder of a file that may not exist. */
static void folder_of(const char *path, char folder[PATH_MAX])
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    snprintf(folder, PATH_MAX, "%s", dirname(copy));
}

/* Returns the next name of a path other than "."; NULL: there is none. */
static const char *next_name(const char **path, size_t *length)
{
    do {
        *path += strspn(*path, "/");
        *length = strcspn(*path, "/");
        *path += *length;
    } while (*length == 1 && (*path)[-1] == '.');
    return *length == 0 ? NULL : *path - *length;
}

/* Returns the last `n` names of a path; NULL: it has fewer. */
static const char *last_names(const char *path, size_t n)
{
    size_t count = 0, length;
    for (const char *p = path; next_name(&p, &length) != NULL;)
        count++;
    if (count < n)
        return NULL;
    for (; count > n; count--)
        (void)next_name(&path, &length);
    return path;
}

/* Returns true if a folder does not exist yet but is the promised one or one of its parents. Sets `existing` to the
 * folder in which it will be created. */
static bool will_be_made(const char *folder, const char *promised, char existing[PATH_MAX])
{
    char other[PATH_MAX];
    struct stat st, st2;
    size_t missing, others, n, m;
    if (promised == NULL || tsr_path_guard_resolve(folder, existing, &missing, NULL) != TSR_OK ||
        tsr_path_guard_resolve(promised, other, &others, NULL) != TSR_OK || missing == 0 || missing > others ||
        stat(existing, &st) != 0 || stat(other, &st2) != 0 || st.st_ino != st2.st_ino || st.st_dev != st2.st_dev)
        return false;
    const char *mine = last_names(folder, missing), *theirs = last_names(promised, others);
    bool same = mine != NULL && theirs != NULL;
    for (size_t i = 0; i < missing && same; i++) {
        const char *const a = next_name(&mine, &n), *const b = next_name(&theirs, &m);
        same = a != NULL && b != NULL && n == m && memcmp(a, b, n) == 0 && !(n == 2 && memcmp(a, "..", 2) == 0);
    }
    return same;
}

static tsr_status check_report(const tsr_path_guard *s, const tsr_output *report, const tsr_io_paths *p, tsr_err *err)
{
    const char *const option = report->option, *const path = report->path, *const dst = p->dst;
    char real[PATH_MAX], folder[PATH_MAX], made[PATH_MAX];
    struct stat st;
    size_t missing;
    if (path == NULL || tsr_is_stdout(path))
        return TSR_OK;
    if (tsr_is_remote(path))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: written to files on this machine only; upload it afterwards", option,
                        path);
    if (*path == '\0' || strlen(path) >= PATH_MAX)
        return tsr_fail(err, TSR_E_USAGE, "%s: not a file name", option);
    const bool exists = stat(path, &st) == 0;
    if (!exists && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: dangling symlink", option, path);
    if (exists && S_ISDIR(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: a directory; name a file", option, path);
    if (exists && S_ISBLK(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: a block device; name a file", option, path);
    if (exists && !S_ISREG(st.st_mode))
        return TSR_OK; /* a terminal, /dev/null, a pipe: written through */
    if (exists)
        TSR_TRY(tsr_path_guard_check_file(s, path, &st, err));
    if (report->tensors && exists)
        return tsr_fail(err, TSR_E_USAGE, "%s %s: exists; remove it or name another file", option, path);
    const bool weights = is_weights_name(path) && !report->tensors;
    if (weights || is_model_name(path) || (exists && is_binary(path)))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: %s; name another file", option, path,
                        weights               ? "a name used for weights"
                        : is_model_name(path) ? "a name used for a file of a checkpoint"
                                              : "it exists and is not a text file");
    folder_of(exists && realpath(path, real) != NULL ? real : path, folder);
    if (stat(folder, &st) != 0) {
        const int why = errno;
        if (why == ENOENT && will_be_made(folder, p->promised, made))
            return tsr_path_guard_check_outside(s, path, made, err);
        errno = why;
        return tsr_fail_errno(err, "%s %s: cannot write into the folder %s", option, path, folder);
    }
    TSR_TRY(tsr_path_guard_check_outside(s, path, folder, err));
    if (dst == NULL)
        return TSR_OK;
    /* A report inside the output directory would look like a part of the model. */
    if (tsr_path_guard_resolve(dst, made, &missing, NULL) != TSR_OK || missing > 0 || stat(made, &st) != 0)
        return TSR_OK;
    tsr_path_guard output = {0};
    tsr_status status = tsr_path_guard_add_folder(&output, dst, &st, err);
    if (status == TSR_OK && tsr_path_guard_check_outside(&output, path, folder, NULL) == TSR_E_USAGE)
        status = tsr_fail(err, TSR_E_USAGE, "%s %s: reports cannot be written into %s; write them beside it", option,
                          path, dst);
    tsr_path_guard_free(&output);
    return status;
}

/* Returns true if two reports would become one file. */
static bool is_same_report(const char *a, const char *b)
{
    struct stat x, y;
    char folder[PATH_MAX], name[PATH_MAX], other[PATH_MAX];
    if (a == NULL || b == NULL)
        return false;
    if (stat(a, &x) == 0 && stat(b, &y) == 0)
        return S_ISREG(x.st_mode) && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
    if (strcmp(a, b) == 0)
        return true; /* in a folder that will be created */
    snprintf(name, sizeof name, "%s", a);
    snprintf(other, sizeof other, "%s", b);
    if (strcmp(basename(name), basename(other)) != 0)
        return false;
    folder_of(a, folder);
    folder_of(b, other);
    return stat(folder, &x) == 0 && stat(other, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

/* Lists all reports of a command: the two usual ones first. Returns their number. */
static size_t list_reports(const tsr_io_paths *p, tsr_output reports[TSR_MAX_REPORTS + 1])
{
    size_t n = 0;
    reports[n++] = (tsr_output){"--json", p->json};
    reports[n++] = (tsr_output){"--junit", p->junit};
    reports[n++] = (tsr_output){"--progress-file", p->progress};
    for (const tsr_output *more = p->more; n < TSR_MAX_REPORTS && more->option != NULL; more++)
        reports[n++] = *more;
    return n;
}

static bool writes_any(const tsr_io_paths *p, const tsr_output *reports, size_t n)
{
    bool any = p->dst != NULL;
    for (size_t i = 0; i < n; i++)
        any = any || reports[i].path != NULL;
    return any;
}

/* Refuses two reports in one file. */
static tsr_status check_pairs(const tsr_output *reports, size_t n, tsr_err *err)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < i; k++) {
            const char *const a = reports[k].path, *const b = reports[i].path;
            if ((tsr_is_stdout(a) && tsr_is_stdout(b)) || is_same_report(a, b))
                return tsr_fail(err, TSR_E_USAGE, "%s and %s would both be written to %s", reports[k].option,
                                reports[i].option, a);
        }
    }
    return TSR_OK;
}

tsr_status tsr_io_paths_check(const tsr_io_paths *p, tsr_pending_reports *pending, tsr_err *err)
{
    tsr_path_guard s = {0};
    tsr_output reports[TSR_MAX_REPORTS + 1];
    const size_t n = list_reports(p, reports);
    *pending = (tsr_pending_reports){0};
    if (!writes_any(p, reports, n))
        return TSR_OK;
    if (tsr_is_stdout(p->progress))
        return tsr_fail(err, TSR_E_USAGE, "--progress-file %s: stdout is for results; name another file", p->progress);
    tsr_status status = tsr_path_guard_read(&s, p->sources, TSR_MAX_SOURCES, err);
    const bool known = status == TSR_OK;
    if (known && p->dst != NULL)
        status = tsr_path_guard_check_directory(&s, p->dst, TSR_STATE_DIR, err);
    bool usage = status == TSR_E_USAGE;
    for (size_t i = 0; known && i < n; i++) {
        const tsr_status one = check_report(&s, &reports[i], p, status == TSR_OK ? err : NULL);
        reports[i].path = one == TSR_OK ? reports[i].path : NULL;
        status = status == TSR_OK ? one : status;
        usage = usage || one == TSR_E_USAGE;
    }
    if (status == TSR_OK)
        status = check_pairs(reports, n, err);
    tsr_path_guard_free(&s);
    /* If one report cannot be written, the other one gets the error. */
    if (known && !usage && status != TSR_E_USAGE)
        *pending = (tsr_pending_reports){reports[0].path, reports[1].path};
    return status;
}

void tsr_pending_mark_written(tsr_pending_reports *pending, const char *path)
{
    if (pending->json != NULL && strcmp(pending->json, path) == 0)
        pending->json = NULL;
    if (pending->junit != NULL && strcmp(pending->junit, path) == 0)
        pending->junit = NULL;
}

/* ---- writing ---- */

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

bool tsr_io_paths_take_stdout(const tsr_io_paths *p)
{
    tsr_output reports[TSR_MAX_REPORTS + 1];
    const size_t n = list_reports(p, reports);
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || tsr_is_stdout(reports[i].path);
    return any;
}

/* Writes to an existing path that is not a file: a device, or a pipe that another process reads. */
static tsr_status write_through(const char *path, const tsr_text *text, tsr_err *err)
{
    const bool is_stderr = is_descriptor(path, STDERR_FILENO);
    const int fd = is_stderr ? dup(STDERR_FILENO) : tsr_open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errno == ENXIO ? tsr_fail(err, TSR_E_IO, "%s: a pipe without a reader", path)
                              : tsr_fail_errno(err, "%s: cannot open", path);
    tsr_status status = TSR_OK;
    if (!is_stderr && fcntl(fd, F_SETFL, 0) != 0)
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
