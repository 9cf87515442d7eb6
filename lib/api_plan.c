/* Makes, describes and runs plans of quantize and convert. */
#include "lib/api.h"

#include "common/path_guard.h"
#include "convert/jobs/convert_job.h"
#include "convert/jobs/quantize_job.h"
#include "convert/plans/policy_plan.h"
#include "convert/run/engine.h"
#include "formats/remote/address.h"

#include <stdlib.h>
#include <string.h>

struct tessera_plan {
    tsr_quantize_job quantize; /* one of these two */
    tsr_convert_job convert;
    tsr_job_source from;
    uint64_t threads, memory, cpumask;
    int io;
    bool force;
    tsr_plan plan;
    tsr_arena arena; /* words */
};

/* Copies the words. The options point to them. */
static const char *const *keep_words(tessera_plan *p, const char *const *words, tsr_err *err)
{
    size_t n = 0;
    while (words != NULL && words[n] != NULL)
        n++;
    const char **const kept = tsr_arena_alloc(&p->arena, (n + 1) * sizeof *kept);
    for (size_t i = 0; kept != NULL && i < n; i++)
        kept[i] = tsr_arena_dup(&p->arena, words[i], strlen(words[i]));
    if (tsr_arena_status(&p->arena, TSR_OK, err) != TSR_OK)
        return NULL;
    return kept;
}

static tsr_status read_words(tessera_plan *p, bool quantizes, const char *const *words, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"--ignore-file", TSR_OPT_LIST, &p->from.ignore, "GLOB", NULL},
        {"--max-shard-size", TSR_OPT_SIZE, &p->from.max_shard_bytes, "SIZE", NULL},
        {"--threads", TSR_OPT_POSITIVE, &p->threads, "N", NULL},
        {"--memory", TSR_OPT_SIZE, &p->memory, "SIZE", NULL},
        {"--cpumask", TSR_OPT_COUNT, &p->cpumask, "MASK", NULL},
        {"--io", TSR_OPT_CHOICE, &p->io, "auto|buffered|direct", NULL},
        {"--force", TSR_OPT_FLAG, &p->force, NULL, NULL},
    };
    uint64_t given;
    if (quantizes)
        tsr_quantize_job_options(&p->quantize, options);
    else
        tsr_convert_job_options(&p->convert, options);
    TSR_TRY(tsr_words_parse(words, options, &given, err));
    return quantizes ? tsr_quantize_job_check(&p->quantize, options, given, err)
                     : tsr_convert_job_check(&p->convert, options, given, err);
}

static tsr_status make(tessera_plan *p, const char *command, const char *source, const char *const *words, tsr_err *err)
{
    const bool quantizes = strcmp(command, "quantize") == 0;
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    if (!quantizes && strcmp(command, "convert") != 0)
        return tsr_fail(err, TSR_E_USAGE, "'%s' is not a command that makes a checkpoint; use quantize or convert",
                        command);
    const char *const *const kept = keep_words(p, words, err);
    p->from.path = tsr_arena_dup(&p->arena, source, strlen(source));
    if (kept == NULL || p->from.path == NULL)
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(read_words(p, quantizes, kept, err));
    return quantizes ? tsr_quantize_job_plan(&p->quantize, &p->from, &p->plan, err)
                     : tsr_convert_job_plan(&p->convert, &p->from, &p->plan, err);
}

tessera_status tessera_plan_make(tessera_plan **plan, const char *command, const char *source,
                                 const char *const *options, tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    tessera_plan *p = calloc(1, sizeof *p);
    if (p != NULL) {
        p->quantize = tsr_quantize_job_defaults();
        p->convert = tsr_convert_job_defaults();
        p->from.max_shard_bytes = TSR_MAX_SHARD_BYTES;
        p->threads = tsr_cpu_count();
        p->memory = TSR_DEFAULT_MEMORY;
        p->cpumask = TSR_CPU_ALL;
    }
    const tsr_status status = make(p, command, source, options, &call.err);
    if (status != TSR_OK) {
        tessera_plan_free(p);
        p = NULL;
    }
    *plan = p;
    return tsr_call_end(&call, status, error);
}

void tessera_plan_free(tessera_plan *p)
{
    if (p == NULL)
        return;
    tsr_plan_free(&p->plan);
    tsr_quantize_job_free(&p->quantize);
    tsr_convert_job_free(&p->convert);
    tsr_arena_free(&p->arena);
    free(p);
}

/* ---- reading the plan ---- */

void tessera_plan_sum(const tessera_plan *p, tessera_plan_sums *sums)
{
    *sums = (tessera_plan_sums){.tensors = p->plan.n_notes,
                                .files = p->plan.n_files,
                                .bytes_in = p->plan.bytes_in,
                                .bytes_out = p->plan.bytes_out,
                                .memory = tsr_engine_memory_at_most(&p->plan, p->threads, p->io, p->memory),
                                .warnings = p->plan.n_warnings};
}

tessera_status tessera_plan_note_at(const tessera_plan *p, size_t index, tessera_plan_note *note, tessera_error *error)
{
    tsr_call call;
    tsr_call_begin(&call);
    if (index >= p->plan.n_notes)
        return tsr_call_end(
            &call, tsr_fail(&call.err, TSR_E_USAGE, "no note %zu: the plan has %zu", index, p->plan.n_notes), error);
    const tsr_plan_note *const n = &p->plan.notes[index];
    *note = (tessera_plan_note){.name = n->source->name, .action = n->action, .reason = n->reason};
    return tsr_call_end(&call, TSR_OK, error);
}

const char *tessera_plan_warning(const tessera_plan *p, size_t index)
{
    return index < p->plan.n_warnings ? p->plan.warnings[index] : NULL;
}

/* ---- running ---- */

/* Rejects a destination that overlaps any input of the plan. */
static tsr_status check_paths(const tessera_plan *p, const char *dst, tsr_err *err)
{
    const char *const sources[] = {p->from.path,      p->quantize.of.activations, p->quantize.of.importance,
                                   p->quantize.rules, p->quantize.scales_from,    p->convert.against,
                                   p->convert.config, p->convert.activations,     p->convert.importance};
    tsr_path_guard guard = {0};
    if (tsr_is_remote(dst))
        return tsr_fail(err, TSR_E_USAGE,
                        "%s: the library writes outputs to directories only; 'tessera quantize -o s3://...' sends them",
                        dst);
    tsr_status status = tsr_path_guard_read(&guard, sources, sizeof sources / sizeof *sources, err);
    if (status == TSR_OK)
        status = tsr_path_guard_check_directory(&guard, dst, TSR_STATE_DIR, err);
    tsr_path_guard_free(&guard);
    return status;
}

static tsr_status run(tessera_plan *p, const char *dst, tsr_api_watch *watch, tessera_result *result, tsr_err *err)
{
    const tsr_engine_options options = {.run = tsr_watch_options(watch, p->threads, p->memory),
                                        .force = p->force,
                                        .io = (tsr_io_mode)p->io,
                                        .cpu_flags = tsr_cpu_flags() & (unsigned)p->cpumask};
    tsr_engine_result done;
    TSR_TRY(tsr_plan_check_decoded(&p->plan, err));
    TSR_TRY(check_paths(p, dst, err));
    const tsr_status status = tsr_engine_run(&p->plan, dst, &options, &done, err);
    if (status == TSR_OK && result != NULL)
        *result = (tessera_result){.already_complete = done.already_complete,
                                   .files_resumed = done.files_resumed,
                                   .bytes_read = done.bytes_read,
                                   .bytes_written = done.bytes_written,
                                   .seconds = done.seconds,
                                   .threads = done.threads,
                                   .sqnr = tsr_engine_result_sqnr(&done, &p->plan)};
    tsr_engine_result_free(&done);
    return status;
}

tessera_status tessera_plan_run(tessera_plan *p, const char *destination, tessera_progress_fn *progress, void *data,
                                tessera_result *result, tessera_error *error)
{
    tsr_call call;
    tsr_api_watch watch = {.tell = progress, .data = data};
    tsr_call_begin(&call);
    return tsr_call_end(&call, run(p, destination, &watch, result, &call.err), error);
}
