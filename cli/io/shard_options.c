/* Parses --shard I/N, records the command line for `tessera finish`, and prints the results of a shard. */
#include "cli/io/shard_options.h"

#include "cli/help/next_command.h"
#include "cli/io/output.h"
#include "common/text.h"
#include "formats/json/json_write.h"
#include "formats/remote/address.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Options of the process or the machine, which do not change the output. */
static const char kOfProcess[] =
    "-o --spool --shard --threads --cpumask --memory --io --link --mpi --dry-run --force --json --junit --progress "
    "--progress-file --quiet --help";
/* Options whose values are paths. */
static const char kPaths[] = "--rules --scales-from --activations --importance --against --config";

tsr_status tsr_shard_parse(tsr_shard_run *run, tsr_err *err)
{
    const char *text = run->text;
    uint64_t index, count;
    if (text == NULL)
        return TSR_OK;
    if (!tsr_take_decimal(&text, &index) || *text++ != '/' || !tsr_parse_decimal(text, &count) || index >= count ||
        count > TSR_MAX_SHARDS)
        return tsr_fail(err, TSR_E_USAGE,
                        "--shard: '%s' is not I/N, the number of the shard (from 0) and the number "
                        "of shards, such as 0/8",
                        run->text);
    run->shard.index = (unsigned)index;
    run->shard.count = (unsigned)count;
    return TSR_OK;
}

/* ---- the command ---- */

static const char *absolute(tsr_arena *arena, const char *path)
{
    char here[PATH_MAX];
    if (path[0] == '/' || tsr_is_remote(path) || getcwd(here, sizeof here) == NULL)
        return tsr_arena_dup(arena, path, strlen(path));
    return tsr_arena_printf(arena, "%s/%s", here, path);
}

static const char *spell_value(const tsr_option *o, const char *text, tsr_arena *arena)
{
    if (text == NULL)
        return NULL;
    const char *const value = tsr_is_listed(kPaths, o->name) ? absolute(arena, text) : text;
    return value == NULL ? NULL : tsr_arena_printf(arena, "%s=%s", o->name, value);
}

/* Spells an option; a list as many times as it was given. */
static tsr_status spell(const tsr_option *o, tsr_arena *arena, const char **words, size_t *n, tsr_err *err)
{
    const size_t times = o->kind == TSR_OPT_LIST ? ((const tsr_list *)o->value)->count : 1;
    for (size_t i = 0; i < times; i++) {
        const char *const word = o->kind == TSR_OPT_TEXT ? spell_value(o, *(const char *const *)o->value, arena)
                                 : o->kind == TSR_OPT_LIST
                                     ? spell_value(o, ((const tsr_list *)o->value)->items[i], arena)
                                     : tsr_option_spell(o, arena);
        if (word == NULL || *n == TSR_MOST_WORDS)
            return tsr_out_of_memory(err, "for the words of the command");
        words[(*n)++] = word;
    }
    return TSR_OK;
}

tsr_status tsr_options_spell(const tsr_option *options, uint64_t given, const char *except, tsr_arena *arena,
                             const char **words, size_t *n, tsr_err *err)
{
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((given >> i & 1) != 0 && !tsr_is_listed(except, options[i].name))
            TSR_TRY(spell(&options[i], arena, words, n, err));
    }
    return TSR_OK;
}

tsr_status tsr_shard_note_command(tsr_shard_run *run, const char *command, const char *const *sources, size_t n_sources,
                                  const tsr_option *options, uint64_t given, tsr_err *err)
{
    if (run->text == NULL)
        return TSR_OK;
    const char **const words = tsr_arena_alloc(&run->arena, TSR_MOST_WORDS * sizeof *words);
    size_t n = 0;
    if (words == NULL)
        return tsr_out_of_memory(err, "for the words of the command");
    words[n++] = command;
    for (size_t i = 0; i < n_sources; i++)
        words[n++] = absolute(&run->arena, sources[i]);
    TSR_TRY(tsr_arena_status(&run->arena, TSR_OK, err));
    TSR_TRY(tsr_options_spell(options, given, kOfProcess, &run->arena, words, &n, err));
    for (size_t i = 0; i < n; i++) {
        if (!tsr_is_printable(words[i]))
            return tsr_fail(err, TSR_E_USAGE,
                            "--shard: the name of the working directory has a control character, so the command "
                            "cannot be recorded for 'tessera finish'");
    }
    run->shard.words = words;
    run->shard.n_words = n;
    return TSR_OK;
}

const tsr_shard *tsr_shard_of(const tsr_shard_run *run)
{
    return run->shard.count == 0 ? NULL : &run->shard;
}

/* ---- telling ---- */

static tsr_status divide(const tsr_shard_run *run, const tsr_plan *plan, uint32_t **owner, tsr_err *err)
{
    *owner = calloc(plan->n_files + 1, sizeof **owner);
    const tsr_status status = *owner == NULL ? tsr_out_of_memory(err, "for the shards")
                                             : tsr_shards_divide(plan, run->shard.count, *owner, err);
    if (status != TSR_OK)
        free(*owner);
    return status;
}

tsr_status tsr_shard_measure(tsr_shard_run *run, const tsr_plan *plan, tsr_err *err)
{
    uint32_t *owner;
    if (!tsr_is_shard(run))
        return TSR_OK;
    TSR_TRY(divide(run, plan, &owner, err));
    run->size = tsr_shard_size_of(plan, owner, run->shard.index);
    free(owner);
    return TSR_OK;
}

tsr_status tsr_shard_print_plan(const tsr_shard_run *run, const tsr_plan *plan, tsr_err *err)
{
    uint32_t *owner;
    char in[32], out[32];
    TSR_TRY(divide(run, plan, &owner, err));
    for (size_t i = 0; i < plan->n_files; i++) {
        if (owner[i] == run->shard.index)
            tsr_print("write      %s, %s%llu bytes\n", plan->files[i].name, plan->files[i].appended ? "at most " : "",
                      U64(plan->files[i].bytes));
    }
    free(owner);
    tsr_print("shard %s: %llu of %zu file%s, %s in, %s out\n", run->text, U64(run->size.files), plan->n_files,
              tsr_plural(plan->n_files), tsr_bytes_text((double)run->size.bytes_in, in),
              tsr_bytes_text((double)run->size.bytes_out, out));
    return TSR_OK;
}

void tsr_shard_print_space(const tsr_shard_run *run)
{
    char out[32];
    tsr_print("disk: %s needed\n", tsr_bytes_text((double)run->size.bytes_out, out));
}

void tsr_shard_print_end(const tsr_shard_run *run, const char *output, const char *spool)
{
    if (run->size.files == 1)
        tsr_print("shard %s: its file is complete\n", run->text);
    else
        tsr_print("shard %s: its %llu files are complete\n", run->text, U64(run->size.files));
    tsr_print("when every shard is complete (%u): tessera finish ", run->shard.count);
    tsr_print_path(output);
    if (spool != NULL) {
        tsr_print(" --spool ");
        tsr_print_path(spool);
    }
    tsr_print("\n");
}

void tsr_shard_json(tsr_text *t, const tsr_shard_run *run)
{
    if (run->shard.finish)
        tsr_json_member_u64(t, "shards", run->shard.count);
    if (!tsr_is_shard(run))
        return;
    tsr_json_member_object(t, "shard", true);
    tsr_json_member_u64(t, "index", run->shard.index);
    tsr_json_member_u64(t, "of", run->shard.count);
    tsr_json_member_u64(t, "files", run->size.files);
    tsr_json_member_u64(t, "bytes_in", run->size.bytes_in);
    tsr_json_member_u64(t, "bytes_out", run->size.bytes_out);
    tsr_json_end_object(t);
}
