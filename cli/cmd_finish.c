/* tessera finish: puts shards together. The shards' journals hold the command, so that the plan can be made again. */
#include "cli/commands.h"
#include "cli/next.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/plan_job.h"
#include "cli/results.h"
#include "cli/stage.h"
#include "common/file.h"
#include "common/threads.h"
#include "convert/engine/destination.h"
#include "convert/engine/journal_records.h"
#include "formats/json/json_write.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char kHelp[] =
    "tessera finish DST [options]\n\n"
    "Puts together what 'tessera quantize --shard I/N' or 'tessera convert --shard I/N' have made in DST, on one "
    "machine "
    "or\n"
    "many: verifies every file, then writes the report, the index and, last, config.json. DST is then as one process "
    "would\n"
    "have made it. Shards that are not complete are named, with the commands that complete them: exit code 1. SRC has "
    "to "
    "be\n"
    "where it was, unchanged; --source says where it is now.\n\n"
    "Examples:\n"
    "  tessera quantize DeepSeek-V3-BF16 -o out --shard 0/2      and --shard 1/2, at the same time, anywhere\n"
    "  tessera finish out\n\n"
    "Options:\n";

/* What the command line says. */
typedef struct finishing {
    const char *dst, *source;
    tsr_check_options own;
    uint64_t memory, cpumask;
    tsr_shards found;
    tsr_arena arena;
    const char **words; /* of the job's command line, without the command */
    size_t n_words;
    const char *command;
    tsr_plan_job job;
} finishing;

static tsr_status parse(int argc, char **argv, finishing *f, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"--source", TSR_OPT_TEXT, &f->source, "SRC", "where the source is now (where the shards found it)"},
        {"--memory", TSR_OPT_SIZE, &f->memory, "SIZE", "what the job may use at most (2GiB)"},
        {"--cpumask", TSR_OPT_COUNT, &f->cpumask, "MASK", "instruction sets allowed (all); same bits with any"},
    };
    size_t n;
    uint64_t given;
    tsr_options_append_check(options, &f->own);
    TSR_TRY(tsr_options_parse(options, argc, argv, &f->dst, 1, &n, &given, err));
    if (f->own.help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    if (tsr_stage_now() != NULL)
        return tsr_fail(err, TSR_E_USAGE, "finish is not for a job of a batch: no job of one makes shards");
    if (f->dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which output? tessera finish DST");
    const tsr_places places = {.sources = {f->source},
                               .dst = f->dst,
                               .json = f->own.json,
                               .junit = f->own.junit,
                               .progress = f->own.progress.file,
                               .unconfined = "the shards' journals name what it reads"};
    TSR_TRY(tsr_places_check(&places, err));
    f->words = tsr_arena_alloc(&f->arena, (TSR_MOST_WORDS + 1) * sizeof *f->words);
    return f->words == NULL
               ? tsr_out_of_memory(err, NULL)
               : tsr_options_spell(options, given, "--source", &f->arena, f->words, TSR_MOST_WORDS, &f->n_words, err);
}

/* ---- where there are no shards ---- */

static tsr_status stands(const char *dst, const char *name, bool *there, tsr_err *err)
{
    char path[PATH_MAX];
    return tsr_exists(tsr_output_path(dst, name, path), there, err);
}

/* Shards that have been put together leave a journal as one process does. */
static tsr_status find_finished(finishing *f, tsr_err *err)
{
    char path[PATH_MAX];
    const char *text;
    size_t size;
    tsr_names outputs;
    bool there;
    TSR_TRY(stands(f->dst, TSR_STATE_DIR "/journal", &there, err));
    if (!there)
        return tsr_fail(err, TSR_E_USAGE, "%s: no shards there: neither --shard nor anything else has begun an output",
                        f->dst);
    TSR_TRY(tsr_read_file(tsr_output_path(f->dst, TSR_STATE_DIR "/journal", path), TSR_MAX_JOURNAL_BYTES, &f->arena,
                          &text, &size, err));
    TSR_TRY(tsr_records_list(text, size, TSR_OUTPUT_RECORD, &f->arena, &outputs, err));
    for (size_t i = 0; i < outputs.count; i++) {
        TSR_TRY(stands(f->dst, outputs.items[i], &there, err));
        if (!there)
            return tsr_fail(err, TSR_E_NOTHING,
                            "%s: no shards there, and not complete: the command that began it, without --shard, "
                            "carries on",
                            f->dst);
    }
    if (outputs.count == 0)
        return tsr_fail(err, TSR_E_NOTHING, "%s: no shards there, and nothing finished", f->dst);
    if (!f->own.quiet && !tsr_is_stdout(f->own.json) && !tsr_is_stdout(f->own.junit))
        tsr_print("%s: finished already; the command without --shard verifies it\n", f->dst);
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_member_string(&t, "schema", "tessera-finish/1");
    tsr_json_member_string(&t, "version", TSR_VERSION);
    tsr_json_member_bool(&t, "finished_already", true);
    tsr_json_key(&t, "actions"); /* nothing was done: as a run says it */
    tsr_json_begin_object(&t, true);
    tsr_json_end_object(&t);
    tsr_json_end_object(&t);
    tsr_text_append(&t, "\n", 1);
    const tsr_status status = tsr_results_write(f->own.json, f->own.junit, &t, err);
    tsr_text_free(&t);
    return status;
}

/* ---- the job ---- */

/* Makes the command line of the job: what the first shard recorded whose journal is whole so far, DST, and what this
 * command was given. */
static tsr_status compose(finishing *f, tsr_err *err)
{
    const char *const *recorded = NULL;
    size_t n = 0;
    for (size_t i = 0; i < f->found.n_present && n < 2; i++)
        TSR_TRY(tsr_shard_words(f->dst, f->found.present[i], f->found.count, &f->arena, &recorded, &n, err));
    if (n < 2)
        return tsr_fail(err, TSR_E_NOTHING, "%s: no shard there has begun: run them, each with --shard I/%u", f->dst,
                        f->found.count);
    const char **const all = tsr_arena_alloc(&f->arena, (n + f->n_words + 4) * sizeof *all);
    if (all == NULL)
        return tsr_out_of_memory(err, NULL);
    f->command = recorded[0];
    memcpy(all, recorded + 1, (n - 1) * sizeof *all);
    if (f->source != NULL)
        all[0] = f->source;
    memcpy(all + n - 1, f->words, f->n_words * sizeof *all);
    f->words = all;
    f->n_words += n - 1;
    all[f->n_words++] = "-o";
    all[f->n_words++] = f->dst;
    return TSR_OK;
}

static tsr_plan_reader *reader_of(const char *command)
{
    return strcmp(command, "quantize") == 0  ? tsr_quantize_read
           : strcmp(command, "convert") == 0 ? tsr_convert_read
                                             : NULL;
}

/* The commands that complete the shards which lack something. */
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
        tsr_print_path(f->dst);
        tsr_print(" --shard %u/%u\n", k, f->found.count);
    }
    tsr_arena_free(&scratch);
}

static tsr_status put_together(finishing *f, tsr_err *err)
{
    tsr_plan_job *const job = &f->job;
    tsr_plan_reader *const read = reader_of(f->command);
    if (read == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: its shards were made by 'tessera %s', which this version has not",
                        f->dst, f->command);
    if (access(f->words[0], F_OK) != 0)
        return tsr_fail_errno(err, "%s: the source is gone, or cannot be seen from here; --source SRC says where it is",
                              f->words[0]);
    TSR_TRY(read(job, (int)f->n_words, (char **)f->words, err));
    TSR_TRY(tsr_plan_job_make(job, err));
    bool *const lacking = tsr_arena_alloc(&f->arena, f->found.count * sizeof *lacking);
    if (lacking == NULL)
        return tsr_out_of_memory(err, NULL);
    job->run.shards.shard = (tsr_shard){.count = f->found.count, .finish = true, .lacking = lacking};
    const tsr_status status = tsr_run_plan(&job->run, &job->plan, err);
    if (status == TSR_E_NOTHING && !f->own.quiet && !tsr_is_stdout(f->own.json) && !tsr_is_stdout(f->own.junit))
        print_lacking(f, lacking);
    return status;
}

static tsr_status finish(finishing *f, tsr_err *err)
{
    bool there;
    TSR_TRY(tsr_exists(f->dst, &there, err));
    if (!there)
        return tsr_fail(err, TSR_E_USAGE, "%s: there is no such directory", f->dst);
    TSR_TRY(tsr_shards_find(f->dst, &f->arena, &f->found, err));
    if (f->found.n_present == 0)
        return find_finished(f, err);
    TSR_TRY(compose(f, err));
    return put_together(f, err);
}

int tsr_cmd_finish(int argc, char **argv)
{
    finishing f = {.own = {.threads = tsr_cpu_count()}, .memory = TSR_DEFAULT_MEMORY};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &f, &err);
    if (status == TSR_OK && !f.own.help)
        status = finish(&f, &err);
    const bool fine = f.job.run.beyond == 0;
    tsr_plan_job_close(&f.job);
    const int code = tsr_end(status != TSR_OK && f.command != NULL ? f.command : "finish", status, fine, &err);
    tsr_arena_free(&f.arena);
    return code;
}
