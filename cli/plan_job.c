/* Makes and runs a plan. */
#include "cli/plan_job.h"

#include "cli/io/mpi_session.h"
#include "cli/io/space.h"
#include "cli/proof.h"
#include "convert/plans/policy_plan.h"
#include "formats/remote/address.h"
#include "kernels/cpu/cpu.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- options ---- */

tsr_plan_job tsr_plan_job_defaults(tsr_status (*make)(tsr_plan_job *job, tsr_err *err), const char *verb)
{
    return (tsr_plan_job){
        .make = make,
        .verb = verb,
        .from = {.max_shard_bytes = TSR_MAX_SHARD_BYTES},
        .sqnr = {.low = -INFINITY},
        .limits = tsr_quant_limits_defaults(),
    };
}

void tsr_plan_job_run_options(tsr_plan_job *job, tsr_option *options)
{
    const tsr_option shared[] = {
        {"-o", TSR_OPT_TEXT, &job->dst, "DST",
         "the output directory, created if it does not exist; or s3://BUCKET/PREFIX: docs/remote.md"},
        {"--spool", TSR_OPT_TEXT, &job->spool, "DIR",
         "the directory in which an output of s3:// is made; each finished file is sent and removed (NAME.spool)"},
        {"--max-shard-size", TSR_OPT_SIZE, &job->from.max_shard_bytes, "SIZE",
         "most bytes of tensor data in one output file (5GB)"},
        {"--io", TSR_OPT_CHOICE, &job->io, "auto|buffered|direct",
         "direct: read and write large files without the page cache; buffered: through it; auto: direct, unless a "
         "file is already in the cache (auto)"},
        {"--link", TSR_OPT_CHOICE, &job->link, "none|reflink|hard",
         "how to write files that are byte for byte equal to the source's: none: copies; reflink: reflinks, which "
         "share disk blocks until one is written to; hard: hard links, where a change of one changes both; what "
         "cannot be linked is copied (none)"},
        {"--shard", TSR_OPT_TEXT, &job->shards.text, "I/N",
         "make only part I (from 0) of N parts of the files, for job arrays; tessera finish DST joins the parts: "
         "docs/cluster.md"},
        {"--dry-run", TSR_OPT_FLAG, &job->dry_run, NULL,
         "print the plan, every tensor with the reason, and write no output"},
        {"--force", TSR_OPT_FLAG, &job->force, NULL, "start over; existing files in DST may be overwritten"},
        {0},
    };
    tsr_options_append_topic(options, "Output", shared);
}

void tsr_plan_job_options(tsr_plan_job *job, tsr_option *options)
{
    tsr_quant_limits_options(&job->limits, options);
    tsr_plan_job_run_options(job, options);
}

/* Rejects parallel processes without --mpi or --shard, because all would write to the same directory. */
static tsr_status check_processes(const tsr_plan_job *job, bool mpi, tsr_err *err)
{
    if (mpi && job->shards.text != NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--mpi cannot be combined with --shard: processes either work together or "
                        "each by itself");
    if (mpi && job->link != TSR_LINK_NONE)
        return tsr_fail(err, TSR_E_USAGE, "--link cannot be combined with --mpi");
    return mpi || job->dry_run || job->shards.text != NULL
               ? TSR_OK
               : tsr_check_alone("use --mpi to let them work together, or --shard I/N for each by itself", err);
}

/* ---- the output ---- */

const char *tsr_plan_job_output(const tsr_plan_job *job)
{
    return job->address != NULL ? job->address : job->dst;
}

const char *tsr_plan_job_address(const char *address, tsr_arena *arena)
{
    size_t n = strlen(address);
    while (n > strlen("s3://") && address[n - 1] == '/')
        n--;
    return tsr_arena_dup(arena, address, n);
}

const char *tsr_plan_job_spool(const char *address, tsr_arena *arena)
{
    const char *const name = strrchr(address, '/');
    return tsr_arena_printf(arena, "%s.spool", name == NULL ? address : name + 1);
}

/* Separates the address of the output from the spool in which it is made. */
static tsr_status take_address(tsr_command_context *c, tsr_err *err)
{
    tsr_plan_job *const job = c->job;
    if (job->dst == NULL || !tsr_is_remote(job->dst))
        return job->spool == NULL ? TSR_OK
                                  : tsr_fail(err, TSR_E_USAGE, "--spool has no effect: -o is not an address of s3://");
    if (tsr_address_kind_of(job->dst) != TSR_ADDRESS_S3)
        return tsr_fail(err, TSR_E_USAGE, "-o %s: outputs are written to directories and to s3://BUCKET/PREFIX",
                        job->dst);
    if (c->batch != NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "-o %s: a batch writes outputs to directories only; run this command by itself", job->dst);
    if (job->link != TSR_LINK_NONE)
        return tsr_fail(err, TSR_E_USAGE, "--link cannot be combined with -o %s: its files are sent", job->dst);
    if (job->spool != NULL && (*job->spool == '\0' || tsr_is_remote(job->spool)))
        return tsr_fail(err, TSR_E_USAGE, "--spool %s: name a directory of this machine", job->spool);
    job->address = tsr_plan_job_address(job->dst, &c->arena);
    job->dst = job->spool != NULL     ? job->spool
               : job->address == NULL ? NULL
                                      : tsr_plan_job_spool(job->address, &c->arena);
    return tsr_arena_status(&c->arena, TSR_OK, err);
}

static const char *sources_of(const tsr_command_context *c)
{
    return c->command->most_words == 1 ? "SRC" : "BASE LORA";
}

tsr_status tsr_plan_job_check(tsr_command_context *c, tsr_err *err)
{
    tsr_plan_job *const job = c->job;
    job->from.path = c->words[0];
    job->from.ignore = c->common.ignore;
    if (job->from.path == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera %s %s -o DST", c->command->name, sources_of(c));
    if (job->dst == NULL && !job->dry_run)
        return tsr_fail(err, TSR_E_USAGE, "no output directory given: tessera %s %s -o DST", c->command->name,
                        sources_of(c));
    TSR_TRY(take_address(c, err));
    TSR_TRY(tsr_target_options_check(&job->target, err));
    TSR_TRY(check_processes(job, c->common.mpi, err));
    TSR_TRY(tsr_shard_parse(&job->shards, err));
    if (job->shards.text != NULL && job->force)
        return tsr_fail(
            err, TSR_E_USAGE,
            "--force cannot be combined with --shard: other shards may be running there; remove the directory, or "
            "name another one");
    TSR_TRY(tsr_shard_note_command(&job->shards, c->command->name, c->words, c->n_words, c->options, c->given, err));
    return tsr_quant_limits_parse(&job->limits, err);
}

void tsr_plan_job_paths(const tsr_command_context *c, const char *const *sources, size_t n, tsr_io_paths *paths)
{
    const tsr_plan_job *const job = c->job;
    memcpy(paths->sources, sources, n * sizeof *sources);
    paths->dst = job->dst;
    paths->address = job->dry_run ? NULL : job->address;
    paths->unconfined = tsr_unconfined_ranks(c->common.mpi);
    paths->untouched = job->dry_run;
    paths->shared = job->shards.text != NULL;
    paths->links = job->link == TSR_LINK_HARD;
}

/* ---- planning ---- */

static tsr_status check_limits(const tsr_plan_job *job, tsr_err *err)
{
    const char *const limit = tsr_quant_limits_given(&job->limits);
    return limit == NULL || job->plan.report != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_USAGE, "%s has no effect: no weight is quantized", limit);
}

/* Rejects an output that the loaders of --for cannot load. */
static tsr_status check_target(const tsr_plan_job *job, tsr_err *err)
{
    tsr_plan_preview output;
    char what[80];
    if (job->target.loaders == NULL)
        return TSR_OK;
    snprintf(what, sizeof what, "%s%s", job->scheme == NULL ? "--rules" : "--scheme ",
             job->scheme == NULL ? "" : job->scheme);
    TSR_TRY(tsr_plan_preview_make(&output, &job->plan, job->plan.sources[0], err));
    const tsr_status status = tsr_target_check(&job->target, &output, what, err);
    tsr_plan_preview_free(&output);
    return status;
}

tsr_status tsr_plan_job_make(tsr_plan_job *job, tsr_err *err)
{
    TSR_TRY(job->make(job, err));
    TSR_TRY(check_limits(job, err));
    TSR_TRY(check_target(job, err));
    return tsr_plan_check_decoded(&job->plan, err);
}

void tsr_plan_job_warn(const tsr_command_context *c)
{
    const tsr_plan_job *const job = c->job;
    char space[PATH_MAX + 256];
    for (size_t i = 0; i < job->plan.n_warnings; i++)
        tsr_command_warn(c, job->plan.warnings[i]);
    if (!job->dry_run && job->address == NULL && tsr_space_warning(&job->plan, job->dst, space, sizeof space))
        tsr_command_warn(c, space);
}

/* Makes the plan. With --mpi it must be the same on all ranks. */
static tsr_status make_plan(tsr_command_context *c, tsr_err *err)
{
    tsr_plan_job *const job = c->job;
    const tsr_status status = job->make(job, err);
    return c->ranks == NULL ? status : tsr_ranks_agree(c->ranks, status, job->plan.fingerprint, err);
}

tsr_status tsr_plan_job_open(tsr_command_context *c, tsr_err *err)
{
    tsr_plan_job *const job = c->job;
    TSR_TRY(make_plan(c, err));
    TSR_TRY(check_limits(job, err));
    TSR_TRY(check_target(job, err));
    TSR_TRY(tsr_shard_measure(&job->shards, &job->plan, err));
    tsr_plan_job_warn(c);
    TSR_TRY(tsr_proof_open(c, err));
    if (!job->dry_run)
        return tsr_plan_check_decoded(&job->plan, err);
    /* The plan is the result: --quiet does not hide it, and there is no progress. */
    c->prints = !tsr_io_paths_take_stdout(&c->paths);
    c->common.progress = (tsr_progress_options){0};
    return TSR_OK;
}

/* ---- running ---- */

/* Returns true if the output is a quantized checkpoint that engines can load. */
static bool is_served(const tsr_plan *plan)
{
    return plan->report != NULL && plan->advice == NULL && plan->sources[0]->config != NULL;
}

tsr_status tsr_plan_job_judge(tsr_plan_job *job, tsr_status status, tsr_engine_result *result, tsr_err *err)
{
    const tsr_plan *const plan = &job->plan;
    job->result = *result;
    *result = (tsr_engine_result){0};
    job->executed = status == TSR_OK;
    if (status == TSR_E_CANCELLED)
        return tsr_fail(err, status, "interrupted; finished files are kept: repeat the command to resume");
    if (status != TSR_OK || tsr_is_shard(&job->shards))
        return status;
    TSR_TRY(tsr_quant_limits_judge(&job->judged, &job->limits, plan, job->result.rows, err));
    return is_served(plan) && job->address == NULL
               ? tsr_serve_hints_find(&job->serving, job->dst,
                                      job->judged.n_findings > 0 ? "tensors exceed the limits" : plan->little, err)
               : TSR_OK;
}

tsr_status tsr_plan_job_run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    tsr_plan_job *const job = c->job;
    if (job->dry_run)
        return TSR_OK;
    terminal->verb = job->verb;
    const tsr_engine_options options = {
        .run = tsr_terminal_run_options(terminal, c->common.threads, c->common.memory),
        .force = job->force,
        .io = (tsr_io_mode)job->io,
        .link = (tsr_link_mode)job->link,
        .cpu_flags = tsr_cpu_flags() & (unsigned)c->common.cpumask,
        .shard = tsr_shard_of(&job->shards),
        .ranks = c->ranks,
        .address = job->address,
    };
    tsr_engine_result result;
    const tsr_status status = tsr_engine_run(&job->plan, job->dst, &options, &result, err);
    if (tsr_ranks_mine(c->ranks) > 0) {
        tsr_engine_result_free(&result); /* rank 0 reports for all */
        return status;
    }
    TSR_TRY(tsr_plan_job_judge(job, status, &result, err));
    return tsr_proof_run(c, terminal, err);
}

tsr_status tsr_plan_job_conclude(tsr_command_context *c, tsr_err *err)
{
    const tsr_plan_job *const job = c->job;
    return job->dry_run ? tsr_plan_check_decoded(&job->plan, err) : TSR_OK;
}

int tsr_plan_job_exit_code(const tsr_command_context *c)
{
    const tsr_plan_job *const job = c->job;
    return job->judged.n_findings > 0;
}

void tsr_plan_job_close(tsr_plan_job *job)
{
    tsr_result_free(&job->judged);
    tsr_engine_result_free(&job->result);
    tsr_serve_hints_free(&job->serving);
    tsr_plan_free(&job->plan);
    tsr_arena_free(&job->shards.arena);
}
