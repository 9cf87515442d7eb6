/* What a run does otherwise where shards of the plan are made by several processes. */
#include "convert/engine/engine_run.h"

#include "convert/engine/blocks_file.h"

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
    if (r->shard == NULL)
        return tsr_journal_open(&r->journal, r->plan, r->dst, r->force, r->rows, err);
    return r->shard->finish ? tsr_journal_open_merged(&r->journal, r->plan, r->dst, r->shard, r->owner, r->rows, err)
                            : tsr_journal_open_shard(&r->journal, r->plan, r->dst, r->shard, r->owner, r->rows, err);
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
        return tsr_fail(
            err, TSR_E_EXISTS,
            "%s: finished, or begun, as a whole, and not complete: the command without --shard completes it", r->dst);
    return tsr_fail(err, TSR_E_IO,
                    "%s: not complete, and nothing can be written there: is it mounted read-only, or another user's?",
                    r->dst);
}

/* Whether a file is about to be linked, as far as can be known: a link leads to no other file system. */
static bool is_to_be_linked(const tsr_run *r, size_t file)
{
    struct stat st;
    return r->whole != NULL && r->whole[file] && r->links.copied == 0 && stat(r->dst, &st) == 0 &&
           (uint64_t)st.st_dev == tsr_links_source(r->plan, file)->stamp.device;
}

/* Which files need no room: those that are finished, those of others, and links. */
static bool *settled(const tsr_run *r)
{
    bool *const list = calloc(r->plan->n_files + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < r->plan->n_files; i++)
        list[i] = r->journal.finished[i] || tsr_is_others(r, i) || is_to_be_linked(r, i);
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
        list == NULL ? TSR_E_NOSPACE : tsr_explain_no_space(r->plan, r->dst, list, err); /* else as the system said */
    free(list);
    return status;
}

tsr_status tsr_run_finish(tsr_run *r, tsr_err *err)
{
    tsr_plan_blocks blocks;
    const bool merges = r->journal.merges;
    if (merges)
        TSR_TRY(tsr_run_check_shards(r, err));
    /* Lanes finish files in an order that is not the plan's; the journal of a whole output is the same however it came about. */
    if (merges || (r->journal.unordered && !r->journal.read_only))
        TSR_TRY(tsr_journal_rewrite(&r->journal, r->plan, r->rows, err));
    if (r->shard != NULL && !merges)
        return TSR_OK;
    TSR_TRY(tsr_blocks_write(r->plan, r->dst, &blocks, err));
    TSR_TRY(tsr_write_texts(&r->digests, r->dst, r->rows, &blocks, err));
    return merges ? tsr_shards_forget(r->dst, &r->journal.shards, err) : TSR_OK;
}
