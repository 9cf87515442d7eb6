/* Reading, checking and extending the journal. */
#include "convert/engine/journal.h"

#include "common/file.h"
#include "convert/engine/blocks_file.h"
#include "convert/engine/destination.h"
#include "convert/engine/journal_records.h"

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

/* Removes the outputs of an earlier run that the journal lists, finished or not: they would pass for this one's. */
static tsr_status remove_outputs(const tsr_names *names, bool old_parts, const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < names->count; i++) {
        TSR_TRY(tsr_remove_file(tsr_output_path(dst, names->items[i], path), err));
        /* Before version 2, a temporary file lay beside the file that it became. */
        if (old_parts && strlen(path) + 5 < sizeof path)
            unlink(strcat(path, ".part"));
    }
    return TSR_OK;
}

/* The manifest of an earlier run speaks of files that are gone now. */
static tsr_status remove_manifest(const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    return tsr_remove_file(tsr_output_path(dst, TSR_MANIFEST_NAME, path), err);
}

/* Whether the directory holds anything but Tessera's own folder. */
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
            status = tsr_fail(err, TSR_E_EXISTS,
                              "%s: not empty ('%s'), and no output of Tessera: name another directory, "
                              "or --force to write into this one",
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
        return tsr_fail(err, TSR_E_EXISTS, "%s: another process is writing this output", path);
    return tsr_fail_errno(err,
                          "%s: cannot lock it, so nothing would keep a second process away: name a directory on a file "
                          "system that has locks",
                          path);
}

/* Writes a new file in place of the old one instead of changing it, since it may be a hard link that another output
 * shares. */
tsr_status tsr_journal_rewrite(tsr_journal *j, const tsr_plan *plan, const tsr_quant_stats *rows, tsr_err *err)
{
    tsr_text t = {0};
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s" TSR_PART_SUFFIX, j->path);
    tsr_records_add_head(&t, plan, j->merges ? NULL : j->shard);
    for (size_t i = 0; i < plan->n_files; i++) {
        if (j->finished[i])
            tsr_records_add_file(&t, plan, i, j->digests[i], rows);
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
    tsr_records_add_file(&t, plan, index, digest, rows);
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = tsr_write_at(j->fd, j->path, t.data, t.size, j->end, err);
    if (status == TSR_OK && tsr_sync_data(j->fd) != 0)
        status = tsr_fail_errno(err, "%s: cannot sync", j->path);
    if (status == TSR_OK)
        j->end += t.size;
    else
        (void)!tsr_resize(j->fd, j->end); /* what is left of it would be cut off, or found wrong, by the next run */
    tsr_text_free(&t);
    j->unordered = j->unordered || index < j->last;
    j->last = index + 1;
    j->digests[index] = digest;
    j->finished[index] = status == TSR_OK;
    return status;
}

/* ---- opening ---- */

/* Opens and locks the journal, which reserves the directory for this process, or its shard. A read-only directory is only
 * read. `read_only`: whatever the directory is. */
static tsr_status open_locked(tsr_journal *j, const char *dst, bool read_only, tsr_err *err)
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

/* Makes the directory an empty output of this plan, whatever it holds; of a shard, only begins its journal. */
static tsr_status start_over(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_names *planned,
                             const tsr_names *old, bool old_parts, const tsr_quant_stats *rows, tsr_err *err)
{
    TSR_TRY(tsr_check_strays(dst, planned, old, err));
    if (j->shard == NULL) {
        TSR_TRY(tsr_withdraw(dst, planned, err));
        TSR_TRY(tsr_withdraw(dst, old, err));
        TSR_TRY(remove_outputs(old, old_parts, dst, err));
        tsr_remove_empty_folders(dst, old);
        TSR_TRY(tsr_blocks_remove(dst, err));
        TSR_TRY(remove_manifest(dst, err));
    }
    return tsr_journal_rewrite(j, plan, rows, err);
}

static tsr_status carry_on(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_names *planned,
                           const char *text, size_t size, tsr_quant_stats *rows, tsr_err *err)
{
    size_t good = 0;
    const tsr_records_of of = {.path = j->path, .dst = dst, .to_start_over = kForce};
    tsr_finished to = {.digests = j->digests, .finished = j->finished, .rows = rows};
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

/* What is in the way of a new journal: whatever lies there or, of a shard, what its neighbours have not put there. */
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

static tsr_status load(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force, tsr_quant_stats *rows,
                       tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names planned, old;
    const char *text;
    size_t size;
    bool fresh = false, old_parts = false;
    tsr_status status;
    TSR_GOTO(tsr_plan_names(plan, &scratch, &planned, err));
    TSR_GOTO(tsr_read_file(j->path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, err));
    TSR_GOTO(tsr_records_list(text, size, TSR_OUTPUT_RECORD, &scratch, &old, err));
    TSR_GOTO(tsr_check_names(dst, &old, "the journal in " TSR_STATE_DIR ", which Tessera cannot have written,",
                             TSR_E_FORMAT, err));
    fresh = !tsr_records_begun(text, size, &old_parts);
    if (j->read_only && (fresh || force)) {
        errno = j->why_read_only;
        status = tsr_fail_errno(err, "%s: cannot be written to", j->path);
        goto out;
    }
    if (!j->read_only && j->shard == NULL)
        tsr_remove_parts(dst);
    if (fresh && !force)
        TSR_GOTO(check_room(j, dst, err));
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
    if (!there && !force) {
        const tsr_status status = check_empty(dst, err);
        if (status != TSR_OK && lstat(folder, &st) != 0) /* else another shard has just begun */
            return status;
    }
    TSR_TRY(tsr_make_dirs(folder, err));
    /* Perhaps made by a run that was killed before it could do this. */
    if (access(dst, W_OK) != 0)
        return TSR_OK;
    TSR_TRY(tsr_sync_parent(dst, err));
    return tsr_sync_dir(dst, err);
}

/* Allocates what a journal named `name` of this plan needs. */
static tsr_status prepare(tsr_journal *j, const tsr_plan *plan, const char *path, const char *dst, tsr_err *err)
{
    j->digests = calloc(plan->n_files + 1, sizeof *j->digests);
    j->finished = calloc(plan->n_files + 1, sizeof *j->finished);
    j->path = strdup(path);
    return j->digests == NULL || j->finished == NULL || j->path == NULL
               ? tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", dst)
               : TSR_OK;
}

/* Shards and one process for all exclude each other. With the journal's lock held, no shard can begin. */
static tsr_status refuse_shards(const char *dst, bool force, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_shards found;
    tsr_status status = tsr_shards_find(dst, &scratch, &found, err);
    if (status == TSR_OK && found.n_present > 0)
        status = tsr_fail(err, TSR_E_EXISTS,
                          "%s: begun as %u shards: run those that are missing with --shard, then 'tessera finish'%s",
                          dst, found.count, force ? "; to start over, remove the directory" : "");
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_journal_open(tsr_journal *j, const tsr_plan *plan, const char *dst, bool force, tsr_quant_stats *rows,
                            tsr_err *err)
{
    char path[PATH_MAX];
    *j = (tsr_journal){.fd = -1};
    TSR_TRY(check_plan(plan, dst, err));
    TSR_TRY(make_folders(dst, force, err));
    tsr_status status = prepare(j, plan, tsr_output_path(dst, TSR_STATE_DIR "/journal", path), dst, err);
    if (status == TSR_OK)
        status = open_locked(j, dst, false, err);
    if (status == TSR_OK)
        status = refuse_shards(dst, force, err);
    if (status == TSR_OK)
        status = load(j, plan, dst, force, rows, err);
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
}

/* Begins or opens a shard's journal. Neighbours are looked at before anything is written and, since one of them may begin
 * at this very moment, again when they can see this one: of two that do not fit, one gives way at least. */
static tsr_status open_shard(tsr_journal *j, const tsr_plan *plan, const char *dst, const uint32_t *owner,
                             const char *whole, tsr_quant_stats *rows, tsr_err *err)
{
    TSR_TRY(tsr_shard_admit(plan, dst, j->shard, err));
    TSR_TRY(open_locked(j, dst, false, err));
    bool begun, other = false;
    TSR_TRY(tsr_shards_begun(j->path, &begun, err));
    if (!j->read_only)
        tsr_shard_remove_parts(plan, dst, j->shard, owner);
    tsr_status status = load(j, plan, dst, false, rows, err);
    if (status == TSR_OK && !begun)
        status = tsr_shard_admit(plan, dst, j->shard, err);
    if (status == TSR_OK && !begun)
        status = tsr_shards_begun(whole, &other, err);
    if (status == TSR_OK && other)
        status = tsr_fail(err, TSR_E_EXISTS, "%s: another process is writing this output", dst);
    if (status != TSR_OK && !begun && !j->read_only)
        unlink(j->path);
    return status;
}

tsr_status tsr_journal_open_shard(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_shard *shard,
                                  const uint32_t *owner, tsr_quant_stats *rows, tsr_err *err)
{
    char path[PATH_MAX], whole[PATH_MAX];
    *j = (tsr_journal){.fd = -1, .shard = shard};
    TSR_TRY(check_plan(plan, dst, err));
    TSR_TRY(make_folders(dst, false, err));
    tsr_shard_journal(dst, shard->index, shard->count, path);
    tsr_output_path(dst, TSR_STATE_DIR "/journal", whole);
    /* Put together already, or another process's: then there is something to verify at most. */
    bool mine;
    TSR_TRY(tsr_exists(path, &mine, err));
    if (!mine)
        TSR_TRY(tsr_shards_begun(whole, &j->others, err));
    tsr_status status = prepare(j, plan, j->others ? whole : path, dst, err);
    if (status == TSR_OK && j->others) {
        status = open_locked(j, dst, true, err);
        if (status == TSR_OK)
            status = load(j, plan, dst, false, rows, err);
        for (size_t i = 0; status == TSR_OK && i < plan->n_files; i++)
            j->finished[i] = j->finished[i] && owner[i] == shard->index;
    } else if (status == TSR_OK) {
        status = open_shard(j, plan, dst, owner, whole, rows, err);
    }
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
}

/* Takes over what the journal of a shard says of the files that are its own; `said` has room for it. */
static tsr_status take_shard(tsr_journal *j, const tsr_plan *plan, const char *dst, unsigned index,
                             const uint32_t *owner, tsr_finished *said, tsr_quant_stats *rows, tsr_err *err)
{
    tsr_arena scratch = {0};
    char path[PATH_MAX];
    const char *text;
    size_t size, good;
    const tsr_records_of of = {
        .path = tsr_shard_journal(dst, index, j->shard->count, path), .dst = dst, .to_start_over = "its removal"};
    memset(said->finished, 0, plan->n_files * sizeof *said->finished);
    tsr_status status = tsr_read_file(path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, err);
    if (status == TSR_OK)
        status = tsr_records_read(text, size, plan, &of, said, &good, err);
    for (size_t i = 0; status == TSR_OK && i < plan->n_files; i++) {
        const tsr_out_file *const f = &plan->files[i];
        if (owner[i] != index || !said->finished[i])
            continue;
        j->finished[i] = true;
        j->digests[i] = said->digests[i];
        memcpy(rows + f->first_step, said->rows + f->first_step, f->n_steps * sizeof *rows);
    }
    tsr_arena_free(&scratch);
    return status;
}

static tsr_status take_shards(tsr_journal *j, const tsr_plan *plan, const char *dst, const uint32_t *owner,
                              tsr_quant_stats *rows, tsr_err *err)
{
    tsr_finished said = {.digests = calloc(plan->n_files + 1, sizeof *said.digests),
                         .finished = calloc(plan->n_files + 1, sizeof *said.finished),
                         .rows = calloc(plan->n_steps + 1, sizeof *said.rows)};
    tsr_status status = said.digests == NULL || said.finished == NULL || said.rows == NULL
                            ? tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", dst)
                            : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < j->shards.n_present; i++)
        status = take_shard(j, plan, dst, j->shards.present[i], owner, &said, rows, err);
    free(said.digests);
    free(said.finished);
    free(said.rows);
    return status;
}

/* What the journal of the whole says: `finish` removes the shards' when it stands, and may have been stopped between two. One that
 * says nothing, or belongs to something else, is written anew. */
static void take_whole(tsr_journal *j, const tsr_plan *plan, const char *dst, tsr_quant_stats *rows)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size, good;
    bool old;
    const tsr_records_of of = {.path = j->path, .dst = dst, .to_start_over = kForce};
    tsr_finished to = {.digests = j->digests, .finished = j->finished, .rows = rows};
    if (tsr_read_file(j->path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, NULL) != TSR_OK ||
        !tsr_records_begun(text, size, &old) || tsr_records_read(text, size, plan, &of, &to, &good, NULL) != TSR_OK)
        memset(j->finished, 0, plan->n_files * sizeof *j->finished);
    tsr_arena_free(&scratch);
}

static tsr_status lock_shards(tsr_journal *j, const char *dst, tsr_err *err)
{
    TSR_TRY(tsr_shards_find(dst, &j->arena, &j->shards, err));
    j->locks = malloc((j->shards.n_present + 1) * sizeof *j->locks);
    if (j->locks == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", dst);
    for (size_t i = 0; i < j->shards.n_present; i++)
        j->locks[i] = -1;
    return tsr_shards_lock(dst, &j->shards, j->locks, err);
}

tsr_status tsr_journal_open_merged(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_shard *shard,
                                   const uint32_t *owner, tsr_quant_stats *rows, tsr_err *err)
{
    char path[PATH_MAX];
    *j = (tsr_journal){.fd = -1, .shard = shard, .merges = true};
    TSR_TRY(check_plan(plan, dst, err));
    tsr_status status = prepare(j, plan, tsr_output_path(dst, TSR_STATE_DIR "/journal", path), dst, err);
    if (status == TSR_OK)
        status = open_locked(j, dst, false, err);
    errno = j->why_read_only;
    if (status == TSR_OK && j->read_only)
        status = tsr_fail_errno(err, "%s: cannot be written to", j->path);
    if (status == TSR_OK)
        status = lock_shards(j, dst, err);
    if (status == TSR_OK)
        take_whole(j, plan, dst, rows);
    if (status == TSR_OK)
        status = take_shards(j, plan, dst, owner, rows, err);
    if (status == TSR_OK)
        tsr_remove_parts(dst);
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
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
