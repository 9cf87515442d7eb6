/* Opens the journal of a run, checks its disk space, and completes its output: for a single process, a shard, or
 * ranks. */
#include "convert/run/shard_files.h"

#include "convert/records/blocks_file.h"
#include "convert/records/rank_journals.h"

#include <stdlib.h>
#include <sys/stat.h>

tsr_status tsr_run_divide(tsr_run *r, tsr_err *err)
{
    if (r->shard == NULL)
        return TSR_OK;
    r->owner = calloc(r->plan->n_files + 1, sizeof *r->owner);
    return r->owner == NULL ? tsr_out_of_memory(err, "for the shards")
                            : tsr_shards_divide(r->plan, r->shard->count, r->owner, err);
}

tsr_status tsr_run_open_journal(tsr_run *r, tsr_err *err)
{
    const unsigned rank = tsr_ranks_mine(r->pool->ranks);
    if (rank > 0)
        return tsr_rank_journal_prepare(&r->journal, r->plan, r->dst, rank, err);
    if (r->shard == NULL) {
        TSR_TRY(tsr_journal_open(&r->journal, r->plan, r->dst, r->force, &r->rows, err));
        return tsr_rank_journals_take(&r->journal, r->plan, r->dst, r->force, &r->rows, err);
    }
    return r->shard->finish ? tsr_journal_open_merged(&r->journal, r->plan, r->dst, r->shard, r->owner, &r->rows, err)
                            : tsr_journal_open_shard(&r->journal, r->plan, r->dst, r->shard, r->owner, &r->rows, err);
}

tsr_status tsr_run_check_shards(tsr_run *r, tsr_err *err)
{
    if (r->shard == NULL || !r->shard->finish)
        return TSR_OK;
    return tsr_shards_check(r->plan, r->dst, r->shard, r->owner, r->journal.finished, err);
}

tsr_status tsr_run_refuse_writing(const tsr_run *r, tsr_err *err)
{
    if (r->journal.others)
        return tsr_fail(err, TSR_E_EXISTS,
                        "%s: begun without --shard, and not complete; rerun the command without --shard to complete it",
                        r->dst);
    return tsr_fail(err, TSR_E_IO,
                    "%s: not complete and not writable; it may be mounted read-only or belong to another user", r->dst);
}

/* Returns true if a file will probably be linked: no link of this run has failed, and the file systems are the same. */
static bool is_to_be_linked(const tsr_run *r, size_t file)
{
    struct stat st;
    return r->whole != NULL && r->whole[file] && r->links.copied == 0 && stat(r->dst, &st) == 0 &&
           (uint64_t)st.st_dev == tsr_links_source(r->plan, file)->stamp.device;
}

/* Lists the files that need no disk space: finished ones, those of other shards and ranks, links, and of an output that
 * is sent, all but those that are in the spool at a time. */
static bool *settled(const tsr_run *r)
{
    bool *const list = calloc(r->plan->n_files + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < r->plan->n_files; i++)
        list[i] = r->journal.finished[i] || tsr_is_others(r, i) || is_to_be_linked(r, i) ||
                  (i < r->claimed && !r->files[i].mine);
    if (list != NULL && r->uploads != NULL)
        tsr_uploads_settle(r->plan, list);
    return list;
}

tsr_status tsr_run_check_space(const tsr_run *r, uint64_t promised, tsr_err *err)
{
    bool *const list = settled(r);
    const tsr_status status =
        list == NULL ? tsr_out_of_memory(err, NULL) : tsr_check_space(r->plan, r->dst, list, promised, err);
    free(list);
    return status;
}

tsr_status tsr_run_explain_no_space(const tsr_run *r, tsr_err *err)
{
    bool *const list = settled(r);
    const tsr_status status =
        list == NULL ? TSR_E_NOSPACE
                     : tsr_explain_no_space(r->plan, r->dst, list, err); /* otherwise the system's message stays */
    free(list);
    return status;
}

tsr_status tsr_run_finish(tsr_run *r, tsr_err *err)
{
    tsr_plan_blocks blocks;
    const bool merges = r->journal.merges;
    if (merges)
        TSR_TRY(tsr_run_check_shards(r, err));
    /* Sequences and ranks finish files out of order, but the journal of a complete output is in the plan's order. */
    const bool ranks = tsr_ranks_count(r->pool->ranks) > 1;
    if (merges || ((r->journal.unordered || ranks) && !r->journal.read_only))
        TSR_TRY(tsr_journal_rewrite(&r->journal, r->plan, &r->rows, err));
    if (ranks && !r->journal.read_only)
        TSR_TRY(tsr_rank_journals_remove(r->dst, err));
    if (r->shard != NULL && !merges)
        return TSR_OK;
    TSR_TRY(tsr_blocks_write(r->plan, r->dst, &blocks, err));
    TSR_TRY(tsr_write_texts(&r->digests, r->dst, &r->rows, &blocks, err));
    if (r->uploads != NULL)
        TSR_TRY(tsr_uploads_finish(r->uploads, blocks.tensors > 0, err));
    return merges ? tsr_shards_forget(r->dst, &r->journal.shards, err) : TSR_OK;
}
