/* Runs the phases of plans: verifies finished files, makes the others, completes the output. */
#include "convert/run/engine.h"

#include "common/parallel/threads.h"
#include "convert/records/blocks_file.h"
#include "convert/records/rank_journals.h"
#include "convert/run/amax_pass.h"
#include "convert/run/output_files.h"
#include "convert/run/rank_files.h"
#include "convert/run/run_memory.h"
#include "convert/run/scheduler.h"
#include "convert/run/shard_files.h"
#include "convert/run/units.h"
#include "convert/run/workers.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Counts the bytes that are read and written for a file in the current phase. */
static void count_file(tsr_run *r, size_t file)
{
    const tsr_out_file *const f = &r->plan->files[file];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        const tsr_step *const step = &r->plan->steps[s];
        r->steps_total += tsr_run_makes_tensor(r->plan, s);
        if (!r->verifying && !tsr_is_coproduced(r, s))
            r->bytes_total += tsr_step_input(step) + tsr_run_count_amax(r, step->amax);
        if (!r->verifying && r->files[file].mine && !tsr_is_coproduced(r, s))
            tsr_run_want_amax(r, step->amax);
    }
    r->bytes_total += r->verifying ? f->bytes : 0;
}

/* Chooses the files that take part in the current phase. Returns their number. Ranks claim theirs later. */
static uint64_t choose_files(tsr_run *r)
{
    const bool alone = r->pool->ranks == NULL;
    uint64_t chosen = 0;
    r->next_amax = 0;
    r->n_open = 0;
    r->bytes_read = r->bytes_total = r->bytes_elsewhere = r->steps_done = r->steps_total = 0;
    r->claims = (tsr_claims){.ranks = r->pool->ranks, .counter = r->verifying ? 0 : 1};
    r->claimed = alone ? r->plan->n_files : 0;
    for (size_t i = 0; i < r->plan->n_files; i++) {
        const bool wanted = r->journal.finished[i] == r->verifying && !tsr_is_others(r, i) && !tsr_is_sent(r, i);
        r->files[i] = (tsr_file_state){.io = {.fd = -1, .direct = -1}, .wanted = wanted, .mine = wanted && alone};
        chosen += wanted;
    }
    for (size_t i = 0; i < r->plan->n_files; i++) {
        if (r->files[i].wanted)
            count_file(r, i);
    }
    return chosen;
}

/* Frees what a phase has open and removes its unfinished files, because the next run makes them from the start. */
static void abandon_files(tsr_run *r)
{
    for (size_t s = 0; s < r->plan->n_steps; s++) {
        tsr_run_free_step(r, s);
        tsr_text_free(&r->frames[s]);
    }
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        tsr_run_close_file(&r->files[i]);
        if (r->files[i].named && r->files[i].phase != TSR_FILE_DONE)
            unlink(tsr_run_path(r, i, path));
        if (!r->verifying && r->files[i].mine && r->files[i].phase != TSR_FILE_DONE &&
            r->files[i].phase != TSR_FILE_WAITING)
            unlink(tsr_part_path(r->dst, i, path));
    }
}

/* Returns true if a run may bypass the page cache. Then several units in progress are faster. */
static bool is_direct(const tsr_run *r)
{
    if (!r->verifying)
        return r->io.summary.reads || r->io.summary.writes;
    for (size_t i = 0; i < r->plan->n_files && r->io.mode != TSR_IO_BUFFERED; i++) {
        if (r->files[i].mine && r->plan->files[i].bytes >= tsr_io_large(r->io.mode))
            return true;
    }
    return false;
}

/* Runs a phase of all runs that are present. */
static void run_phase(tsr_pool *pool, const char *phase)
{
    bool any = false;
    pool->depth = 1;
    for (size_t i = 0; i < pool->n_runs; i++) {
        any = any || pool->runs[i].present;
        if (pool->runs[i].present && is_direct(&pool->runs[i]))
            pool->depth = pool->most_depth;
        tsr_schedule_begin(&pool->runs[i]);
    }
    if (any)
        tsr_workers_run(pool, phase);
    for (size_t i = 0; i < pool->n_runs; i++) {
        if (pool->runs[i].present)
            abandon_files(&pool->runs[i]);
    }
}

/* Marks finished files as unfinished if they, or their block statistics, are missing or have another size. The files
 * are not read. */
static tsr_status drop_missing(tsr_run *r, tsr_err *err)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        struct stat st;
        const tsr_out_file *const f = &r->plan->files[i];
        const bool sent = tsr_is_sent(r, i);
        bool kept = false;
        if (!r->journal.finished[i])
            continue;
        const bool there = !sent && stat(tsr_run_path(r, i, path), &st) == 0;
        if (!sent && !there && errno != ENOENT && errno != ENOTDIR)
            return tsr_fail_errno(err, "%s: cannot access it", path);
        if (sent || (there && S_ISREG(st.st_mode) && (f->appended || (uint64_t)st.st_size == f->bytes)))
            TSR_TRY(tsr_blocks_kept(r->plan, r->dst, i, &kept, err));
        r->journal.finished[i] = kept;
        if (sent)
            r->sent[i] = r->done_here[i] = kept;
    }
    return TSR_OK;
}

/* Removes files without a record in the journal, which a killed run left. They are made again and need the space. */
static void remove_unknown(const tsr_run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        if (!r->journal.finished[i] && !tsr_is_others(r, i))
            unlink(tsr_run_path(r, i, path));
    }
}

/* Removes config.json and the index. During a repair, too, no loader may take the directory for a model. */
static tsr_status withdraw(tsr_run *r, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names names;
    tsr_status status = tsr_plan_names(r->plan, &scratch, &names, err);
    if (status == TSR_OK) {
        names.items += r->plan->n_files; /* skips the files: a finished raw copy may have the name of a config.json */
        names.count -= r->plan->n_files;
        status = tsr_withdraw(r->dst, &names, err);
    }
    tsr_arena_free(&scratch);
    return status;
}

/* Checks the sources again, even if the phase failed: files made from a changed source are discarded. */
static tsr_status check_sources(tsr_run *r, tsr_status status, tsr_err *err)
{
    tsr_err why = {0};
    const tsr_status changed = tsr_watch_check_all(&r->watch, r->plan, r->journal.finished, &why);
    if (changed == TSR_OK)
        return status;
    const tsr_status noted = tsr_journal_rewrite(&r->journal, r->plan, &r->rows, NULL);
    if (noted == TSR_OK)
        remove_unknown(r);
    if (status == TSR_OK)
        tsr_run_fail(r, changed, &why);
    return status == TSR_OK ? tsr_fail_with(err, changed, &why) : status;
}

/* ---- one run, from phase to phase ---- */

/* Opens the journal, finds files that were sent, and drops files that are missing. Rank 0 does so for all ranks. */
static tsr_status open_run(tsr_run *r, tsr_err *err)
{
    const bool sends = r->uploads != NULL && tsr_ranks_mine(r->pool->ranks) == 0;
    TSR_TRY(tsr_run_open_journal(r, err));
    for (size_t i = 0; i < r->plan->n_files; i++)
        r->noted += r->journal.finished[i];
    if (sends)
        TSR_TRY(tsr_uploads_find(r->uploads, &r->journal, r->force, &r->digests, r->sent, err));
    TSR_TRY(drop_missing(r, err));
    bool all_sent = true;
    for (size_t i = 0; i < r->plan->n_files; i++)
        all_sent = all_sent && (tsr_is_sent(r, i) || tsr_is_others(r, i));
    if (sends && !all_sent && !r->journal.read_only)
        TSR_TRY(tsr_uploads_withdraw(r->uploads, err));
    return tsr_run_check_shards(r, err);
}

/* Begins the first phase: finished files are verified. */
static tsr_status begin_verifying(tsr_run *r, tsr_err *err)
{
    TSR_TRY(tsr_run_share_journal(r, err));
    r->verifying = true;
    r->present = choose_files(r) > 0;
    return TSR_OK;
}

/* Ends the first phase: notes which files have the digests of the journal. */
static tsr_status end_verifying(tsr_run *r, tsr_err *err)
{
    tsr_run_note_done(r);
    return tsr_run_combine_verified(r, err);
}

/* Returns the bytes that runs earlier in the list will write to its file system. */
static uint64_t promised(const tsr_run *r)
{
    struct stat mine, other;
    uint64_t bytes = 0;
    if (stat(r->dst, &mine) != 0)
        return 0;
    for (const tsr_run *before = r->pool->runs; before < r; before++) {
        if (before->present && !before->verifying && stat(before->dst, &other) == 0 && other.st_dev == mine.st_dev)
            bytes += tsr_space_needed(before->plan, before->journal.finished);
    }
    return bytes;
}

static tsr_status find_links(tsr_run *r, tsr_err *err)
{
    if (r->link == TSR_LINK_NONE)
        return TSR_OK;
    r->whole = calloc(r->plan->n_files + 1, sizeof *r->whole);
    return r->whole == NULL ? tsr_out_of_memory(err, "for the files to be linked")
                            : tsr_links_find(r->plan, r->whole, err);
}

/* Prepares the directory; on ranks other than 0, begins the rank's journal. */
static tsr_status begin_writing(tsr_run *r, tsr_err *err)
{
    if (tsr_ranks_mine(r->pool->ranks) > 0)
        return tsr_rank_journal_begin(&r->journal, r->plan, r->dst, &r->rows, err);
    if (r->journal.read_only)
        return tsr_run_refuse_writing(r, err);
    TSR_TRY(withdraw(r, err));
    remove_unknown(r);
    TSR_TRY(find_links(r, err));
    return tsr_run_check_space(r, promised(r), err);
}

/* Begins the second phase: missing files are made. */
static tsr_status begin_converting(tsr_run *r, tsr_engine_result *result, tsr_err *err)
{
    for (size_t i = 0; i < r->plan->n_files; i++)
        result->files_resumed += r->journal.finished[i];
    result->files_redone = r->noted - result->files_resumed;
    result->bytes_read = r->bytes_read;
    TSR_TRY(tsr_run_check_shards(r, err));
    r->verifying = false;
    r->present = choose_files(r) > 0;
    result->already_complete = !r->present;
    if (!r->present)
        return TSR_OK;
    TSR_TRY(begin_writing(r, err));
    TSR_TRY(tsr_watch_begin(&r->watch, r->plan, r->link == TSR_LINK_HARD ? r->whole : NULL, err));
    if (r->plan->prepare != NULL)
        TSR_TRY(r->plan->prepare(r->plan, r->pool->options, r->cpu_flags, err));
    tsr_io_choose(&r->io, r->plan, r->dst);
    r->io.summary.ring = r->pool->ring && (r->io.summary.reads || r->io.summary.writes);
    return TSR_OK;
}

/* Ends the second phase: notes which files were made, and checks that their sources are unchanged. */
static tsr_status end_converting(tsr_run *r, tsr_engine_result *result, tsr_err *err)
{
    tsr_run_note_done(r);
    if (!result->already_complete)
        TSR_TRY(check_sources(r, r->failure.status, err));
    TSR_TRY(r->failure.status);
    /* A single run that shares reads among its sequences counts each byte once. */
    result->bytes_read +=
        r->pool->n_runs == 1 && r->pool->shared != NULL ? tsr_shared_bytes(r->pool->shared) : r->bytes_read;
    result->bytes_written = r->bytes_written;
    return TSR_OK;
}

/* Completes the output. Rank 0 does so for all ranks. */
static tsr_status finish_run(tsr_run *r, tsr_engine_result *result, tsr_err *err)
{
    TSR_TRY(tsr_run_combine_outputs(r, result, err));
    return tsr_ranks_mine(r->pool->ranks) > 0 ? TSR_OK : tsr_run_finish(r, err);
}

/* ---- all runs ---- */

/* Records how a part of one run ended. The other runs continue. */
static void settle(tsr_engine_job *job, tsr_run *r, tsr_status status)
{
    if (job->status == TSR_OK && status != TSR_OK && r->failure.status == status)
        job->err = r->failure.err;
    job->status = job->status == TSR_OK ? status : job->status;
    r->present = r->present && job->status == TSR_OK;
}

/* Shares the status of each rank: all continue, or none. */
static void share_status(tsr_pool *pool, tsr_engine_job *jobs)
{
    if (pool->ranks == NULL)
        return;
    jobs[0].status = tsr_ranks_share_status(pool->ranks, jobs[0].status, &jobs[0].err);
    pool->runs[0].present = pool->runs[0].present && jobs[0].status == TSR_OK;
}

static void verify_all(tsr_pool *pool, tsr_engine_job *jobs)
{
    for (size_t i = 0; i < pool->n_runs; i++)
        settle(&jobs[i], &pool->runs[i], open_run(&pool->runs[i], &jobs[i].err));
    share_status(pool, jobs);
    for (size_t i = 0; i < pool->n_runs; i++) {
        if (jobs[i].status == TSR_OK)
            settle(&jobs[i], &pool->runs[i], begin_verifying(&pool->runs[i], &jobs[i].err));
    }
    run_phase(pool, "verifying");
    for (size_t i = 0; i < pool->n_runs; i++)
        settle(&jobs[i], &pool->runs[i], pool->runs[i].failure.status);
    share_status(pool, jobs);
    for (size_t i = 0; i < pool->n_runs; i++) {
        if (jobs[i].status == TSR_OK)
            settle(&jobs[i], &pool->runs[i], end_verifying(&pool->runs[i], &jobs[i].err));
    }
}

static void convert_all(tsr_pool *pool, tsr_engine_job *jobs, uint64_t *bytes_read)
{
    for (size_t i = 0; i < pool->n_runs; i++) {
        pool->runs[i].present = false;
        if (jobs[i].status == TSR_OK)
            settle(&jobs[i], &pool->runs[i], begin_converting(&pool->runs[i], &jobs[i].result, &jobs[i].err));
    }
    share_status(pool, jobs);
    tsr_pool_share_reads(pool);
    run_phase(pool, "converting");
    for (size_t i = 0; i < pool->n_runs; i++) {
        if (pool->shared == NULL && pool->runs[i].present)
            *bytes_read += pool->runs[i].bytes_read;
        if (jobs[i].status == TSR_OK)
            settle(&jobs[i], &pool->runs[i], end_converting(&pool->runs[i], &jobs[i].result, &jobs[i].err));
    }
    share_status(pool, jobs);
    for (size_t i = 0; i < pool->n_runs; i++) {
        if (jobs[i].status == TSR_OK)
            settle(&jobs[i], &pool->runs[i], finish_run(&pool->runs[i], &jobs[i].result, &jobs[i].err));
    }
    if (pool->shared != NULL)
        *bytes_read = tsr_shared_bytes(pool->shared);
    tsr_shared_end(pool->shared);
    pool->shared = NULL;
}

static tsr_status begin_run(tsr_run *r, tsr_pool *pool, const tsr_engine_job *job, unsigned cpu_flags, tsr_err *err)
{
    const tsr_plan *const plan = job->plan;
    *r = (tsr_run){
        .pool = pool,
        .plan = plan,
        .dst = job->dst,
        .force = job->force,
        .shard = job->shard,
        .link = job->link,
        .cpu_flags = cpu_flags,
        .io = {.mode = job->io, .summary = {.why = "all files were complete already"}},
        .journal = {.fd = -1},
        .frames = calloc(plan->n_steps, sizeof *r->frames),
        .steps = calloc(plan->n_steps, sizeof *r->steps),
        .files = calloc(plan->n_files, sizeof *r->files),
        .amaxes = calloc(plan->n_amaxes + 1, sizeof *r->amaxes),
        .sequences = calloc(tsr_plan_sequences(plan), sizeof *r->sequences),
        .done_here = calloc(plan->n_files + 1, sizeof *r->done_here),
        .sent = job->address == NULL ? NULL : calloc(plan->n_files + 1, sizeof *r->sent),
    };
    TSR_TRY(tsr_digests_begin(&r->digests, plan, err));
    tsr_cpu_kernels_init(&r->kernels, cpu_flags);
    const bool rows = tsr_step_rows_begin(&r->rows, plan->n_steps);
    if (!rows || r->frames == NULL || r->steps == NULL || r->files == NULL || r->amaxes == NULL ||
        r->sequences == NULL || r->done_here == NULL || (job->address != NULL && r->sent == NULL))
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu steps", plan->n_steps);
    TSR_TRY(tsr_run_divide(r, err));
    return job->address == NULL
               ? tsr_uploads_refuse_spool(job->dst, err)
               : tsr_uploads_begin(&r->uploads, job->address, plan, job->dst, pool->options->cancel, err);
}

static void free_run(tsr_run *r)
{
    tsr_digests_end(&r->digests);
    void *const arrays[] = {r->owner,  r->whole,     r->frames,    r->steps, r->files,
                            r->amaxes, r->sequences, r->done_here, r->sent};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(r->rows.sums);
}

static void end_run(tsr_run *r, tsr_engine_job *job)
{
    if (job->status == TSR_E_NOSPACE && r->failure.status == job->status)
        job->status = tsr_run_explain_no_space(r, &job->err);
    tsr_io_choice_end(&r->io);
    tsr_watch_end(&r->watch);
    tsr_journal_close(&r->journal);
    free_run(r);
    job->result.rows = r->rows.stats;
    job->result.io = r->io.summary;
    job->result.links = r->links;
    if (r->uploads != NULL)
        job->result.uploads = tsr_uploads_summarize(r->uploads);
    tsr_uploads_end(r->uploads);
}

tsr_status tsr_engine_run_together(tsr_engine_job *jobs, size_t n, const tsr_run_options *options, unsigned cpu_flags,
                                   uint64_t *bytes_read, tsr_err *err)
{
    tsr_pool pool = {.options = options,
                     .ranks = jobs[0].ranks,
                     .runs = calloc(n + 1, sizeof *pool.runs),
                     .n_runs = n,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .changed = PTHREAD_COND_INITIALIZER};
    struct timespec began;
    fenv_t callers_mode;
    (void)fegetenv(&callers_mode);
    tsr_set_float_mode(); /* for the sums of the report; each worker sets its own */
    clock_gettime(CLOCK_MONOTONIC, &began);
    *bytes_read = 0;
    for (size_t i = 0; i < n; i++) {
        jobs[i].status = TSR_OK;
        jobs[i].result = (tsr_engine_result){0};
    }
    tsr_status status = pool.runs == NULL ? tsr_out_of_memory(err, "for the runs") : tsr_pool_begin(&pool, jobs, err);
    for (size_t i = 0; i < n && pool.runs != NULL; i++)
        settle(&jobs[i], &pool.runs[i], begin_run(&pool.runs[i], &pool, &jobs[i], cpu_flags, &jobs[i].err));
    for (size_t i = 0; i < n; i++)
        jobs[i].result.threads = pool.workers;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].plan->factors != NULL)
            tsr_factor_cache_set_threads(jobs[i].plan->factors, pool.workers);
    }
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = jobs[i].status == TSR_OK ? TSR_OK : tsr_fail_with(err, jobs[i].status, &jobs[i].err);
    status = tsr_ranks_share_status(pool.ranks, status, err);
    if (status == TSR_OK) {
        verify_all(&pool, jobs);
        convert_all(&pool, jobs, bytes_read);
    }
    for (size_t i = 0; i < n && pool.runs != NULL; i++) {
        end_run(&pool.runs[i], &jobs[i]);
        jobs[i].result.seconds = tsr_seconds_since(&began);
    }
    free(pool.runs);
    (void)fesetenv(&callers_mode);
    return status;
}

tsr_status tsr_engine_run(const tsr_plan *plan, const char *dst, const tsr_engine_options *options,
                          tsr_engine_result *result, tsr_err *err)
{
    tsr_engine_job job = {.plan = plan,
                          .dst = dst,
                          .force = options->force,
                          .shard = options->shard,
                          .io = options->io,
                          .link = options->link,
                          .ranks = options->ranks,
                          .address = options->address};
    uint64_t bytes_read;
    const tsr_status status = tsr_engine_run_together(&job, 1, &options->run, options->cpu_flags, &bytes_read, err);
    *result = job.result;
    if (status == TSR_OK && job.status != TSR_OK && err != NULL)
        *err = job.err;
    return status == TSR_OK ? job.status : status;
}

double tsr_engine_result_sqnr(const tsr_engine_result *result, const tsr_plan *plan)
{
    tsr_quant_stats whole = {0};
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].op->stats_of == TSR_STATS_SOURCE)
            tsr_quant_stats_add(&whole, &result->rows[s]);
    }
    return whole.elements == 0 ? NAN : tsr_quant_stats_sqnr(&whole);
}

void tsr_engine_result_free(tsr_engine_result *result)
{
    free(result->rows);
    *result = (tsr_engine_result){0};
}
