/* Reading, checking and extending the journal. */
#include "convert/journal.h"

#include "formats/file.h"

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
#include <unistd.h>

static const uint64_t kMaxJournalBytes = 1u << 30;

/* Appends " <hash>\n" to the record that begins at `start`. */
static void seal(tsr_text *t, size_t start)
{
    if (!t->failed)
        tsr_text_printf(t, " %016llx\n", (unsigned long long)XXH3_64bits(t->data + start, t->size - start));
}

static void write_head(tsr_text *t, const tsr_plan *plan)
{
    tsr_text_printf(t, "tessera 1 %016llx %s", (unsigned long long)plan->fingerprint, plan->command);
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
    j->digests[index] = digest;
    j->finished[index] = true;
    return true;
}

/* Reads the records; *good is where the last sound one ends. */
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
            static const char kMagic[] = "tessera 1 ";
            const size_t at = sizeof kMagic - 1;
            if (body < at + 17 || memcmp(line, kMagic, at) != 0)
                return tsr_fail(err, TSR_E_MISMATCH,
                                "%s: the journal of another version of Tessera; --force starts over", j->path);
            if (memcmp(line + at, fingerprint, 16) != 0) {
                const char *const command = line + at + 17;
                const int length = (int)(body - at - 17);
                const bool same =
                    strlen(plan->command) == (size_t)length && memcmp(command, plan->command, (size_t)length) == 0;
                return same ? tsr_fail(err, TSR_E_MISMATCH,
                                       "%s: begun from a source that has changed since (files, sizes, "
                                       "times or headers differ); --force starts over",
                                       dst)
                            : tsr_fail(err, TSR_E_MISMATCH,
                                       "%s: begun with other options: '%.*s', now '%s'; repeat them "
                                       "to carry on, or --force to start over",
                                       dst, length, command, plan->command);
            }
        } else if (body > 5 && memcmp(line, "file ", 5) == 0 && !take_file_record(j, plan, line, body, rows)) {
            break;
        }
        *good += (size_t)(end - line) + 1;
    }
    return TSR_OK;
}

/* The next file that an old journal names as an output; false at its end. */
static bool next_output(const char *text, size_t size, size_t *at, char name[PATH_MAX])
{
    while (*at < size) {
        const char *const line = text + *at, *const end = memchr(line, '\n', size - *at);
        size_t body;
        if (end == NULL || !unseal(line, (size_t)(end - line), &body))
            return false;
        *at += (size_t)(end - line) + 1;
        if (body > 7 && memcmp(line, "output ", 7) == 0) {
            snprintf(name, PATH_MAX, "%.*s", (int)body - 7, line + 7);
            return true;
        }
    }
    return false;
}

/* Removes what the journal says an earlier run put there, finished or not. */
static void remove_outputs(const char *text, size_t size, const char *dst)
{
    char name[PATH_MAX], path[PATH_MAX];
    for (size_t at = 0; next_output(text, size, &at, name);) {
        for (int part = 0; part < 2; part++) {
            snprintf(path, sizeof path, "%s/%s%s", dst, name, part ? ".part" : "");
            unlink(path);
        }
    }
}

static bool is_output(const tsr_plan *plan, const char *old, size_t old_size, const char *file)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        if (strcmp(plan->files[i].name, file) == 0)
            return true;
    }
    char name[PATH_MAX];
    for (size_t at = 0; next_output(old, old_size, &at, name);) {
        if (strcmp(name, file) == 0)
            return true;
    }
    return false;
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

static bool ends_with(const char *text, const char *suffix)
{
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* With --force, a foreign model's weights beside ours would be taken for part of it. Those that the old journal (which
 * may be empty) names are ours. */
static tsr_status check_no_stray_weights(const tsr_plan *plan, const char *dst, const char *old, size_t old_size,
                                         tsr_err *err)
{
    DIR *const dir = opendir(dst);
    if (dir == NULL)
        return tsr_fail_errno(err, "%s: cannot list the directory", dst);
    tsr_status status = TSR_OK;
    const struct dirent *entry;
    while (status == TSR_OK && (entry = readdir(dir)) != NULL) {
        const char *const name = entry->d_name;
        if ((ends_with(name, ".safetensors") || ends_with(name, ".safetensors" TSR_ARCHIVE_SUFFIX)) &&
            !is_output(plan, old, old_size, name))
            status = tsr_fail(err, TSR_E_EXISTS,
                              "%s/%s: weights that this job does not write; loaders would take them for part of the "
                              "model: move them away first",
                              dst, name);
    }
    closedir(dir);
    return status;
}

static tsr_status begin(tsr_journal *j, const tsr_plan *plan, tsr_err *err)
{
    tsr_text head = {0};
    write_head(&head, plan);
    tsr_status status = tsr_text_status(&head, err);
    if (status == TSR_OK && ftruncate(j->fd, 0) != 0)
        status = tsr_fail_errno(err, "%s: cannot truncate", j->path);
    if (status == TSR_OK)
        status = tsr_write_at(j->fd, j->path, head.data, head.size, 0, err);
    tsr_text_free(&head);
    if (status == TSR_OK && fsync(j->fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", j->path);
    return status;
}

static tsr_status load(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force, tsr_quant_stats *rows,
                       tsr_err *err)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size, good = 0, body;
    tsr_status status = tsr_read_file(j->path, kMaxJournalBytes, &scratch, &text, &size, err);
    if (status == TSR_OK) {
        const char *const end = memchr(text, '\n', size);
        /* Killed before the first record was whole: nothing was written yet. */
        const bool fresh = end == NULL || !unseal(text, (size_t)(end - text), &body);
        if (fresh || force) {
            status = force ? check_no_stray_weights(plan, dst, text, size, err) : check_empty(dst, err);
            if (status == TSR_OK)
                remove_outputs(text, size, dst);
            if (status == TSR_OK)
                status = begin(j, plan, err);
        } else {
            status = read_records(j, plan, text, size, dst, rows, &good, err);
            if (status == TSR_OK && ftruncate(j->fd, (off_t)good) != 0)
                status = tsr_fail_errno(err, "%s: cannot truncate", j->path);
        }
    }
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_journal_open(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force, tsr_quant_stats *rows,
                            tsr_err *err)
{
    *j = (tsr_journal){.fd = -1};
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/" TSR_STATE_DIR, dst);
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_make_dirs(dst, err));
    if (access(folder, F_OK) != 0 && !force)
        TSR_TRY(check_empty(dst, err));
    TSR_TRY(tsr_make_dirs(folder, err));
    j->digests = calloc(plan->n_files, sizeof *j->digests);
    j->finished = calloc(plan->n_files, sizeof *j->finished);
    if (asprintf(&j->path, "%s/journal", folder) < 0)
        j->path = NULL;
    if (j->digests == NULL || j->finished == NULL || j->path == NULL) {
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", dst);
        goto out;
    }
    j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (j->fd < 0) {
        status = tsr_fail_errno(err, "%s: cannot open", j->path);
        goto out;
    }
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0) {
        status = tsr_fail(err, TSR_E_EXISTS, "%s: another process is writing this output", dst);
        goto out;
    }
    status = load(j, plan, dst, force, rows, err);
out:
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
}

tsr_status tsr_journal_add(tsr_journal *j, const tsr_plan *plan, size_t index, uint64_t digest,
                           const tsr_quant_stats *rows, tsr_err *err)
{
    const tsr_out_file *const f = &plan->files[index];
    const unsigned char *const bytes = (const unsigned char *)&rows[f->first_step];
    static const char kDigits[] = "0123456789abcdef";
    tsr_text t = {0};
    tsr_text_printf(&t, "file %zu %016llx ", index, (unsigned long long)digest);
    for (size_t i = 0; i < f->n_steps * sizeof *rows; i++)
        tsr_text_append(&t, (char[]){kDigits[bytes[i] >> 4], kDigits[bytes[i] & 15]}, 2);
    seal(&t, 0);
    tsr_status status = tsr_text_status(&t, err);
    const off_t end = lseek(j->fd, 0, SEEK_END);
    if (status == TSR_OK)
        status = tsr_write_at(j->fd, j->path, t.data, t.size, (uint64_t)end, err);
    if (status == TSR_OK && fdatasync(j->fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", j->path);
    tsr_text_free(&t);
    j->digests[index] = digest;
    j->finished[index] = status == TSR_OK;
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
