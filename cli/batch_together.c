/* Jobs that read the same source, carried out together: the source is read once. */
#include "cli/batch.h"

#include "cli/output.h"
#include "cli/results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- who with whom ---- */

static size_t count_members(const tsr_batch *batch, const tsr_batch_job *first)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_jobs; i++)
        n += batch->jobs[i].leader == first;
    return n;
}

/* Whether the memory holds what all jobs of a group need, with one more. */
static bool fits(const tsr_batch *batch, const tsr_batch_job *leader, const tsr_batch_job *more)
{
    tsr_engine_need needs[TSR_MAX_TOGETHER];
    size_t n = 0;
    for (size_t i = 0; i < batch->n_jobs && n + 1 < TSR_MAX_TOGETHER; i++) {
        if (batch->jobs[i].leader == leader)
            needs[n++] = batch->jobs[i].need;
    }
    needs[n++] = more->need;
    return tsr_engine_memory(needs, n) <= more->memory;
}

static bool same_source(const tsr_batch_job *a, const tsr_batch_job *b)
{
    return a->source.inode == b->source.inode && a->source.device == b->source.device;
}

/* Finds the first job that this one can be read together with; says why not where there would be one. */
static tsr_batch_job *find_leader(const tsr_batch *batch, tsr_batch_job *job)
{
    for (tsr_batch_job *leader = batch->jobs; leader < job; leader++) {
        if (leader->leader != leader || !same_source(leader, job))
            continue;
        if (count_members(batch, leader) == TSR_MAX_TOGETHER)
            job->alone = "enough jobs are read together";
        else if (!fits(batch, leader, job))
            job->alone = "--memory has no room for one more";
        else
            return leader;
    }
    return job;
}

/* Whether another job reads the same source. */
static bool has_company(const tsr_batch *batch, const tsr_batch_job *job)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        if (&batch->jobs[i] != job && batch->jobs[i].planned && same_source(&batch->jobs[i], job))
            return true;
    }
    return false;
}

void tsr_batch_group(tsr_batch *batch)
{
    for (size_t i = 0; i < batch->n_jobs; i++) {
        tsr_batch_job *const job = &batch->jobs[i];
        if (!job->planned || batch->apart || job->source.inode == 0 || !has_company(batch, job))
            continue;
        if (job->own_option != NULL)
            job->alone = job->own_option;
        else
            job->leader = find_leader(batch, job);
    }
    for (size_t i = 0; i < batch->n_jobs; i++) {
        tsr_batch_job *const job = &batch->jobs[i];
        if (job->leader == job && count_members(batch, job) == 1)
            job->leader = NULL;
        if (job->leader != NULL)
            job->alone = NULL;
    }
}

/* "fp8, nvfp4": the names of a group. */
const char *tsr_batch_names(tsr_batch *batch, const tsr_batch_job *leader)
{
    const char *names = "";
    for (size_t i = 0; i < batch->n_jobs && names != NULL; i++) {
        if (batch->jobs[i].leader == leader)
            names = tsr_arena_printf(&batch->arena, "%s%s%s", names, *names == '\0' ? "" : ", ", batch->jobs[i].name);
    }
    return names == NULL ? leader->name : names;
}

/* ---- planning a group ---- */

typedef struct member {
    tsr_batch_job *job;
    tsr_plan_job made;
    tsr_status status;
    tsr_err err;
} member;

typedef struct group {
    member members[TSR_MAX_TOGETHER];
    size_t n;
} group;

static group *gather(tsr_batch *batch, const tsr_batch_job *leader)
{
    group *const g = calloc(1, sizeof *g);
    for (size_t i = 0; g != NULL && i < batch->n_jobs; i++) {
        if (batch->jobs[i].leader == leader)
            g->members[g->n++].job = &batch->jobs[i];
    }
    return g;
}

static void release(group *g)
{
    for (size_t i = 0; g != NULL && i < g->n; i++)
        tsr_plan_job_close(&g->members[i].made);
    free(g);
}

static void plan(member *m)
{
    tsr_batch_job *const job = m->job;
    tsr_plan_job *const made = &m->made;
    m->status = job->reader(made, (int)job->n_words - 1, job->words + 1, &m->err);
    if (m->status == TSR_OK)
        m->status = tsr_plan_job_make(made, &m->err);
    if (m->status == TSR_OK)
        m->status = tsr_run_plan_check(&made->run, &made->plan, &m->err);
    job->owed = tsr_reports_owed();
}

tsr_status tsr_batch_count_once(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err)
{
    group *const g = gather(batch, leader);
    const tsr_plan *plans[TSR_MAX_TOGETHER];
    tsr_status status = g == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < g->n; i++) {
        tsr_stage_set(&g->members[i].job->stage);
        plan(&g->members[i]);
        tsr_stage_set(NULL);
        plans[i] = &g->members[i].made.plan;
        status =
            g->members[i].status == TSR_OK ? TSR_OK : tsr_fail(err, g->members[i].status, "%s", g->members[i].err.msg);
    }
    if (status == TSR_OK)
        status = tsr_engine_bytes_once(plans, g->n, &leader->bytes_once, err);
    release(g);
    return status;
}

/* ---- carrying a group out ---- */

/* Ends a member as its command would: tells the result, the error, or both. */
static void end_member(tsr_batch *batch, member *m, const tsr_engine_result *result, double began)
{
    tsr_batch_job *const job = m->job;
    const bool planned = result != NULL;
    tsr_batch_begin_job(batch, job);
    (void)tsr_owe_reports(job->owed);
    if (planned)
        m->status = tsr_run_plan_tell(&m->made.run, &m->made.plan, m->status, result, &m->err);
    tsr_batch_end_job(batch, job, tsr_end(job->words[0], m->status, m->made.run.beyond == 0, &m->err),
                      tsr_now() - began);
}

/* The words of progress, where all jobs do the same. */
static const char *verb_of(const group *g)
{
    for (size_t i = 1; i < g->n; i++) {
        if (strcmp(g->members[i].made.run.verb, g->members[0].made.run.verb) != 0)
            return "converting";
    }
    return g->members[0].made.run.verb;
}

static tsr_status run_engine(tsr_batch *batch, tsr_batch_job *leader, const group *g, tsr_engine_job *jobs, size_t n,
                             tsr_err *err)
{
    const tsr_plan_run *const run = &g->members[0].made.run; /* what they may use is the same for all of them */
    tsr_stage stage = {
        .job = tsr_batch_names(batch, leader), .progress_fd = batch->terminal.fd, .jsonl = batch->terminal.jsonl};
    tsr_terminal terminal;
    tsr_stage_set(&stage);
    const tsr_status opened = tsr_terminal_open(&terminal, !tsr_batch_talks(batch), &batch->progress, err);
    tsr_stage_set(NULL);
    TSR_TRY(opened);
    terminal.verb = verb_of(g);
    const tsr_run_options options = tsr_terminal_run_options(&terminal, run->threads, run->memory);
    const tsr_status status =
        tsr_engine_run_together(jobs, n, &options, tsr_cpu_flags() & (unsigned)run->cpumask, &leader->bytes_once, err);
    tsr_terminal_close(&terminal);
    return status;
}

/* Plans all members anew: what they read may have changed since. Returns how many can be carried out. */
static size_t plan_group(group *g, tsr_engine_job *jobs)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) {
        member *const m = &g->members[i];
        tsr_stage_set(&m->job->stage);
        plan(m);
        if (m->status == TSR_OK) {
            tsr_run_plan_warn(&m->made.run, &m->made.plan);
            jobs[n++] = (tsr_engine_job){.plan = &m->made.plan,
                                         .dst = m->made.run.dst,
                                         .force = m->made.run.force,
                                         .io = (tsr_io_mode)m->made.run.io,
                                         .link = (tsr_link_mode)m->made.run.link};
        }
        tsr_stage_set(NULL);
    }
    return n;
}

tsr_status tsr_batch_run_group(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err)
{
    group *const g = gather(batch, leader);
    tsr_engine_job jobs[TSR_MAX_TOGETHER];
    const double began = tsr_now();
    if (g == NULL)
        return tsr_out_of_memory(err, NULL);
    if (tsr_batch_talks(batch))
        tsr_print("== %s: read together ==\n", tsr_batch_names(batch, leader));
    const size_t n = plan_group(g, jobs);
    tsr_err why = {{0}};
    /* Nothing has begun yet: without --keep-going, one that cannot be planned stops them all. */
    const bool goes = n == g->n || (batch->keep_going && n > 0);
    const tsr_status status = goes ? run_engine(batch, leader, g, jobs, n, &why) : TSR_OK;
    for (size_t i = 0, k = 0; i < g->n; i++) {
        member *const m = &g->members[i];
        const bool planned = m->status == TSR_OK;
        if (planned && !goes)
            continue;
        if (planned && status != TSR_OK) {
            m->status = status;
            m->err = why;
        } else if (planned) {
            m->status = jobs[k].status;
            m->err = jobs[k].err;
            leader->bytes_wanted += jobs[k].result.bytes_read;
        }
        end_member(batch, m, planned ? &jobs[k].result : NULL, began);
        if (planned)
            tsr_engine_result_free(&jobs[k++].result);
    }
    release(g);
    return TSR_OK;
}
