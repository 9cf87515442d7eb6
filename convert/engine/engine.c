/* The phases of a run: verify what is there, convert what is missing, finish. */
#include "convert/engine/engine.h"

#include "common/checked.h"
#include "common/file.h"
#include "common/threads.h"
#include "convert/engine/blocks_file.h"
#include "convert/engine/engine_run.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void tsr_run_note_failure(tsr_run *r, tsr_status status, const tsr_err *err)
{
    tsr_note_failure(&r->failure, status, err);
    pthread_cond_broadcast(&r->crew->changed);
}

void tsr_run_fail(tsr_run *r, tsr_status status, const tsr_err *err)
{
    pthread_mutex_lock(&r->crew->lock);
    tsr_run_note_failure(r, status, err);
    pthread_mutex_unlock(&r->crew->lock);
}

const char *tsr_run_path(const tsr_run *r, size_t file, char path[PATH_MAX])
{
    return tsr_output_path(r->dst, r->plan->files[file].name, path);
}

/* Has an amax found, unless no step of this phase asks for it or another one has asked before. Returns what there is to
 * read for it. */
static uint64_t want_amax(tsr_run *r, const tsr_amax *amax)
{
    if (amax == NULL || r->amaxes[amax->index].left > 0)
        return 0;
    r->amaxes[amax->index].left = tsr_amax_units(amax);
    return tsr_amax_bytes(amax);
}

/* Chooses the files that take part in the present phase. Returns how many bytes there are to read. */
static uint64_t choose_files(tsr_run *r)
{
    uint64_t chosen = 0;
    r->next_amax = 0;
    r->next_amax_unit = 0;
    r->n_open = 0;
    r->bytes_read = r->bytes_total = r->steps_done = r->steps_total = 0;
    for (size_t i = 0; i < r->plan->n_files; i++)
        r->files[i] = (tsr_file_state){.io = {.fd = -1, .direct = -1},
                                       .mine = r->journal.finished[i] == r->verifying && !tsr_is_others(r, i)};
    for (size_t i = 0; i < r->plan->n_files; i++) {
        const tsr_out_file *const f = &r->plan->files[i];
        if (!r->files[i].mine)
            continue;
        chosen++;
        for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++)
            r->steps_total += tsr_run_makes_tensor(r->plan, s);
        if (r->verifying)
            r->bytes_total += f->bytes;
        for (size_t s = f->first_step; !r->verifying && s < f->first_step + f->n_steps; s++)
            r->bytes_total +=
                tsr_is_given(r, s) ? 0 : tsr_step_input(&r->plan->steps[s]) + want_amax(r, r->plan->steps[s].amax);
    }
    return chosen;
}

/* Removes the unfinished files of a failed phase: the next run redoes whole files and has no use for them. */
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

/* Whether a run may read or write past the page cache, so that it is worth while to have several units under way. */
static bool is_direct(const tsr_run *r)
{
    if (!r->verifying)
        return r->io.told.reads || r->io.told.writes;
    for (size_t i = 0; i < r->plan->n_files && r->io.mode != TSR_IO_BUFFERED; i++) {
        if (r->files[i].mine && r->plan->files[i].bytes >= tsr_io_large(r->io.mode))
            return true;
    }
    return false;
}

/* Carries out a phase of all runs that are present. */
static void run_phase(tsr_crew *c, const char *phase)
{
    bool any = false;
    c->depth = 1;
    for (size_t i = 0; i < c->n_runs; i++) {
        any = any || c->runs[i].present;
        if (c->runs[i].present && is_direct(&c->runs[i]))
            c->depth = c->most_depth;
        tsr_run_lay_lanes(&c->runs[i]);
    }
    if (any)
        tsr_crew_work(c, phase);
    for (size_t i = 0; i < c->n_runs; i++) {
        if (c->runs[i].present)
            abandon_files(&c->runs[i]);
    }
}

/* Marks files for redoing that the journal calls finished but that are gone or have another size, or whose figures of
 * blocks are. They need not be read first. */
static tsr_status drop_missing(tsr_run *r, tsr_err *err)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        struct stat st;
        const tsr_out_file *const f = &r->plan->files[i];
        bool kept = false;
        if (!r->journal.finished[i])
            continue;
        const bool there = stat(tsr_run_path(r, i, path), &st) == 0;
        if (!there && errno != ENOENT && errno != ENOTDIR)
            return tsr_fail_errno(err, "%s: cannot look at it", path);
        if (there && S_ISREG(st.st_mode) && (f->appended || (uint64_t)st.st_size == f->bytes))
            TSR_TRY(tsr_blocks_kept(r->plan, r->dst, i, &kept, err));
        r->journal.finished[i] = kept;
    }
    return TSR_OK;
}

/* Removes files that were renamed just before a kill and are not in the journal. They are made again, and need the
 * space. */
static void remove_unknown(const tsr_run *r)
{
    for (size_t i = 0; i < r->plan->n_files; i++) {
        char path[PATH_MAX];
        if (!r->journal.finished[i] && !tsr_is_others(r, i))
            unlink(tsr_run_path(r, i, path));
    }
}

/* During a repair, too, nobody may take the directory for a model before it is whole again. */
static tsr_status withdraw(tsr_run *r, tsr_err *err)
{
    tsr_arena scratch = {0};
    tsr_names names;
    tsr_status status = tsr_plan_names(r->plan, &scratch, &names, err);
    if (status == TSR_OK) {
        names.items += r->plan->n_files; /* a raw copy of this name may be finished, and stays */
        names.count -= r->plan->n_files;
        status = tsr_withdraw(r->dst, &names, err);
    }
    tsr_arena_free(&scratch);
    return status;
}

/* Whichever way the phase ended: outputs of a source file that has changed since are not to be trusted. */
static tsr_status check_sources(tsr_run *r, tsr_status status, tsr_err *err)
{
    tsr_err why = {{0}};
    const tsr_status changed = tsr_watch_check_all(&r->watch, r->plan, r->journal.finished, &why);
    if (changed == TSR_OK)
        return status;
    const tsr_status noted = tsr_journal_rewrite(&r->journal, r->plan, r->rows, NULL);
    if (noted == TSR_OK)
        remove_unknown(r);
    if (status == TSR_OK)
        tsr_run_fail(r, changed, &why);
    return status == TSR_OK ? tsr_fail(err, changed, "%s", why.msg) : status;
}

/* ---- one run, from phase to phase ---- */

/* The first phase: what is there already is verified. */
static tsr_status begin_verifying(tsr_run *r, tsr_err *err)
{
    TSR_TRY(tsr_run_open_journal(r, err));
    for (size_t i = 0; i < r->plan->n_files; i++)
        r->noted += r->journal.finished[i];
    TSR_TRY(drop_missing(r, err));
    TSR_TRY(tsr_run_check_shards(r, err));
    r->verifying = true;
    r->present = choose_files(r) > 0;
    return TSR_OK;
}

/* Bytes that the runs before this one are about to write on its file system. */
static uint64_t promised(const tsr_run *r)
{
    struct stat mine, other;
    uint64_t bytes = 0;
    if (stat(r->dst, &mine) != 0)
        return 0;
    for (const tsr_run *before = r->crew->runs; before < r; before++) {
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

/* The second phase: what is missing is made. */
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
    if (r->journal.read_only)
        return tsr_run_refuse_writing(r, err);
    TSR_TRY(withdraw(r, err));
    remove_unknown(r);
    TSR_TRY(find_links(r, err));
    TSR_TRY(tsr_run_check_space(r, promised(r), err));
    TSR_TRY(tsr_watch_begin(&r->watch, r->plan, r->link == TSR_LINK_HARD ? r->whole : NULL, err));
    tsr_io_choose(&r->io, r->plan, r->dst);
    r->io.told.ring = r->crew->ring && (r->io.told.reads || r->io.told.writes);
    return TSR_OK;
}

static tsr_status end_converting(tsr_run *r, tsr_engine_result *result, tsr_err *err)
{
    if (!result->already_complete)
        TSR_TRY(check_sources(r, r->failure.status, err));
    TSR_TRY(r->failure.status);
    /* What its steps had; of a single run that shares among its lanes, what was read for them. */
    result->bytes_read += r->crew->n_runs == 1 && r->crew->shared != NULL
                              ? tsr_shared_bytes(r->crew->shared) + atomic_load(&r->crew->read_elsewhere)
                              : r->bytes_read;
    result->bytes_written = r->bytes_written;
    return tsr_run_finish(r, err);
}

/* ---- all runs ---- */

/* Notes how a step of one run ended; the others go on. */
static void settle(tsr_engine_job *job, tsr_run *r, tsr_status status)
{
    if (job->status == TSR_OK && status != TSR_OK && r->failure.status == status)
        job->err = r->failure.err;
    job->status = job->status == TSR_OK ? status : job->status;
    r->present = r->present && job->status == TSR_OK;
}

static void verify_all(tsr_crew *c, tsr_engine_job *jobs)
{
    for (size_t i = 0; i < c->n_runs; i++)
        settle(&jobs[i], &c->runs[i], begin_verifying(&c->runs[i], &jobs[i].err));
    run_phase(c, "verifying");
    for (size_t i = 0; i < c->n_runs; i++)
        settle(&jobs[i], &c->runs[i], c->runs[i].failure.status);
}

static void convert_all(tsr_crew *c, tsr_engine_job *jobs, uint64_t *bytes_read)
{
    for (size_t i = 0; i < c->n_runs; i++) {
        c->runs[i].present = false;
        if (jobs[i].status == TSR_OK)
            settle(&jobs[i], &c->runs[i], begin_converting(&c->runs[i], &jobs[i].result, &jobs[i].err));
    }
    tsr_crew_share(c);
    run_phase(c, "converting");
    for (size_t i = 0; i < c->n_runs; i++) {
        if (c->shared == NULL && c->runs[i].present)
            *bytes_read += c->runs[i].bytes_read;
        if (jobs[i].status == TSR_OK)
            settle(&jobs[i], &c->runs[i], end_converting(&c->runs[i], &jobs[i].result, &jobs[i].err));
    }
    if (c->shared != NULL)
        *bytes_read = tsr_shared_bytes(c->shared);
    tsr_shared_end(c->shared);
    c->shared = NULL;
    free(c->owners);
    c->owners = NULL;
}

static tsr_status begin_run(tsr_run *r, tsr_crew *c, const tsr_engine_job *job, unsigned cpu_flags, tsr_err *err)
{
    const tsr_plan *const plan = job->plan;
    *r = (tsr_run){
        .crew = c,
        .plan = plan,
        .dst = job->dst,
        .force = job->force,
        .shard = job->shard,
        .link = job->link,
        .io = {.mode = job->io, .told = {.why = "nothing was left to be done"}},
        .journal = {.fd = -1},
        .rows = calloc(plan->n_steps, sizeof *r->rows),
        .frames = calloc(plan->n_steps, sizeof *r->frames),
        .steps = calloc(plan->n_steps, sizeof *r->steps),
        .files = calloc(plan->n_files, sizeof *r->files),
        .amaxes = calloc(plan->n_amaxes + 1, sizeof *r->amaxes),
        .lanes = calloc(tsr_plan_lanes(plan), sizeof *r->lanes),
    };
    TSR_TRY(tsr_digests_begin(&r->digests, plan, err));
    tsr_cpu_kernels_init(&r->kernels, cpu_flags);
    return r->rows == NULL || r->frames == NULL || r->steps == NULL || r->files == NULL || r->amaxes == NULL ||
                   r->lanes == NULL
               ? tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu steps", plan->n_steps)
               : tsr_run_divide(r, err);
}

static void free_run(tsr_run *r)
{
    tsr_digests_end(&r->digests);
    free(r->owner);
    free(r->whole);
    free(r->frames);
    free(r->steps);
    free(r->files);
    free(r->amaxes);
    free(r->lanes);
}

static void end_run(tsr_run *r, tsr_engine_job *job)
{
    if (job->status == TSR_E_NOSPACE && r->failure.status == job->status)
        job->status = tsr_run_explain_no_space(r, &job->err);
    tsr_io_choice_end(&r->io);
    tsr_watch_end(&r->watch);
    tsr_journal_close(&r->journal);
    free_run(r);
    job->result.rows = r->rows;
    job->result.threads = r->crew->workers + tsr_ranks_others(r->crew->ranks);
    job->result.units_elsewhere = atomic_load(&r->crew->elsewhere);
    job->result.io = r->io.told;
    job->result.links = r->links;
}

tsr_status tsr_engine_run_together(tsr_engine_job *jobs, size_t n, const tsr_run_options *options, unsigned cpu_flags,
                                   uint64_t *bytes_read, tsr_err *err)
{
    tsr_crew c = {.options = options,
                  .ranks = jobs[0].ranks,
                  .touched = calloc((jobs[0].plan->n_files + 1) * tsr_ranks_count(jobs[0].ranks), sizeof *c.touched),
                  .runs = calloc(n + 1, sizeof *c.runs),
                  .n_runs = n,
                  .lock = PTHREAD_MUTEX_INITIALIZER,
                  .changed = PTHREAD_COND_INITIALIZER};
    struct timespec began;
    fenv_t callers_mode;
    (void)fegetenv(&callers_mode);
    tsr_set_float_mode(); /* for the report's sums; each worker sets its own */
    clock_gettime(CLOCK_MONOTONIC, &began);
    *bytes_read = 0;
    for (size_t i = 0; i < n; i++) {
        jobs[i].status = TSR_OK;
        jobs[i].result = (tsr_engine_result){0};
    }
    tsr_status status =
        c.runs == NULL || c.touched == NULL ? tsr_out_of_memory(err, "for the runs") : tsr_crew_begin(&c, jobs, err);
    for (size_t i = 0; i < n && c.runs != NULL; i++)
        settle(&jobs[i], &c.runs[i], begin_run(&c.runs[i], &c, &jobs[i], cpu_flags, &jobs[i].err));
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        status = jobs[i].status == TSR_OK ? TSR_OK : tsr_fail(err, jobs[i].status, "%s", jobs[i].err.msg);
    if (status == TSR_OK) {
        verify_all(&c, jobs);
        convert_all(&c, jobs, bytes_read);
    }
    for (size_t i = 0; i < n && c.runs != NULL; i++) {
        end_run(&c.runs[i], &jobs[i]);
        jobs[i].result.seconds = tsr_seconds_since(&began);
    }
    free(c.touched);
    free(c.runs);
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
                          .ranks = options->ranks};
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
