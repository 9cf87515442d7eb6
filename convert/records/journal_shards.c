/* Opens the journals of shards, and puts them together. */
#include "convert/records/journal_open.h"

#include "common/file.h"
#include "convert/records/destination.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char kForce[] = "--force";

/* Begins or opens a shard's journal. The other shards are checked before anything is written. One of them may begin at
 * the same time, so they are checked again when they can see this journal: of two that do not match, at least one
 * withdraws. */
static tsr_status open_shard(tsr_journal *j, const tsr_plan *plan, const char *dst, const uint32_t *owner,
                             const char *whole, const tsr_step_rows *rows, tsr_err *err)
{
    TSR_TRY(tsr_shard_admit(plan, dst, j->shard, err));
    TSR_TRY(tsr_journal_open_locked(j, dst, false, err));
    bool begun, other = false;
    TSR_TRY(tsr_shards_begun(j->path, &begun, err));
    if (!j->read_only)
        tsr_shard_remove_parts(plan, dst, j->shard, owner);
    tsr_status status = tsr_journal_load(j, plan, dst, false, rows, err);
    if (status == TSR_OK && !begun)
        status = tsr_shard_admit(plan, dst, j->shard, err);
    if (status == TSR_OK && !begun)
        status = tsr_shards_begun(whole, &other, err);
    if (status == TSR_OK && other)
        status = tsr_fail_as(err, TSR_ERROR_TWO_AT_ONCE, TSR_E_EXISTS,
                             "%s: another process is writing this output; wait for it, or name another directory", dst);
    if (status != TSR_OK && !begun && !j->read_only)
        unlink(j->path);
    return status;
}

tsr_status tsr_journal_open_shard(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_shard *shard,
                                  const uint32_t *owner, const tsr_step_rows *rows, tsr_err *err)
{
    char path[PATH_MAX], whole[PATH_MAX];
    *j = (tsr_journal){.fd = -1, .shard = shard};
    TSR_TRY(tsr_journal_check_plan(plan, dst, err));
    TSR_TRY(tsr_journal_make_folders(dst, false, err));
    tsr_shard_journal(dst, shard->index, shard->count, path);
    tsr_output_path(dst, TSR_STATE_DIR "/journal", whole);
    /* If a run without --shard has begun the output, or the shards were joined, this shard can only verify. */
    bool mine;
    TSR_TRY(tsr_exists(path, &mine, err));
    if (!mine)
        TSR_TRY(tsr_shards_begun(whole, &j->others, err));
    tsr_status status = tsr_journal_prepare(j, plan, j->others ? whole : path, dst, err);
    if (status == TSR_OK && j->others) {
        status = tsr_journal_open_locked(j, dst, true, err);
        if (status == TSR_OK)
            status = tsr_journal_load(j, plan, dst, false, rows, err);
        for (size_t i = 0; status == TSR_OK && i < plan->n_files; i++)
            j->finished[i] = j->finished[i] && owner[i] == shard->index;
    } else if (status == TSR_OK) {
        status = open_shard(j, plan, dst, owner, whole, rows, err);
    }
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
}

/* Takes over the records of a shard for its own files; `records` is scratch space. */
static tsr_status take_shard(tsr_journal *j, const tsr_plan *plan, const char *dst, unsigned index,
                             const uint32_t *owner, tsr_finished *records, const tsr_step_rows *rows, tsr_err *err)
{
    char path[PATH_MAX];
    const tsr_records_of of = {
        .path = tsr_shard_journal(dst, index, j->shard->count, path), .dst = dst, .to_start_over = "its removal"};
    TSR_TRY(tsr_finished_read(records, plan, &of, err));
    for (size_t i = 0; i < plan->n_files; i++) {
        if (owner[i] == index && records->finished[i])
            tsr_journal_take(j, plan, i, records, rows);
    }
    return TSR_OK;
}

static tsr_status take_shards(tsr_journal *j, const tsr_plan *plan, const char *dst, const uint32_t *owner,
                              const tsr_step_rows *rows, tsr_err *err)
{
    tsr_finished records;
    tsr_status status = tsr_finished_begin(&records, plan, dst, err);
    for (size_t i = 0; status == TSR_OK && i < j->shards.n_present; i++)
        status = take_shard(j, plan, dst, j->shards.present[i], owner, &records, rows, err);
    tsr_finished_free(&records);
    return status;
}

/* Takes over the records of the directory's own journal: `finish` may have been stopped between writing it and
 * removing the shards' journals. A journal that is torn or belongs to another plan is ignored and rewritten. */
static void take_whole(tsr_journal *j, const tsr_plan *plan, const char *dst, const tsr_step_rows *rows)
{
    tsr_arena scratch = {0};
    const char *text;
    size_t size, good;
    const tsr_records_of of = {.path = j->path, .dst = dst, .to_start_over = kForce};
    tsr_finished to = {.digests = j->digests, .finished = j->finished, .rows = *rows};
    if (tsr_read_file(j->path, TSR_MAX_JOURNAL_BYTES, &scratch, &text, &size, NULL) != TSR_OK ||
        !tsr_records_begun(text, size) || tsr_records_read(text, size, plan, &of, &to, &good, NULL) != TSR_OK)
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
                                   const uint32_t *owner, const tsr_step_rows *rows, tsr_err *err)
{
    char path[PATH_MAX];
    *j = (tsr_journal){.fd = -1, .shard = shard, .merges = true};
    TSR_TRY(tsr_journal_check_plan(plan, dst, err));
    tsr_status status = tsr_journal_prepare(j, plan, tsr_output_path(dst, TSR_STATE_DIR "/journal", path), dst, err);
    if (status == TSR_OK)
        status = tsr_journal_open_locked(j, dst, false, err);
    errno = j->why_read_only;
    if (status == TSR_OK && j->read_only)
        status = tsr_fail_errno(err, "%s: not writable", j->path);
    if (status == TSR_OK)
        status = lock_shards(j, dst, err);
    if (status == TSR_OK)
        take_whole(j, plan, dst, rows);
    if (status == TSR_OK)
        status = take_shards(j, plan, dst, owner, rows, err);
    if (status == TSR_OK)
        tsr_remove_state_files(dst, TSR_PART_SUFFIX);
    if (status != TSR_OK)
        tsr_journal_close(j);
    return status;
}
