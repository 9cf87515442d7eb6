/* Divides the files of a run among ranks, and combines what they have made. */
#include "convert/run/rank_files.h"

#include "convert/run/amax_pass.h"

#include <stdlib.h>

tsr_status tsr_run_share_journal(tsr_run *r, tsr_err *err)
{
    tsr_ranks *const ranks = r->pool->ranks;
    const size_t n = r->plan->n_files;
    if (ranks == NULL)
        return TSR_OK;
    /* Each file is in one rank only; the others have zeros. */
    TSR_TRY(tsr_ranks_combine(ranks, r->journal.finished, n * sizeof *r->journal.finished, err));
    if (r->sent != NULL)
        TSR_TRY(tsr_ranks_combine(ranks, r->sent, n * sizeof *r->sent, err));
    TSR_TRY(tsr_ranks_combine(ranks, r->journal.digests, n * sizeof *r->journal.digests, err));
    TSR_TRY(tsr_ranks_combine(ranks, r->rows.stats, r->plan->n_steps * sizeof *r->rows.stats, err));
    return tsr_ranks_combine(ranks, r->rows.sums, r->plan->n_steps * sizeof *r->rows.sums, err);
}

/* ---- claiming ---- */

/* Counts what another rank reads, for the progress of this one. */
static void count_elsewhere(tsr_run *r, size_t file)
{
    const tsr_out_file *const f = &r->plan->files[file];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        r->steps_done += tsr_run_makes_tensor(r->plan, s);
        if (!r->verifying)
            r->bytes_elsewhere += tsr_step_input(&r->plan->steps[s]);
    }
    r->bytes_elsewhere += r->verifying ? f->bytes : 0;
}

static void want_amaxes(tsr_run *r, size_t file)
{
    const tsr_out_file *const f = &r->plan->files[file];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps && !r->verifying; s++)
        tsr_run_want_amax(r, r->plan->steps[s].amax);
}

void tsr_run_claim_files(tsr_run *r, size_t file)
{
    tsr_err err = {0};
    if (r->claimed > file)
        return;
    for (; r->claimed <= file && r->failure.status == TSR_OK; r->claimed++) {
        tsr_file_state *const f = &r->files[r->claimed];
        const tsr_status status = f->wanted ? tsr_claims_take(&r->claims, r->claimed, &f->mine, &err) : TSR_OK;
        if (status != TSR_OK)
            tsr_run_note_failure(r, status, &err);
        else if (f->mine)
            want_amaxes(r, r->claimed);
        else if (f->wanted)
            count_elsewhere(r, r->claimed);
    }
    pthread_cond_broadcast(&r->pool->changed); /* the committer waits for the next file */
}

/* ---- combining ---- */

void tsr_run_note_done(tsr_run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        const tsr_file_state *const f = &r->files[i];
        r->done_here[i] = r->done_here[i] || (f->mine && f->phase == TSR_FILE_DONE && r->journal.finished[i]);
    }
}

/* Zeroes the entries of files of other ranks. */
static void clear_others(tsr_run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        if (r->done_here[i])
            continue;
        r->journal.finished[i] = false;
        r->journal.digests[i] = 0;
        tsr_digests_clear(&r->digests, i);
        tsr_step_rows_clear(&r->rows, &r->plan->files[i]);
    }
}

tsr_status tsr_run_combine_verified(tsr_run *r, tsr_err *err)
{
    if (r->pool->ranks == NULL)
        return TSR_OK;
    clear_others(r);
    return tsr_run_share_journal(r, err);
}

/* Counts of what a rank has done. */
typedef struct counts {
    uint64_t bytes_read, bytes_written, files, threads;
} counts;

static tsr_status combine_counts(tsr_run *r, counts *all, tsr_engine_result *result, tsr_err *err)
{
    const unsigned n = tsr_ranks_count(r->pool->ranks), mine = tsr_ranks_mine(r->pool->ranks);
    all[mine] =
        (counts){.bytes_read = result->bytes_read, .bytes_written = result->bytes_written, .threads = result->threads};
    for (size_t i = 0; i < r->plan->n_files; i++)
        all[mine].files += r->done_here[i];
    TSR_TRY(tsr_ranks_combine(r->pool->ranks, all, n * sizeof *all, err));
    result->bytes_read = result->bytes_written = result->threads = 0;
    for (unsigned k = 0; k < n; k++) {
        result->bytes_read += all[k].bytes_read;
        result->bytes_written += all[k].bytes_written;
        result->threads += (unsigned)all[k].threads;
        result->files_elsewhere += k == mine ? 0 : all[k].files;
    }
    return TSR_OK;
}

tsr_status tsr_run_combine_outputs(tsr_run *r, tsr_engine_result *result, tsr_err *err)
{
    tsr_ranks *const ranks = r->pool->ranks;
    tsr_digests *const d = &r->digests;
    const size_t n = r->plan->n_files;
    if (ranks == NULL)
        return TSR_OK;
    counts *const all = calloc(tsr_ranks_count(ranks), sizeof *all);
    tsr_status status = all == NULL ? tsr_out_of_memory(err, "for the counts of ranks") : TSR_OK;
    status = tsr_ranks_share_status(ranks, status, err);
    clear_others(r);
    if (status == TSR_OK)
        status = tsr_run_share_journal(r, err);
    if (status == TSR_OK)
        status = tsr_ranks_combine(ranks, d->headers, n * sizeof *d->headers, err);
    if (status == TSR_OK)
        status = tsr_ranks_combine(ranks, d->sizes, n * sizeof *d->sizes, err);
    if (status == TSR_OK)
        status = tsr_ranks_combine(ranks, d->pieces, d->n_pieces * sizeof *d->pieces, err);
    if (status == TSR_OK)
        status = combine_counts(r, all, result, err);
    free(all);
    return status;
}
