/* Runs jobs that read the same source together, so that the source is read once. */
#include "cli/batch/batch.h"

#include "cli/io/output.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

/* ---- groups ---- */

static size_t count_members(const tsr_batch *batch, const tsr_batch_job *first)
{
    size_t n = 0;
    for (size_t i = 0; i < batch->n_jobs; i++)
        n += batch->jobs[i].leader == first;
    return n;
}

/* Returns true if all jobs of a group and one more fit in memory. */
static bool fits(const tsr_batch *batch, const tsr_batch_job *leader, const tsr_batch_job *more)
{
    tsr_engine_need needs[TSR_MAX_GROUP];
    size_t n = 0;
    for (size_t i = 0; i < batch->n_jobs && n + 1 < TSR_MAX_GROUP; i++) {
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

/* Returns the first job that this one can be read together with; records why it cannot. */
static tsr_batch_job *find_leader(const tsr_batch *batch, tsr_batch_job *job)
{
    for (tsr_batch_job *leader = batch->jobs; leader < job; leader++) {
        if (leader->leader != leader || !same_source(leader, job))
            continue;
        if (count_members(batch, leader) == TSR_MAX_GROUP)
            job->alone = "the number of jobs that can be read together is reached";
        else if (!fits(batch, leader, job))
            job->alone = "--memory is too small for one more";
        else
            return leader;
    }
    return job;
}

/* Returns true if another job reads the same source. */
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
        if (!job->planned || job->source.inode == 0 || !has_company(batch, job))
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

/* Returns the names of a group: "fp8, nvfp4". */
static const char *names_of(tsr_batch *batch, const tsr_batch_job *leader)
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
    tsr_command_context context; /* closed when the member has ended */
    tsr_status status;
    tsr_err err;
} member;

static tsr_plan_job *plan_of(const member *m)
{
    return m->context.job;
}

typedef struct group {
    member members[TSR_MAX_GROUP];
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
        tsr_command_close(&g->members[i].context);
    free(g);
}

static void plan(tsr_batch *batch, member *m)
{
    m->status = tsr_batch_make_plan(batch, m->job, &m->context, &m->err);
}

tsr_status tsr_batch_count_once(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err)
{
    group *const g = gather(batch, leader);
    const tsr_plan *plans[TSR_MAX_GROUP];
    tsr_status status = g == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < g->n; i++) {
        member *const m = &g->members[i];
        plan(batch, m);
        status = m->status;
        if (status == TSR_OK)
            plans[i] = &plan_of(m)->plan;
        else
            *err = m->err;
    }
    if (status == TSR_OK)
        status = tsr_engine_bytes_once(plans, g->n, &leader->bytes_once, err);
    release(g);
    return status;
}

/* ---- running a group ---- */

/* Ends a member as its command would: reports the result or the error. */
static void end_member(tsr_batch *batch, member *m, tsr_engine_result *result, double began)
{
    tsr_batch_begin_job(batch, m->job);
    if (result != NULL) {
        m->status = tsr_plan_job_judge(plan_of(m), m->status, result, &m->err);
        if (m->status == TSR_OK)
            m->status = tsr_command_write_result(&m->context, &m->err);
    }
    tsr_batch_end_job(batch, m->job, &m->context, m->status, &m->err, tsr_now() - began);
}

/* Returns the verb of progress: that of the jobs, if all have the same. */
static const char *verb_of(const group *g)
{
    for (size_t i = 1; i < g->n; i++) {
        if (strcmp(plan_of(&g->members[i])->verb, plan_of(&g->members[0])->verb) != 0)
            return "converting";
    }
    return plan_of(&g->members[0])->verb;
}

static tsr_status run_engine(tsr_batch *batch, tsr_batch_job *leader, const group *g, tsr_engine_job *jobs, size_t n,
                             tsr_err *err)
{
    const tsr_common_options *const common = &g->members[0].context.common; /* the same for all of them */
    const tsr_batch_context context = {
        .job = names_of(batch, leader), .progress_fd = batch->terminal->fd, .jsonl = batch->terminal->jsonl};
    tsr_terminal terminal;
    TSR_TRY(tsr_terminal_open(&terminal, !batch->main->prints, &batch->main->common.progress, &context, err));
    terminal.verb = verb_of(g);
    const tsr_run_options options = tsr_terminal_run_options(&terminal, common->threads, common->memory);
    const tsr_status status = tsr_engine_run_together(jobs, n, &options, tsr_cpu_flags() & (unsigned)common->cpumask,
                                                      &leader->bytes_once, err);
    tsr_terminal_close(&terminal);
    return status;
}

/* Plans all members again, since their sources may have changed. Returns how many can run. */
static size_t plan_group(tsr_batch *batch, group *g, tsr_engine_job *jobs)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) {
        member *const m = &g->members[i];
        plan(batch, m);
        if (m->status != TSR_OK)
            continue;
        const tsr_plan_job *const made = plan_of(m);
        tsr_plan_job_warn(&m->context);
        jobs[n++] = (tsr_engine_job){.plan = &made->plan,
                                     .dst = made->dst,
                                     .force = made->force,
                                     .io = (tsr_io_mode)made->io,
                                     .link = (tsr_link_mode)made->link};
    }
    return n;
}

tsr_status tsr_batch_run_group(tsr_batch *batch, tsr_batch_job *leader, tsr_err *err)
{
    group *const g = gather(batch, leader);
    tsr_engine_job jobs[TSR_MAX_GROUP];
    const double began = tsr_now();
    if (g == NULL)
        return tsr_out_of_memory(err, NULL);
    if (batch->main->prints)
        tsr_print("== %s: read together ==\n", names_of(batch, leader));
    const size_t n = plan_group(batch, g, jobs);
    tsr_err why = {0};
    /* Nothing has begun yet. Without --keep-going, a job that cannot be planned stops all of them. */
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
