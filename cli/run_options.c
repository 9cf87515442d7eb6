/* The options of all commands that carry out a plan. */
#include "cli/places.h"
#include "cli/run_plan.h"
#include "cli/sandbox.h"
#include "cli/together.h"
#include "common/threads.h"
#include "convert/plans/named_scheme.h"

#include <math.h>
#include <string.h>

tsr_plan_run tsr_plan_run_defaults(const char *command)
{
    return (tsr_plan_run){
        .command = command,
        .verb = "converting",
        .from = {.max_shard_bytes = TSR_MAX_SHARD_BYTES},
        .threads = tsr_cpu_count(),
        .cpumask = TSR_CPU_ALL,
        .memory = TSR_DEFAULT_MEMORY,
        .low_sqnr = -INFINITY,
        .limits = tsr_quant_limits_defaults(),
    };
}

void tsr_plan_run_options(tsr_plan_run *run, tsr_option *options)
{
    const tsr_option shared[] = {
        {"--ignore-file", TSR_OPT_LIST, &run->from.ignore, "GLOB",
         "treat these files of SRC as absent; may be repeated"},
        {"--max-shard-size", TSR_OPT_SIZE, &run->from.max_shard_bytes, "SIZE",
         "of tensor data in one output file (5GB)"},
        {"--threads", TSR_OPT_COUNT, &run->threads, "N", "workers (all CPUs); the output does not depend on it"},
        {"--cpumask", TSR_OPT_COUNT, &run->cpumask, "MASK",
         "instruction sets allowed: 1 AVX2, 2 AVX-512, 4 VBMI; 0 is scalar (all); same bits with any"},
        {"--memory", TSR_OPT_SIZE, &run->memory, "SIZE", "what the job may use at most (2GiB)"},
        {"--io", TSR_OPT_CHOICE, &run->io, "auto|buffered|direct",
         "large files past the page cache, or through it (auto: past it, unless they are there already)"},
        {"--link", TSR_OPT_CHOICE, &run->link, "none|reflink|hard",
         "files that are a source's byte for byte: copies (none); reflinks, which share its blocks until one is "
         "written\n"
         "to; or hard links: one file with two names, so that a change of one changes both. What cannot be linked is "
         "copied"},
        {"--shard", TSR_OPT_TEXT, &run->shards.text, "I/N",
         "make only the I-th of N parts (from 0) of the files, for job arrays; then tessera finish DST: "
         "docs/cluster.md"},
        TSR_MPI_OPTION(&run->mpi),
        {"--dry-run", TSR_OPT_FLAG, &run->dry_run, NULL, "print the plan: every tensor with its reason, and the sums"},
        {"--force", TSR_OPT_FLAG, &run->force, NULL, "start over, and write into DST whatever it holds"},
        {"--json", TSR_OPT_TEXT, &run->json, "FILE", "the result as JSON ('-': stdout)"},
        {"--junit", TSR_OPT_TEXT, &run->junit, "FILE", "the result as JUnit XML"},
        TSR_PROGRESS_OPTIONS(&run->progress),
        {"--quiet", TSR_OPT_FLAG, &run->quiet, NULL, "no progress, no summary"},
        {"--help", TSR_OPT_FLAG, &run->help, NULL, "this text"},
        {0},
    };
    tsr_quant_limits_options(&run->limits, options);
    tsr_options_append(options, shared);
}

/* Processes that were started side by side, and that do not know of it, would all want the same directory. */
static tsr_status check_processes(const tsr_plan_run *run, tsr_err *err)
{
    if (run->mpi && run->shards.text != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--mpi with --shard: either the processes work together, or each by itself");
    if (run->mpi && run->link != TSR_LINK_NONE)
        return tsr_fail(err, TSR_E_USAGE,
                        "--link with --mpi: of a link there is nothing that several processes could make");
    return run->mpi || run->dry_run || run->shards.text != NULL
               ? TSR_OK
               : tsr_check_alone("--mpi has them work together, --shard I/N each by itself", err);
}

tsr_status tsr_plan_run_check(tsr_plan_run *run, const tsr_option *options, uint64_t given, tsr_err *err)
{
    if (run->from.path == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera %s SRC -o DST", run->command);
    if (run->dst == NULL && !run->dry_run)
        return tsr_fail(err, TSR_E_USAGE, "where to? tessera %s SRC -o DST", run->command);
    if (run->threads == 0 && !run->mpi) /* else a rank 0 that only hands out */
        return tsr_fail(err, TSR_E_USAGE, "--threads: at least 1");
    if (run->from.max_shard_bytes == 0)
        return tsr_fail(err, TSR_E_USAGE, "--max-shard-size: at least 1 byte");
    TSR_TRY(check_processes(run, err));
    TSR_TRY(tsr_shard_parse(&run->shards, err));
    if (run->shards.text != NULL && run->force)
        return tsr_fail(
            err, TSR_E_USAGE,
            "--force with --shard: other shards may be at work there; remove the directory, or name another");
    TSR_TRY(tsr_shard_note_command(&run->shards, run->command, run->from.path, options, given, err));
    return tsr_quant_limits_parse(&run->limits, err);
}

tsr_status tsr_plan_run_places(const tsr_plan_run *run, const char *const *sources, size_t n, tsr_err *err)
{
    tsr_places places = {.dst = run->dst,
                         .json = run->json,
                         .junit = run->junit,
                         .progress = run->progress.file,
                         .unconfined = tsr_unconfined_ranks(run->mpi),
                         .untouched = run->dry_run,
                         .shared = run->shards.text != NULL,
                         .links = run->link == TSR_LINK_HARD};
    memcpy(places.sources, sources, n * sizeof *sources);
    return tsr_places_check(&places, err);
}
