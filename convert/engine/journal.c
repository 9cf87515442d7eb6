/* Reading, checking and extending the journal. */
#include "convert/engine/journal.h"

#include "common/file.h"
#include "convert/engine/blocks_file.h"
#include "convert/engine/destination.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t kMaxJournalBytes = 1u << 30;
/* The version of the journal: of its records, of the statistics in them, and of where temporary files lie. */
static const char kMagic[] = "tessera 2 ", kOldMagic[] = "tessera 1 ";

/* Appends " <hash>\n" to the record that begins at `start`. */
static void seal(tsr_text *t, size_t start)
{
    if (!t->failed)
        tsr_text_printf(t, " %016llx\n", (unsigned long long)XXH3_64bits(t->data + start, t->size - start));
}

static void write_head(tsr_text *t, const tsr_plan *plan)
{
    tsr_text_printf(t, "%s%016llx %s", kMagic, (unsigned long long)plan->fingerprint, plan->command);
    seal(t, 0);
    for (size_t i = 0; i < plan->n_files + plan->n_texts; i++) {
        const size_t start = t->size;
        tsr_text_printf(t, "output %s", i < plan->n_files ? plan->files[i].name : plan->texts[i - plan->n_files].name);
        seal(t, start);
    }
}

/* The sound record at `line` (of `size` bytes, without newline), its hash cut off; false when it is torn. */
static bool unseal(const char *line, size_t size, size_t *body)
{
    if (size < 17 || line[size - 17] != ' ')
        return false;
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(line, size - 17));
    *body = size - 17;
    return memcmp(hash, line + size - 16, 16) == 0;
}

static bool parse_hex(const char *text, void *data, size_t size)
{
    static const char kDigits[] = "0123456789abcdef";
    unsigned char *const to = data;
    for (size_t i = 0; i < size; i++) {
        const char *const high = memchr(kDigits, text[2 * i], 16), *const low = memchr(kDigits, text[2 * i + 1], 16);
        if (high == NULL || low == NULL)
            return false;
        to[i] = (unsigned char)((high - kDigits) << 4 | (low - kDigits));
    }
    return true;
}

static void note_record(tsr_journal *j, size_t index, uint64_t digest)
{
    j->unordered = j->unordered || index < j->last;
    j->last = index + 1;
    j->digests[index] = digest;
    j->finished[index] = true;
}

/* "file <index> <digest> <hex>": false when it does not fit this plan. */
static bool take_file_record(tsr_journal *j, const tsr_plan *plan, const char *record, size_t size,
                             tsr_quant_stats *rows)
{
    size_t index;
    unsigned long long digest;
    int used = 0;
    if (sscanf(record, "file %zu %llx %n", &index, &digest, &used) != 2 || index >= plan->n_files)
        return false;
    const tsr_out_file *const f = &plan->files[index];
    const size_t bytes = f->n_steps * sizeof *rows;
    if (size - (size_t)used != 2 * bytes || !parse_hex(record + used, &rows[f->first_step], bytes))
        return false;
    note_record(j, index, digest);
    return true;
}

/* The length of the option with its value at the beginning of `command`: up to the next " --". */
static size_t option_length(const char *command, size_t size)
{
    const char *const next = memmem(command, size, " --", 3);
    return next == NULL ? size : (size_t)(next - command);
}

static bool has_option(const char *command, size_t size, const char *option, size_t length)
{
    for (size_t at = 0, n; at < size; at += n + 1) {
        n = option_length(command + at, size - at);
        if (n == length && memcmp(command + at, option, n) == 0)
            return true;
    }
    return false;
}

/* Appends the options of command `a` that `b` does not have. */
static void add_difference(tsr_text *t, const char *a, size_t a_size, const char *b, size_t b_size)
{
    const size_t start = t->size;
    for (size_t at = 0, n; at < a_size; at += n + 1) {
        n = option_length(a + at, a_size - at);
        if (!has_option(b, b_size, a + at, n))
            tsr_text_printf(t, "%s%.*s", t->size == start ? "" : " ", (int)n, a + at);
    }
    if (t->size == start)
        tsr_text_printf(t, "nothing of these");
}

/* Fails because the journal was begun by the command `then`, which is not the plan's, or from another source. */
static tsr_status refuse_other_plan(const char *then, size_t size, const char *now, const char *dst, tsr_err *err)
{
    const size_t n = strlen(now);
    tsr_text a = {0}, b = {0};
    if (n == size && memcmp(then, now, n) == 0)
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: begun from a source that has changed since (files, sizes, times or headers differ); "
                        "--force starts over",
                        dst);
    add_difference(&a, then, size, now, n);
    add_difference(&b, now, n, then, size);
    const bool whole = !a.failed && !b.failed;
    const tsr_status status =
        tsr_fail(err, TSR_E_EXISTS,
                 "%s: begun with other options: then %s, now %s; repeat them to carry on, or --force to start over",
                 dst, whole ? a.data : "?", whole ? b.data : "?");
    tsr_text_free(&a);
    tsr_text_free(&b);
    return status;
}

/* Reads the records; *good is where the last intact one ends. */
static tsr_status read_records(tsr_journal *j, const tsr_plan *plan, const char *text, size_t size, const char *dst,
                               tsr_quant_stats *rows, size_t *good, tsr_err *err)
{
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)plan->fingerprint);
    *good = 0;
    while (*good < size) {
        const char *const line = text + *good, *const end = memchr(line, '\n', size - *good);
        size_t body;
        if (end == NULL || !unseal(line, (size_t)(end - line), &body))
            break;
        if (*good == 0) {
            const size_t at = sizeof kMagic - 1;
            if (body < at + 17 || memcmp(line, kMagic, at) != 0)
                return tsr_fail(err, TSR_E_MISMATCH,
                                "%s: the journal of another version of Tessera; --force starts over", j->path);
            if (memcmp(line + at, fingerprint, 16) != 0) {
                return refuse_other_plan(line + at + 17, body - at - 17, plan->command, dst, err);
            }
        } else if (body > 5 && memcmp(line, "file ", 5) == 0 && !take_file_record(j, plan, line, body, rows)) {
            break;
        }
        *good += (size_t)(end - line) + 1;
    }
    return TSR_OK;
}

/* Reads the names of all outputs that the journal lists. */
static tsr_status read_names(const char *text, size_t size, tsr_arena *arena, tsr_names *names, tsr_err *err)
{
    *names = (tsr_names){0};
    size_t most = 0;
    for (size_t i = 0; i < size; i++)
        most += text[i] == '\n';
    names->items = tsr_arena_alloc(arena, (most + 1) * sizeof *names->items);
    bool ok = names->items != NULL;
    for (size_t at = 0, body; ok && at < size;) {
        const char *const line = text + at, *const end = memchr(line, '\n', size - at);
        if (end == NULL || !unseal(line, (size_t)(end - line), &body))
            break;
        at += (size_t)(end - line) + 1;
        if (body < 7 || memcmp(line, "output ", 7) != 0)
            continue;
        const char *const name = tsr_arena_dup(arena, line + 7, body - 7);
        names->items[names->count++] = name;
        ok = name != NULL;
    }
    return ok ? TSR_OK : tsr_out_of_memory(err, "for the names in a journal");
}

/* Removes the outputs of an earlier run that the journal lists, finished or not. */
static void remove_outputs(const tsr_names *names, bool old_parts, const char *dst)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < names->count; i++) {
        unlink(tsr_output_path(dst, names->items[i], path));
        /* Before version 2, a temporary file lay beside the file that it became. */
        if (old_parts && strlen(path) + 5 < sizeof path)
            unlink(strcat(path, ".part"));
    }
}

/* Whether the directory holds anything but Tessera's own folder. */
static tsr_status check_empty(const char *dst, tsr_err *err)
{
    DIR *const dir = opendir(dst);
    if (dir == NULL)
        return tsr_fail_errno(err, "%s: cannot list the directory", dst);
    tsr_status status = TSR_OK;
    const struct dirent *entry;
    while (status == TSR_OK && (entry = readdir(dir)) != NULL) {
        const char *const name = entry->d_name;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, TSR_STATE_DIR) != 0)
            status = tsr_fail(err, TSR_E_EXISTS,
                              "%s: not empty ('%s'), and no output of Tessera: name another directory, "
                              "or --force to write into this one",
                              dst, name);
    }
    closedir(dir);
    return status;
}

/* ---- writing ---- */

static void write_file_record(tsr_text *t, const tsr_plan *plan, size_t index, uint64_t digest,
                              const tsr_quant_stats *rows)
{
    const tsr_out_file *const f = &plan->files[index];
    const unsigned char *const bytes = (const unsigned char *)&rows[f->first_step];
    static const char kDigits[] = "0123456789abcdef";
    const size_t start = t->size;
    tsr_text_printf(t, "file %zu %016llx ", index, (unsigned long long)digest);
    for (size_t i = 0; i < f->n_steps * sizeof *rows; i++)
        tsr_text_append(t, (char[]){kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]}, 2);
    seal(t, start);
}

static tsr_status lock(int fd, const char *path, int how, tsr_err *err)
{
    while (flock(fd, how | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK)
            return tsr_fail(err, TSR_E_EXISTS, "%s: another process is writing this output", path);
        if (errno != EINTR)
            return tsr_fail_errno(err,
                                  "%s: cannot lock it, so nothing would keep a second process away: name a directory "
                                  "on a file system that has locks",
                                  path);
    }
    return TSR_OK;
}

/* Writes a new file in place of the old one instead of changing it, since it may be a hard link that another output
 * shares. */
tsr_status tsr_journal_rewrite(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_quant_stats *rows,
                               tsr_err *err)
{
    tsr_text t = {0};
    char part[PATH_MAX];
    tsr_part_path(dst, SIZE_MAX, part);
    write_head(&t, plan);
    for (size_t i = 0; i < plan->n_files; i++) {
        if (j->finished[i])
            write_file_record(&t, plan, i, j->digests[i], rows);
    }
    const int fd = open(part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    tsr_status status = fd < 0 ? tsr_fail_errno(err, "%s: cannot create", part) : tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = lock(fd, part, LOCK_EX, err);
    if (status == TSR_OK)
        status = tsr_write_at(fd, part, t.data, t.size, 0, err);
    if (status == TSR_OK)
        status = tsr_commit_file(fd, part, j->path, err);
    if (status == TSR_OK) {
        close(j->fd);
        j->fd = fd;
        j->end = t.size;
        j->unordered = false;
    } else if (fd >= 0) {
        unlink(part);
        close(fd);
    }
    tsr_text_free(&t);
    return status;
}

tsr_status tsr_journal_add(tsr_journal *j, const tsr_plan *plan, size_t index, uint64_t digest,
                           const tsr_quant_stats *rows, tsr_err *err)
{
    tsr_text t = {0};
    write_file_record(&t, plan, index, digest, rows);
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = tsr_write_at(j->fd, j->path, t.data, t.size, j->end, err);
    if (status == TSR_OK && fdatasync(j->fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", j->path);
    if (status == TSR_OK)
        j->end += t.size;
    else
        (void)!ftruncate(j->fd,
                         (off_t)j->end); /* what is left of it would be cut off, or found wrong, by the next run */
    tsr_text_free(&t);
    note_record(j, index, digest);
    j->finished[index] = status == TSR_OK;
    return status;
}

/* ---- opening ---- */

/* Opens and locks the journal, which reserves the directory for this process. A read-only directory is only read. */
static tsr_status open_locked(tsr_journal *j, const char *dst, tsr_err *err)
{
    for (int tries = 0; tries < 10; tries++) {
        j->read_only = false;
        j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (j->fd < 0 && (errno == EROFS || errno == EACCES || errno == EPERM)) {
            const int code = errno;
            j->read_only = true;
            j->fd = open(j->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
            errno = code;
        }
        if (j->fd < 0)
            return tsr_fail_errno(err, "%s: cannot open", j->path);
        const tsr_status status = lock(j->fd, dst, j->read_only ? LOCK_SH : LOCK_EX, err);
        /* Without a lock it is still safe to read a directory that may not be written to. */
        if (status != TSR_OK && (status == TSR_E_EXISTS || !j->read_only))
            return status;
        struct stat st, named;
        if (fstat(j->fd, &st) != 0 || lstat(j->path, &named) != 0)
            return tsr_fail_errno(err, "%s: cannot look at it", j->path);
        if (!S_ISREG(st.st_mode))
            return tsr_fail(err, TSR_E_FORMAT, "%s: not a regular file", j->path);
        j->shared = st.st_nlink > 1;
        if (st.st_dev == named.st_dev && st.st_ino == named.st_ino)
            return TSR_OK;
        close(j->fd); /* replaced in the meantime: the new file is the journal */
        j->fd = -1;
    }
    return tsr_fail(err, TSR_E_EXISTS, "%s: another process is writing this output", dst);
}

/* Makes the directory an empty output of this plan, whatever it holds. */
static tsr_status start_over(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_names *planned,
                             const tsr_names *old, bool old_parts, const tsr_quant_stats *rows, tsr_err *err)
{
    TSR_TRY(tsr_check_strays(dst, planned, old, err));
    TSR_TRY(tsr_withdraw(dst, planned, err));
    TSR_TRY(tsr_withdraw(dst, old, err));
    remove_outputs(old, old_parts, dst);
    tsr_blocks_remove(dst);
    return tsr_journal_rewrite(j, plan, dst, rows, err);
}

static tsr_status carry_on(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_names *planned,
                           const char *text, size_t size, tsr_quant_stats *rows, tsr_err *err)
{
    size_t good = 0;
    TSR_TRY(read_records(j, plan, text, size, dst, rows, &good, err));
    TSR_TRY(tsr_check_strays(dst, planned, NULL, err));
    j->end = good;
    if (j->read_only)
        return TSR_OK;
    if (j->shared)
        return tsr_journal_rewrite(j, plan, dst, rows, err);
    return good == size || ftruncate(j->fd, (off_t)good) == 0 ? TSR_OK
                                                              : tsr_fail_errno(err, "%s: cannot truncate", j->path);
}

static tsr_status load(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force, tsr_quant_stats *rows,
                       tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names planned, old;
    const char *text;
    size_t size, body;
    bool fresh = false, old_parts = false;
    tsr_status status;
    TSR_GOTO(tsr_plan_names(plan, &scratch, &planned, err));
    TSR_GOTO(tsr_read_file(j->path, kMaxJournalBytes, &scratch, &text, &size, err));
    TSR_GOTO(read_names(text, size, &scratch, &old, err));
    TSR_GOTO(tsr_check_names(dst, &old, "the journal in " TSR_STATE_DIR ", which Tessera cannot have written,",
                             TSR_E_FORMAT, err));
    const char *const end = memchr(text, '\n', size);
    /* A run that was killed before its first record was whole has written nothing else. */
    fresh = end == NULL || !unseal(text, (size_t)(end - text), &body);
    old_parts = !fresh && strncmp(text, kOldMagic, sizeof kOldMagic - 1) == 0;
    if (j->read_only && (fresh || force)) {
        status = tsr_fail(err, TSR_E_IO, "%s: cannot be written to", j->path);
        goto out;
    }
    if (!j->read_only)
        tsr_remove_parts(dst);
    if (fresh && !force)
        TSR_GOTO(check_empty(dst, err));
    status = fresh || force ? start_over(j, plan, dst, &planned, &old, old_parts, rows, err)
                            : carry_on(j, plan, dst, &planned, text, size, rows, err);
out:
    tsr_arena_free(&scratch);
    return status;
}

static tsr_status check_plan(const tsr_plan *plan, const char *dst, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names planned;
    tsr_status status = tsr_plan_names(plan, &scratch, &planned, err);
    if (status == TSR_OK)
        status = tsr_check_names(dst, &planned, "the plan", TSR_E_UNSUPPORTED, err);
    tsr_arena_free(&scratch);
    for (const char *c = plan->command; status == TSR_OK && *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20)
            status = tsr_fail(err, TSR_E_USAGE, "an option has a control character in it");
    }
    return status;
}

/* Makes DST and DST/.tessera where they are missing, and makes them durable. */
static tsr_status make_folders(const char *dst, bool force, tsr_err *err)
{
    char folder[PATH_MAX];
    struct stat st;
    tsr_output_path(dst, TSR_STATE_DIR, folder);
    TSR_TRY(tsr_make_dirs(dst, err));
    const bool there = lstat(folder, &st) == 0;
    if (there && !S_ISDIR(st.st_mode))
        return tsr_fail(err, TSR_E_EXISTS, "%s: a link or a file, where Tessera has its folder", folder);
    if (!there && !force)
        TSR_TRY(check_empty(dst, err));
    TSR_TRY(tsr_make_dirs(folder, err));
    /* Perhaps made by a run that was killed before it could do this. */
    if (access(dst, W_OK) != 0)
        return TSR_OK;
    TSR_TRY(tsr_sync_parent(dst, err));
    return tsr_sync_dir(dst, err);
}

tsr_status tsr_journal_open(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force, tsr_quant_stats *rows,
                            tsr_err *err)
{
    *j = (tsr_journal){.fd = -1};
    tsr_status status = TSR_OK;
    TSR_TRY(check_plan(plan, dst, err));
    TSR_TRY(make_folders(dst, force, err));
    j->digests = calloc(plan->n_files + 1, sizeof *j->digests);
    j->finished = calloc(plan->n_files + 1, sizeof *j->finished);
    if (asprintf(&j->path, "%s/" TSR_STATE_DIR "/journal", dst) < 0)
        j->path = NULL;
    if (j->digests == NULL || j->finished == NULL || j->path == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", dst);
    if (status == TSR_OK)
        status = open_locked(j, dst, err);
    if (status == TSR_OK)
        status = load(j, plan, dst, force, rows, err);
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
}

void tsr_journal_close(tsr_journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    free(j->path);
    free(j->digests);
    free(j->finished);
    *j = (tsr_journal){.fd = -1};
}
