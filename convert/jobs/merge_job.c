/* Opens a base model and adapters, and plans their merge. */
#include "convert/jobs/merge_job.h"

#include "convert/jobs/convert_inputs.h"
#include "convert/jobs/provenance.h"
#include "formats/adapters/lora.h"
#include "formats/remote/address.h"
#include "formats/remote/settings/hub_access.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void tsr_merge_job_options(tsr_merge_job *job, tsr_option *options)
{
    const tsr_option own[] = {
        {"--source-block", TSR_OPT_TEXT, &job->source_block, "RxC",
         "the block size of a base in block FP8 whose config.json states none (as in config.json)"},
        {0},
    };
    tsr_options_append(options, own);
}

/* A '=' with a number behind it ends the path. A directory of such a name is given with a '/' or a factor. */
tsr_status tsr_merge_job_add(tsr_merge_job *job, const char *word, tsr_err *err)
{
    const char *const equals = strrchr(word, '=');
    double factor = 0;
    if (job->n_adapters == TSR_MERGE_ADAPTERS)
        return tsr_fail(err, TSR_E_USAGE,
                        "'%s' is one adapter too many: up to %d are merged at a time; PEFT's add_weighted_adapter with "
                        "combination_type \"cat\" makes one of several",
                        word, TSR_MERGE_ADAPTERS);
    const bool given = equals != NULL && tsr_parse_number("LORA", equals + 1, TSR_ANY_NUMBER, &factor, NULL) == TSR_OK;
    if (given && factor == 0)
        return tsr_fail(err, TSR_E_USAGE, "'%s': a factor of 0 adds nothing", word);
    const char *const path = tsr_arena_dup(&job->words, word, given ? (size_t)(equals - word) : strlen(word));
    if (path == NULL)
        return tsr_out_of_memory(err, "for the adapters");
    job->adapters[job->n_adapters] = path;
    job->factors[job->n_adapters++] = given ? factor : 1;
    return TSR_OK;
}

/* Rejects a path that is not a directory with the files of an adapter. */
static tsr_status check_adapter(const char *adapter, tsr_err *err)
{
    static const char *const kNames[] = {TSR_LORA_CONFIG_NAME, TSR_LORA_WEIGHTS_NAME};
    char path[PATH_MAX];
    struct stat st;
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++) {
        TSR_TRY(tsr_join_path(path, adapter, kNames[i], err));
        if (stat(path, &st) == 0)
            continue;
        const char *const why = strerror(errno);
        const bool exists = errno == ENOENT && stat(adapter, &st) == 0;
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: %s%s%s; an adapter is a directory with " TSR_LORA_CONFIG_NAME " and " TSR_LORA_WEIGHTS_NAME
                        ", as PEFT's save_pretrained writes it with safe_serialization",
                        adapter, exists ? "no " : why, exists ? kNames[i] : "", exists ? " in it" : "");
    }
    return TSR_OK;
}

/* Opens an adapter: a directory with adapter_config.json and adapter_model.safetensors. */
static tsr_status open_adapter(tsr_merge_job *job, size_t i, tsr_err *err)
{
    char cached[PATH_MAX];
    const char *const adapter = job->adapters[i];
    if (!tsr_is_remote(adapter) && !tsr_hub_cached(adapter, cached))
        TSR_TRY(check_adapter(adapter, err));
    TSR_TRY(tsr_checkpoint_open_shard(&job->opened[1 + i], adapter, TSR_LORA_WEIGHTS_NAME, NULL, 0, err));
    job->sources[1 + i] = job->opened[1 + i];
    return TSR_OK;
}

/* Records the options, the adapters and their configurations. */
static tsr_status note_words(tsr_merge_job *job, const tsr_job_source *from, tsr_plan_provenance *with, tsr_err *err)
{
    tsr_merge_job nothing = {.n_adapters = 0};
    tsr_option given[TSR_MAX_OPTIONS] = {{0}}, defaults[TSR_MAX_OPTIONS] = {{0}};
    tsr_merge_job_options(job, given);
    tsr_merge_job_options(&nothing, defaults);
    TSR_TRY(tsr_provenance_note(with, "merge", from, given, defaults, &job->words, err));
    for (size_t i = 0; i < job->n_adapters; i++) {
        char factor[40] = "";
        if (job->factors[i] != 1)
            snprintf(factor, sizeof factor, "=%.17g", job->factors[i]);
        TSR_TRY(tsr_provenance_add_source(with, "LORA", i, job->opened[1 + i], factor, TSR_LORA_CONFIG_NAME,
                                          &job->words, err));
    }
    return TSR_OK;
}

tsr_status tsr_merge_job_plan(tsr_merge_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    tsr_plan_provenance with;
    tsr_merge_options options = {.n_adapters = job->n_adapters, .max_shard_bytes = from->max_shard_bytes};
    memcpy(options.factors, job->factors, sizeof options.factors);
    TSR_TRY(tsr_parse_block("--source-block", job->source_block, &options.source_block, err));
    TSR_TRY(tsr_checkpoint_open(&job->opened[0], from->path, from->ignore.items, from->ignore.count, err));
    job->sources[0] = job->opened[0];
    for (size_t i = 0; i < job->n_adapters; i++)
        TSR_TRY(open_adapter(job, i, err));
    TSR_TRY(note_words(job, from, &with, err));
    TSR_TRY(tsr_merge_plan(plan, job->sources, &options, err));
    TSR_TRY(tsr_warn_of_ignored(plan, from, job->opened, 1, err));
    plan->provenance = with;
    return TSR_OK;
}

void tsr_merge_job_free(tsr_merge_job *job)
{
    for (size_t i = 0; i <= job->n_adapters; i++)
        tsr_checkpoint_close(job->opened[i]);
    tsr_arena_free(&job->words);
    *job = (tsr_merge_job){.n_adapters = 0};
}
