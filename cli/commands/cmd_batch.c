/* Implements `tessera batch`: its options and the order of its steps. */
#include "cli/batch/batch.h"
#include "cli/commands/commands.h"

static const char kHelp[] =
    "tessera batch JOBS [options]\n\n"
    "Runs many commands, for many models or for many outputs of one. JOBS is a JSON array of jobs, or one\n"
    "job on each line. A job has a name, and the words of a command line:\n\n"
    "  {\"name\": \"fp8\",   \"args\": [\"quantize\", \"Llama\", \"-o\", \"Llama-FP8\"]}\n"
    "  {\"name\": \"nvfp4\", \"args\": [\"quantize\", \"Llama\", \"-o\", \"Llama-FP4\", \"--scheme\", "
    "\"nvfp4-weight-only\"]}\n"
    "  {\"name\": \"check\", \"args\": [\"verify\", \"Llama-FP8\", \"--against\", \"Llama\", \"--min-sqnr\", "
    "\"30\"]}\n\n"
    "The options, paths and plans of all jobs are checked before the first job begins. Jobs run in their\n"
    "order, and a job may read what an earlier job writes. Outputs of one source are made together, and\n"
    "the source is read once. After a failure, an interrupt or a kill, the same command continues:\n"
    "finished outputs are verified and kept.\n\n"
    "Exit code: the gravest of all jobs, of 130, 4, 5, 3, 2, 1, 0.\n\n"
    "Examples:\n"
    "  tessera batch jobs.jsonl --dry-run                    the jobs, their order and sizes\n"
    "  tessera batch jobs.jsonl --keep-going --json night.json\n"
    "  tessera batch jobs.json --results results --junit jobs.xml      and tessera report results/*.json\n"
    "  tessera report night.json                             the failures and their reasons\n\n"
    "Options:\n";

static void add_options(tsr_command_context *c, tsr_option *options)
{
    tsr_batch *const b = c->job;
    const tsr_option own[] = {
        {"--keep-going", TSR_OPT_FLAG, &b->keep_going, NULL,
         "after a failure, run all jobs that do not depend on the failed one (stop)"},
        {"--dry-run", TSR_OPT_FLAG, &b->dry_run, NULL, "check and plan all jobs, print the plan, and stop"},
        {"--results", TSR_OPT_TEXT, &b->results, "DIR",
         "write the JSON result of each job as DIR/NAME.json, unless it has a --json of its own (in the summary)"},
        {"--threads", TSR_OPT_TEXT, &b->threads, "N",
         "number of worker threads of all jobs without their own --threads"},
        {"--memory", TSR_OPT_TEXT, &b->memory, "SIZE", "the most memory of all jobs without their own --memory"},
        {"--cpumask", TSR_OPT_TEXT, &b->cpumask, "MASK", NULL},
        {"--io", TSR_OPT_TEXT, &b->io, "auto|buffered|direct", "the --io of all jobs without their own"},
        {0},
    };
    tsr_options_append(options, own);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    tsr_batch *const b = c->job;
    b->path = c->words[0];
    b->main = c;
    return b->path == NULL ? tsr_fail(err, TSR_E_USAGE, "no jobs given: tessera batch JOBS.json") : TSR_OK;
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    paths->sources[0] = c->words[0];
    paths->unconfined = "its jobs name the paths that it reads and writes";
}

static tsr_status open_jobs(tsr_command_context *c, tsr_err *err)
{
    tsr_batch *const b = c->job;
    TSR_TRY(tsr_batch_read(b, err));
    TSR_TRY(tsr_batch_record_own_paths(b, err));
    TSR_TRY(tsr_batch_check(b, err));
    if (b->dry_run)
        c->common.progress = (tsr_progress_options){0};
    return TSR_OK;
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    tsr_batch *const b = c->job;
    b->terminal = terminal;
    return b->dry_run ? TSR_OK : tsr_batch_run(b, err);
}

static tsr_status print(tsr_command_context *c, tsr_err *err)
{
    const tsr_batch *const b = c->job;
    (void)err;
    (b->dry_run ? tsr_batch_print_plan : tsr_batch_print)(b);
    return TSR_OK;
}

static void write_json(const tsr_command_context *c, tsr_text *text)
{
    tsr_batch_json(c->job, text);
}

static tsr_status conclude(tsr_command_context *c, tsr_err *err)
{
    const tsr_batch *const b = c->job;
    return b->cancelled == TSR_OK
               ? TSR_OK
               : tsr_fail(err, b->cancelled, "interrupted; finished outputs are kept: repeat the command to resume");
}

static int exit_code(const tsr_command_context *c)
{
    const tsr_batch *const b = c->job;
    return b->code;
}

static void close_job(tsr_command_context *c)
{
    tsr_batch_free(c->job);
}

const tsr_command tsr_command_batch = {
    .name = "batch",
    .summary = "run many of these commands, listed in a file",
    .schema = "tessera-batch/1",
    TSR_COMMAND(1, TSR_TAKES_PROGRESS, tsr_batch),
    .open = open_jobs,
    .print = print,
    .write_json = write_json,
    .conclude = conclude,
    .exit_code = exit_code,
};
