/* Implements `tessera finish`: joins shards. Their journals hold the command, so that the plan can be made again. */
#include "cli/commands/commands.h"
#include "cli/help/next_command.h"
#include "cli/io/output.h"
#include "cli/io/results.h"
#include "cli/plan_job.h"
#include "cli/runner.h"
#include "common/file.h"
#include "convert/records/destination.h"
#include "convert/records/journal_records.h"
#include "convert/uploads/uploads.h"
#include "formats/json/json_write.h"
#include "formats/remote/address.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

static const char kHelp[] =
    "tessera finish DST [options]\n\n"
    "Joins the shards that 'tessera quantize --shard I/N' or 'tessera convert --shard I/N' wrote in DST,\n"
    "on one machine or several. It verifies every file, then writes the report, the index and, last,\n"
    "config.json. DST is then the same as the output of one process. If shards are not complete, it\n"
    "prints the commands that complete them, and the exit code is 1. SRC must be unchanged; --source\n"
    "gives its place if it has moved. DST is a directory or, with the spool of the shards, s3://BUCKET/PREFIX.\n\n"
    "Examples:\n"
    "  tessera quantize DeepSeek-V3-BF16 -o out --shard 0/2      and --shard 1/2, at the same time, anywhere\n"
    "  tessera finish out\n"
    "  tessera finish s3://models/out --spool out.spool\n\n"
    "Options:\n";

typedef struct finishing {
    const char *dst;     /* the output directory, or the spool of an output of s3:// */
    const char *address; /* where the output is sent; NULL: it stays in `dst` */
    const char *source, *spool;
    tsr_shards found;
    const char *recorded; /* the command that made the shards: "quantize" */
    const char **words;   /* words of its command line, without the command */
    size_t n_words;
    tsr_command_context made_by; /* that command, with the option to join the shards */
} finishing;

static void add_options(tsr_command_context *c, tsr_option *options)
{
    finishing *const f = c->job;
    const tsr_option own[] = {
        {"--source", TSR_OPT_TEXT, &f->source, "SRC",
         "where the source is now (where it was when the shards were "
         "made)"},
        {"--spool", TSR_OPT_TEXT, &f->spool, "DIR", "the directory in which the output of s3:// is made (NAME.spool)"},
        {0},
    };
    tsr_options_append(options, own);
}

/* Separates the address of the output from its spool. */
static tsr_status take_address(tsr_command_context *c, tsr_err *err)
{
    finishing *const f = c->job;
    if (!tsr_is_remote(f->dst))
        return f->spool == NULL
                   ? TSR_OK
                   : tsr_fail(err, TSR_E_USAGE, "--spool has no effect: %s is not an address of s3://", f->dst);
    f->address = tsr_plan_job_address(f->dst, &c->arena);
    f->dst = f->spool != NULL || f->address == NULL ? f->spool : tsr_plan_job_spool(f->address, &c->arena);
    return tsr_arena_status(&c->arena, TSR_OK, err);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    finishing *const f = c->job;
    f->dst = c->words[0];
    if (c->batch != NULL)
        return tsr_fail(err, TSR_E_USAGE, "finish cannot be used in a batch: its jobs write no shards");
    if (f->dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no output given: tessera finish DST");
    TSR_TRY(take_address(c, err));
    f->words = tsr_arena_alloc(&c->arena, (TSR_MOST_WORDS + 1) * sizeof *f->words);
    return f->words == NULL
               ? tsr_out_of_memory(err, NULL)
               : tsr_options_spell(c->options, c->given, "--source --spool", &c->arena, f->words, &f->n_words, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const finishing *const f = c->job;
    paths->sources[0] = f->source;
    paths->dst = f->dst;
    paths->unconfined = "the journals of the shards name the source";
}

/* ---- no shards ---- */

static tsr_status find_output(const char *dst, const char *name, bool *there, tsr_err *err)
{
    char path[PATH_MAX];
    return tsr_exists(tsr_output_path(dst, name, path), there, err);
}

/* Checks that all objects of an output of s3:// were written. */
static tsr_status find_sent(const finishing *f, tsr_arena *arena, tsr_err *err)
{
    const char *address;
    bool complete;
    TSR_TRY(tsr_uploads_read_head(f->dst, arena, &address, &complete, err));
    if (address == NULL || strcmp(address, f->address) != 0)
        return tsr_fail(err, TSR_E_USAGE, "%s: not the spool of %s; name it with --spool", f->dst, f->address);
    return complete ? TSR_OK
                    : tsr_fail(err, TSR_E_NOTHING,
                               "%s: this output was begun without --shard and is not complete; repeat the command "
                               "without --shard to resume",
                               f->address);
}

/* Checks that DST is finished. Joined shards leave a journal like that of a single process. */
static tsr_status find_finished(const finishing *f, tsr_arena *arena, tsr_err *err)
{
    char path[PATH_MAX];
    const char *text;
    size_t size;
    tsr_names outputs;
    bool there;
    TSR_TRY(find_output(f->dst, TSR_STATE_DIR "/journal", &there, err));
    if (!there)
        return tsr_fail(err, TSR_E_USAGE, "%s: no shards found: no output was begun in this directory", f->dst);
    TSR_TRY(tsr_read_file(tsr_output_path(f->dst, TSR_STATE_DIR "/journal", path), TSR_MAX_JOURNAL_BYTES, arena, &text,
                          &size, err));
    TSR_TRY(tsr_records_list(text, size, TSR_OUTPUT_RECORD, arena, &outputs, err));
    if (f->address != NULL)
        return find_sent(f, arena, err);
    for (size_t i = 0; i < outputs.count; i++) {
        TSR_TRY(find_output(f->dst, outputs.items[i], &there, err));
        if (!there)
            return tsr_fail(err, TSR_E_NOTHING,
                            "%s: this output was begun without --shard and is not complete; repeat the command "
                            "without --shard to resume",
                            f->dst);
    }
    if (outputs.count == 0)
        return tsr_fail(err, TSR_E_NOTHING, "%s: no shards found, and no finished output", f->dst);
    return TSR_OK;
}

static tsr_status report_finished(tsr_command_context *c, tsr_err *err)
{
    const finishing *const f = c->job;
    tsr_text t = {0};
    if (c->prints)
        tsr_print("%s: already complete; repeat the command without --shard to verify it\n",
                  f->address != NULL ? f->address : f->dst);
    tsr_json_begin_document(&t, c->command->schema);
    tsr_json_member_bool(&t, "finished_already", true);
    tsr_json_member_object(&t, "actions", true); /* nothing was done, reported like a run */
    tsr_json_end_object(&t);
    tsr_json_end_document(&t);
    const tsr_status status = tsr_command_has_reports(c) ? tsr_results_write(c, &t, err) : TSR_OK;
    tsr_text_free(&t);
    return status;
}

/* ---- the job ---- */

/* Makes the command line of the job: the words of the first shard with a readable journal, DST, and the options of this
 * command. */
static tsr_status compose(finishing *f, tsr_arena *arena, tsr_err *err)
{
    const char *const *recorded = NULL;
    size_t n = 0;
    for (size_t i = 0; i < f->found.n_present && n < 2; i++)
        TSR_TRY(tsr_shard_words(f->dst, f->found.present[i], f->found.count, arena, &recorded, &n, err));
    if (n < 2)
        return tsr_fail(err, TSR_E_NOTHING, "%s: none of the shards has begun; run each with --shard I/%u", f->dst,
                        f->found.count);
    const char **const all = tsr_arena_alloc(arena, (n + f->n_words + 6) * sizeof *all);
    if (all == NULL)
        return tsr_out_of_memory(err, NULL);
    f->recorded = recorded[0];
    memcpy(all, recorded + 1, (n - 1) * sizeof *all);
    if (f->source != NULL)
        all[0] = f->source;
    memcpy(all + n - 1, f->words, f->n_words * sizeof *all);
    f->words = all;
    f->n_words += n - 1;
    all[f->n_words++] = "-o";
    all[f->n_words++] = f->address != NULL ? f->address : f->dst;
    if (f->address != NULL) {
        all[f->n_words++] = "--spool";
        all[f->n_words++] = f->dst;
    }
    return TSR_OK;
}

/* Prints the commands that complete the incomplete shards. */
static void print_lacking(const finishing *f, const bool *lacking)
{
    const char *const *recorded;
    size_t n;
    tsr_arena scratch = {0};
    const bool known =
        tsr_shard_words(f->dst, f->found.present[0], f->found.count, &scratch, &recorded, &n, NULL) == TSR_OK && n >= 2;
    for (unsigned k = 0; known && k < f->found.count; k++) {
        if (!lacking[k])
            continue;
        tsr_print("tessera");
        for (size_t i = 0; i < n; i++) {
            tsr_print(" ");
            tsr_print_quoted(i == 1 && f->source != NULL ? f->source : recorded[i]);
        }
        tsr_print(" -o ");
        tsr_print_path(f->address != NULL ? f->address : f->dst);
        if (f->address != NULL) {
            tsr_print(" --spool ");
            tsr_print_path(f->dst);
        }
        tsr_print(" --shard %u/%u\n", k, f->found.count);
    }
    tsr_arena_free(&scratch);
}

/* Runs the command that made the shards with the option to join them. */
static tsr_status join(tsr_command_context *c, tsr_err *err)
{
    finishing *const f = c->job;
    tsr_command_context *const made_by = &f->made_by;
    char *name = (char *)f->recorded;
    int n;
    const tsr_command *const command = tsr_command_find(c->commands, 1, &name, &n);
    if (command == NULL || !command->makes_plan)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: its shards were made by 'tessera %s', a command that this version "
                        "does not have",
                        f->dst, f->recorded);
    c->failed = command;
    if (!tsr_is_remote(f->words[0]) && access(f->words[0], F_OK) != 0)
        return tsr_fail_errno(err,
                              "%s: the source no longer exists or is not accessible; give its place with "
                              "--source SRC",
                              f->words[0]);
    TSR_TRY(tsr_command_begin(made_by, command, c, err));
    made_by->confined = c->confined;
    TSR_TRY(tsr_command_validate(made_by, (int)f->n_words, (char **)f->words, err));
    bool *const lacking = tsr_arena_alloc(&c->arena, f->found.count * sizeof *lacking);
    if (lacking == NULL)
        return tsr_out_of_memory(err, NULL);
    tsr_plan_job *const job = made_by->job;
    job->shards.shard = (tsr_shard){.count = f->found.count, .finish = true, .lacking = lacking};
    const tsr_status status = tsr_command_execute(made_by, err);
    c->pending = made_by->pending;
    if (status == TSR_E_NOTHING && made_by->prints)
        print_lacking(f, lacking);
    return status;
}

static tsr_status find_shards(tsr_command_context *c, tsr_err *err)
{
    finishing *const f = c->job;
    bool there;
    c->common.progress = (tsr_progress_options){0}; /* progress is shown by the command that joins the shards */
    TSR_TRY(tsr_exists(f->dst, &there, err));
    if (!there)
        return tsr_fail(err, TSR_E_USAGE, "%s: the directory does not exist", f->dst);
    TSR_TRY(tsr_shards_find(f->dst, &c->arena, &f->found, err));
    return f->found.n_present == 0 ? find_finished(f, &c->arena, err) : compose(f, &c->arena, err);
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    const finishing *const f = c->job;
    (void)terminal;
    return f->found.n_present == 0 ? report_finished(c, err) : join(c, err);
}

static int exit_code(const tsr_command_context *c)
{
    const finishing *const f = c->job;
    return f->made_by.job == NULL ? 0 : f->made_by.command->exit_code(&f->made_by);
}

static void close_job(tsr_command_context *c)
{
    finishing *const f = c->job;
    tsr_command_close(&f->made_by);
}

const tsr_command tsr_command_finish = {
    .name = "finish",
    .summary = "join the shards of quantize or convert",
    .schema = "tessera-finish/1",
    TSR_COMMAND(1, TSR_TAKES_THREADS | TSR_TAKES_MEMORY | TSR_TAKES_CPUMASK | TSR_TAKES_PROGRESS, finishing),
    .open = find_shards,
    .exit_code = exit_code,
};
