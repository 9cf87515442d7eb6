/* tessera batch: its options, and the order of things. */
#include "cli/batch.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/results.h"

static const char kHelp[] =
    "tessera batch JOBS [options]\n\n"
    "Carries out many jobs in one run: many models, or many outputs of one. JOBS is JSON: an array of jobs, or one on "
    "each\n"
    "line. A job has a name, and the words of a command as its own command line has them:\n\n"
    "  {\"name\": \"fp8\",   \"args\": [\"quantize\", \"Llama\", \"-o\", \"Llama-FP8\"]}\n"
    "  {\"name\": \"nvfp4\", \"args\": [\"quantize\", \"Llama\", \"-o\", \"Llama-FP4\", \"--scheme\", "
    "\"nvfp4-weight-only\"]}\n"
    "  {\"name\": \"check\", \"args\": [\"verify\", \"Llama-FP8\", \"--against\", \"Llama\", \"--min-sqnr\", "
    "\"30\"]}\n\n"
    "All jobs are checked before the first begins: their options, places and plans. They are carried out in their "
    "order; a\n"
    "job may read what an earlier one writes. After a failure, or when it is interrupted or killed, the same command\n"
    "carries on: outputs that are finished are verified and kept. Outputs of one source are made together, and it is "
    "read\n"
    "once.\n"
    "Exit code: the gravest of all jobs, of 130, 4, 5, 3, 2, 1, 0.\n\n"
    "Examples:\n"
    "  tessera batch jobs.jsonl --dry-run                    the jobs, what they wait for, what they read and write\n"
    "  tessera batch jobs.jsonl --keep-going --json night.json\n"
    "  tessera batch jobs.json --results results --junit jobs.xml      and tessera report results/*.json\n"
    "  tessera report night.json                             who failed, and why\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, tsr_batch *b, tsr_err *err)
{
    const tsr_option options[] = {
        {"--keep-going", TSR_OPT_FLAG, &b->keep_going, NULL,
         "after a failure, carry out all jobs that do not need what failed (stop)"},
        {"--apart", TSR_OPT_FLAG, &b->apart, NULL,
         "carry out each job by itself, also those whose source could be read once for several"},
        {"--dry-run", TSR_OPT_FLAG, &b->dry_run, NULL, "check and plan all jobs, print it, and stop"},
        {"--results", TSR_OPT_TEXT, &b->results, "DIR",
         "the JSON result of each job as DIR/NAME.json, unless it has a --json of its own (in the summary)"},
        {"--threads", TSR_OPT_TEXT, &b->threads, "N", "for all jobs that have none of their own"},
        {"--memory", TSR_OPT_TEXT, &b->memory, "SIZE", "likewise"},
        {"--cpumask", TSR_OPT_TEXT, &b->cpumask, "MASK", "likewise"},
        {"--io", TSR_OPT_TEXT, &b->io, "auto|buffered|direct", "likewise"},
        {"--json", TSR_OPT_TEXT, &b->json, "FILE", "the summary as JSON ('-': stdout)"},
        {"--junit", TSR_OPT_TEXT, &b->junit, "FILE", "the summary as JUnit XML: a case for each job"},
        TSR_PROGRESS_OPTIONS(&b->progress),
        {"--quiet", TSR_OPT_FLAG, &b->quiet, NULL, "no progress, no text of the jobs, no table"},
        {"--help", TSR_OPT_FLAG, &b->help, NULL, "this text"},
        {0},
    };
    size_t n;
    TSR_TRY(tsr_options_parse(options, argc, argv, &b->path, 1, &n, NULL, err));
    if (b->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    return b->path == NULL ? tsr_fail(err, TSR_E_USAGE, "which jobs? tessera batch JOBS.json") : TSR_OK;
}

/* Checks the batch's own places as those of a job, which stands behind all others. */
static tsr_status check_places(tsr_batch *b, tsr_err *err)
{
    const tsr_places places = {.sources = {b->path},
                               .json = b->json,
                               .junit = b->junit,
                               .progress = b->progress.file,
                               .unconfined = "its jobs name what they read and write"};
    return tsr_places_check(&places, err);
}

static tsr_status note_places(tsr_batch *b, tsr_err *err)
{
    tsr_batch_job *const itself = &b->jobs[b->n_jobs];
    const tsr_places places = {.sources = {b->path},
                               .json = tsr_is_stdout(b->json) ? NULL : b->json,
                               .junit = tsr_is_stdout(b->junit) ? NULL : b->junit};
    tsr_stage_set(&itself->stage);
    const tsr_status status = tsr_places_note(&places, err);
    tsr_stage_set(NULL);
    return status;
}

static tsr_status tell(const tsr_batch *b, tsr_err *err)
{
    if (tsr_batch_talks(b))
        (b->dry_run ? tsr_batch_print_plan : tsr_batch_print)(b);
    if (b->json == NULL && b->junit == NULL)
        return TSR_OK;
    tsr_text text = {0};
    tsr_batch_write(b, &text);
    const tsr_status status = tsr_results_write(b->json, b->junit, &text, err);
    tsr_text_free(&text);
    return status;
}

static tsr_status carry_out(tsr_batch *b, tsr_err *err)
{
    TSR_TRY(tsr_terminal_open(&b->terminal, b->quiet, &b->progress, err));
    const tsr_status status = tsr_batch_run(b, err);
    tsr_terminal_close(&b->terminal);
    return status;
}

/* Jobs owe reports of their own; what the batch owes is put back when they are done. */
static tsr_status batch(tsr_batch *b, tsr_err *err)
{
    TSR_TRY(check_places(b, err));
    const tsr_owed owed = tsr_reports_owed();
    tsr_err unwritten = {{0}};
    TSR_TRY(tsr_batch_read(b, err));
    tsr_status status = note_places(b, err);
    if (status == TSR_OK)
        status = tsr_batch_check(b, err);
    const bool checked = status == TSR_OK;
    if (checked && !b->dry_run)
        status = carry_out(b, err);
    (void)tsr_owe_reports(owed);
    if (!checked || (status != TSR_OK && status != TSR_E_CANCELLED))
        return status;
    const tsr_status told = tell(b, status == TSR_OK ? err : &unwritten);
    return status == TSR_OK ? told : status;
}

int tsr_cmd_batch(int argc, char **argv)
{
    tsr_batch b = {.path = NULL};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &b, &err);
    if (status == TSR_OK && !b.help)
        status = batch(&b, &err);
    const int code = b.code;
    const int ended = tsr_end("batch", status, true, &err);
    tsr_batch_free(&b);
    return ended == 0 ? code : ended;
}
