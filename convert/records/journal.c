/* Opens, extends and rewrites the journal. */
#include "convert/records/journal_open.h"

#include "common/file.h"
#include "convert/records/blocks_file.h"
#include "convert/records/destination.h"

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

static const char kForce[] = "--force";

/* Removes the outputs that an earlier run's journal lists, so that they are not taken for outputs of this run. */
static tsr_status remove_outputs(const tsr_names *names, const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < names->count; i++)
        TSR_TRY(tsr_remove_file(tsr_output_path(dst, names->items[i], path), err));
    return TSR_OK;
}

/* Removes the manifest of an earlier run, whose files are gone. */
static tsr_status remove_manifest(const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    return tsr_remove_file(tsr_output_path(dst, TSR_MANIFEST_NAME, path), err);
}

/* Rejects a directory that holds anything but Tessera's own folder. */
static tsr_status check_empty(const char *dst, tsr_err *err)
{
    DIR *const dir = opendir(dst);
    if (dir == NULL)
        return tsr_fail_errno(err, "%s: cannot list the directory", dst);
    tsr_status status = TSR_OK;
    const struct dirent *entry;
    while (status == TSR_OK && (status = tsr_next_entry(dir, dst, &entry, err)) == TSR_OK && entry != NULL) {
        const char *const name = entry->d_name;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, TSR_STATE_DIR) != 0)
            status = tsr_fail_as(err, TSR_ERROR_TAKEN, TSR_E_EXISTS,
                                 "%s: not empty (it contains '%s') and not an output of Tessera; name another "
                                 "directory, or write into this one with --force",
                                 dst, name);
    }
    closedir(dir);
    return status;
}

/* ---- writing ---- */

static tsr_status lock(int fd, const char *path, int how, tsr_err *err)
{
    if (tsr_lock(fd, how | LOCK_NB) == 0)
        return TSR_OK;
    if (errno == EWOULDBLOCK)
        return tsr_fail_as(err, TSR_ERROR_TWO_AT_ONCE, TSR_E_EXISTS,
                           "%s: another process is writing this output; wait for it, or name another directory", path);
    return tsr_fail_errno(err,
                          "%s: cannot lock it, and a second process could write to it at the same time; name a "
                          "directory on a file system that supports locks",
                          path);
}

/* Replaces the old file instead of writing into it, because it may be a hard link that another output shares. */
tsr_status tsr_journal_rewrite(tsr_journal *j, const tsr_plan *plan, const tsr_step_rows *rows, tsr_err *err)
{
    tsr_text t = {0};
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s" TSR_PART_SUFFIX, j->path);
    tsr_records_add_head(&t, plan, j->merges ? NULL : j->shard);
    size_t last = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        if (!j->finished[i])
            continue;
        tsr_records_add_file(&t, plan, i, j->digests[i], rows);
        last = i + 1;
    }
    const int fd = tsr_open(part, O_RDWR | O_CREAT | O_EXCL);
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
        j->last = last;
        j->unordered = false;
    } else if (fd >= 0) {
        unlink(part);
        close(fd);
    }
    tsr_text_free(&t);
    return status;
}

tsr_status tsr_journal_add(tsr_journal *j, const tsr_plan *plan, size_t index, uint64_t digest,
                           const tsr_step_rows *rows, tsr_err *err)
{
    tsr_text t = {0};
    tsr_records_add_file(&t, plan, index, digest, rows);
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = tsr_write_at(j->fd, j->path, t.data, t.size, j->end, err);
    if (status == TSR_OK && tsr_sync_data(j->fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", j->path);
    if (status == TSR_OK)
        j->end += t.size;
    else
        (void)!tsr_resize(j->fd, j->end); /* if this fails, the next run finds the torn record and cuts it off */
    tsr_text_free(&t);
    j->unordered = j->unordered || index < j->last;
    j->last = index + 1;
    j->digests[index] = digest;
    j->finished[index] = status == TSR_OK;
    return status;
}

/* ---- opening ---- */

tsr_status tsr_journal_open_locked(tsr_journal *j, const char *dst, bool read_only, tsr_err *err)
{
    for (int tries = 0; tries < 10; tries++) {
        j->read_only = read_only;
        errno = EACCES;
        if (!read_only)
            j->fd = tsr_open(j->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
        if (j->fd < 0 && (errno == EROFS || errno == EACCES || errno == EPERM)) {
            const int code = errno;
            j->read_only = true;
            j->why_read_only = code;
            j->fd = tsr_open(j->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
            errno = code;
        }
        if (j->fd < 0)
            return tsr_fail_errno(err, "%s: cannot open", j->path);
        const tsr_status status = lock(j->fd, dst, j->read_only ? LOCK_SH : LOCK_EX, err);
        /* Reading a directory that cannot be written to needs no lock. */
        if (status != TSR_OK && (status == TSR_E_EXISTS || !j->read_only))
            return status;
        struct stat st, named;
        if (fstat(j->fd, &st) != 0 || lstat(j->path, &named) != 0)
            return tsr_fail_errno(err, "%s: cannot access it", j->path);
        if (!S_ISREG(st.st_mode))
            return tsr_fail(err, TSR_E_FORMAT, "%s: not a regular file", j->path);
        j->shared = st.st_nlink > 1;
        if (st.st_dev == named.st_dev && st.st_ino == named.st_ino)
            return TSR_OK;
        close(j->fd); /* the file was replaced in the meantime: the new one is the journal */
        j->fd = -1;
    }
    return tsr_fail_as(err, TSR_ERROR_TWO_AT_ONCE, TSR_E_EXISTS,
                       "%s: another process is writing this output; wait for it, or name another directory", dst);
}

/* Makes the directory an empty output of this plan, whatever it contains; for a shard, only begins its journal. */
static tsr_status start_over(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_names *planned,
                             const tsr_names *old, const tsr_step_rows *rows, tsr_err *err)
{
    TSR_TRY(tsr_check_strays(dst, planned, old, err));
    if (j->shard == NULL) {
        TSR_TRY(tsr_withdraw(dst, planned, err));
        TSR_TRY(tsr_withdraw(dst, old, err));
        TSR_TRY(remove_outputs(old, dst, err));
        tsr_remove_empty_folders(dst, old);
        TSR_TRY(tsr_blocks_remove(dst, err));
        TSR_TRY(remove_manifest(dst, err));
    }
    return tsr_journal_rewrite(j, plan, rows, err);
}

static tsr_status carry_on(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_names *planned,
                           const char *text, size_t size, const tsr_step_rows *rows, tsr_err *err)
{
    size_t good = 0;
    const tsr_records_of of = {.path = j->path, .dst = dst, .to_start_over = kForce};
    tsr_finished to = {.digests = j->digests, .finished = j->finished, .rows = *rows};
    TSR_TRY(tsr_records_read(text, size, plan, &of, &to, &good, err));
    TSR_TRY(tsr_check_strays(dst, planned, NULL, err));
    j->last = to.last;
    j->unordered = to.unordered;
    j->end = good;
    if (j->read_only)
        return TSR_OK;
    if (j->shared)
        return tsr_journal_rewrite(j, plan, rows, err);
    return good == size || tsr_resize(j->fd, good) == 0 ? TSR_OK : tsr_fail_errno(err, "%s: cannot truncate", j->path);
}

/* Rejects existing files that prevent a new journal: any files or, for a shard, files other than those of the other
 * shards. */
static tsr_status check_room(const tsr_journal *j, const char *dst, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_shards found = {0};
    tsr_status status = check_empty(dst, err);
    if (status == TSR_E_EXISTS && j->shard != NULL && tsr_shards_find(dst, &scratch, &found, NULL) == TSR_OK &&
        found.n_present > 1)
        status = TSR_OK;
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_journal_load(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force,
                            const tsr_step_rows *rows, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names planned, old;
    const char *text;
    size_t size;
    bool fresh = false;
    tsr_status status;
    TSR_GOTO(tsr_plan_names(plan, &scratch, &planned, err));
    TSR_GOTO(tsr_read_file(j->path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, err));
    TSR_GOTO(tsr_records_list(text, size, TSR_OUTPUT_RECORD, &scratch, &old, err));
    TSR_GOTO(tsr_check_names(dst, &old, "the journal in " TSR_STATE_DIR ", which Tessera did not write,", TSR_E_FORMAT,
                             err));
    fresh = !tsr_records_begun(text, size);
    if (j->read_only && (fresh || force)) {
        errno = j->why_read_only;
        status = tsr_fail_errno(err, "%s: not writable", j->path);
        goto out;
    }
    if (!j->read_only && j->shard == NULL)
        tsr_remove_state_files(dst, TSR_PART_SUFFIX);
    if (fresh && !force)
        TSR_GOTO(check_room(j, dst, err));
    status = fresh || force ? start_over(j, plan, dst, &planned, &old, rows, err)
                            : carry_on(j, plan, dst, &planned, text, size, rows, err);
out:
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_journal_check_plan(const tsr_plan *plan, const char *dst, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names planned;
    tsr_status status = tsr_plan_names(plan, &scratch, &planned, err);
    if (status == TSR_OK)
        status = tsr_check_names(dst, &planned, "the plan", TSR_E_UNSUPPORTED, err);
    tsr_arena_free(&scratch);
    for (const char *c = plan->command; status == TSR_OK && *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20)
            status = tsr_fail(err, TSR_E_USAGE, "an option contains a control character");
    }
    return status;
}

tsr_status tsr_journal_make_folders(const char *dst, bool force, tsr_err *err)
{
    char folder[PATH_MAX];
    struct stat st;
    tsr_output_path(dst, TSR_STATE_DIR, folder);
    TSR_TRY(tsr_make_dirs(dst, err));
    const bool there = lstat(folder, &st) == 0;
    if (there && !S_ISDIR(st.st_mode))
        return tsr_fail(err, TSR_E_EXISTS, "%s: a link or a file, but Tessera needs a directory of this name", folder);
    if (!there && !force) {
        const tsr_status status = check_empty(dst, err);
        if (status != TSR_OK && lstat(folder, &st) != 0) /* otherwise another shard has just begun */
            return status;
    }
    TSR_TRY(tsr_make_dirs(folder, err));
    /* A killed run may have created the folders without syncing them. */
    if (access(dst, W_OK) != 0)
        return TSR_OK;
    TSR_TRY(tsr_sync_parent(dst, err));
    return tsr_sync_dir(dst, err);
}

tsr_status tsr_journal_prepare(tsr_journal *j, const tsr_plan *plan, const char *path, const char *dst, tsr_err *err)
{
    j->digests = calloc(plan->n_files + 1, sizeof *j->digests);
    j->finished = calloc(plan->n_files + 1, sizeof *j->finished);
    j->path = strdup(path);
    return j->digests == NULL || j->finished == NULL || j->path == NULL
               ? tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", dst)
               : TSR_OK;
}

/* Rejects a directory with shards, because shards and a run of all files exclude each other. No shard can begin while
 * the journal is locked. */
static tsr_status refuse_shards(const char *dst, bool force, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_shards found;
    tsr_status status = tsr_shards_find(dst, &scratch, &found, err);
    if (status == TSR_OK && found.n_present > 0)
        status = tsr_fail(err, TSR_E_EXISTS,
                          "%s: begun as %u shards; run the missing ones with --shard, then 'tessera finish'%s", dst,
                          found.count, force ? "; to start over, remove the directory" : "");
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_journal_open(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force,
                            const tsr_step_rows *rows, tsr_err *err)
{
    char path[PATH_MAX];
    *j = (tsr_journal){.fd = -1};
    TSR_TRY(tsr_journal_check_plan(plan, dst, err));
    TSR_TRY(tsr_journal_make_folders(dst, force, err));
    tsr_status status = tsr_journal_prepare(j, plan, tsr_output_path(dst, TSR_STATE_DIR "/journal", path), dst, err);
    if (status == TSR_OK)
        status = tsr_journal_open_locked(j, dst, false, err);
    if (status == TSR_OK)
        status = refuse_shards(dst, force, err);
    if (status == TSR_OK)
        status = tsr_journal_load(j, plan, dst, force, rows, err);
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
}

tsr_status tsr_journal_check_resumable(const tsr_plan *plan, const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_arena scratch = {0};
    bool there, has_journal = false;
    const char *text;
    size_t size, good;
    TSR_TRY(tsr_exists(dst, &there, err));
    if (there)
        TSR_TRY(tsr_exists(tsr_output_path(dst, TSR_STATE_DIR "/journal", path), &has_journal, err));
    if (!has_journal)
        return there ? check_empty(dst, err) : TSR_OK;
    const tsr_records_of of = {path, dst, kForce};
    tsr_status status = tsr_read_file(path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, err);
    if (status == TSR_OK)
        status = tsr_records_begun(text, size) ? tsr_records_read(text, size, plan, &of, NULL, &good, err)
                                               : check_empty(dst, err);
    tsr_arena_free(&scratch);
    return status;
}

void tsr_journal_take(tsr_journal *j, const tsr_plan *plan, size_t index, const tsr_finished *from,
                      const tsr_step_rows *rows)
{
    j->finished[index] = true;
    j->digests[index] = from->digests[index];
    tsr_step_rows_copy(rows, &from->rows, &plan->files[index]);
}

void tsr_journal_close(tsr_journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    for (size_t i = 0; j->locks != NULL && i < j->shards.n_present; i++) {
        if (j->locks[i] >= 0)
            close(j->locks[i]);
    }
    free(j->locks);
    tsr_arena_free(&j->arena);
    free(j->path);
    free(j->digests);
    free(j->finished);
    *j = (tsr_journal){.fd = -1};
}
