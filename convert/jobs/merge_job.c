/* Opens a base model and an adapter, and plans their merge. */
#include "convert/jobs/merge_job.h"

#include "convert/jobs/convert_inputs.h"
#include "convert/jobs/provenance.h"
#include "convert/plans/merge/merge_plan.h"
#include "formats/adapters/lora.h"
#include "formats/remote/address.h"
#include "formats/remote/settings/hub_access.h"

#include <limits.h>
#include <stdio.h>
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

/* Rejects a folder that has no adapter. */
static tsr_status check_adapter(const tsr_merge_job *job, tsr_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    const int n = snprintf(path, sizeof path, "%s/" TSR_LORA_CONFIG_NAME, job->adapter);
    if (n < 0 || (size_t)n >= sizeof path)
        return tsr_fail(err, TSR_E_USAGE, "%s: the path is too long", job->adapter);
    if (stat(path, &st) != 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: no " TSR_LORA_CONFIG_NAME
                        " in it; name the directory of an adapter of PEFT: tessera merge "
                        "BASE LORA -o OUT",
                        job->adapter);
    snprintf(path, sizeof path, "%s/" TSR_LORA_WEIGHTS_NAME, job->adapter);
    if (stat(path, &st) != 0)
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s: no " TSR_LORA_WEIGHTS_NAME " in it; PEFT's save_pretrained writes it, with "
                        "safe_serialization for an adapter in adapter_model.bin",
                        job->adapter);
    return TSR_OK;
}

/* Opens the adapter: a directory with adapter_config.json and adapter_model.safetensors. */
static tsr_status open_adapter(tsr_merge_job *job, tsr_err *err)
{
    char cached[PATH_MAX];
    if (!tsr_is_remote(job->adapter) && !tsr_hub_cached(job->adapter, cached))
        TSR_TRY(check_adapter(job, err));
    return tsr_checkpoint_open_shard(&job->opened[1], job->adapter, TSR_LORA_WEIGHTS_NAME, NULL, 0, err);
}

/* Records the options, the adapter and its configuration. */
static tsr_status note_words(tsr_merge_job *job, const tsr_job_source *from, tsr_plan_provenance *with, tsr_err *err)
{
    tsr_merge_job nothing = {.adapter = NULL};
    tsr_option given[TSR_MAX_OPTIONS] = {{0}}, defaults[TSR_MAX_OPTIONS] = {{0}};
    tsr_merge_job_options(job, given);
    tsr_merge_job_options(&nothing, defaults);
    TSR_TRY(tsr_provenance_note(with, "merge", from, given, defaults, &job->words, err));
    return tsr_provenance_add_source(with, "LORA", job->opened[1], TSR_LORA_CONFIG_NAME, &job->words, err);
}

tsr_status tsr_merge_job_plan(tsr_merge_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    tsr_plan_provenance with;
    tsr_merge_options options = {.max_shard_bytes = from->max_shard_bytes};
    TSR_TRY(tsr_parse_block("--source-block", job->source_block, &options.source_block, err));
    TSR_TRY(tsr_checkpoint_open(&job->opened[0], from->path, from->ignore.items, from->ignore.count, err));
    TSR_TRY(open_adapter(job, err));
    TSR_TRY(note_words(job, from, &with, err));
    job->sources[0] = job->opened[0];
    job->sources[1] = job->opened[1];
    TSR_TRY(tsr_merge_plan(plan, job->sources, &options, err));
    TSR_TRY(tsr_warn_of_ignored(plan, from, job->opened, 1, err));
    plan->provenance = with;
    return TSR_OK;
}

void tsr_merge_job_free(tsr_merge_job *job)
{
    for (size_t i = 0; i < 2; i++)
        tsr_checkpoint_close(job->opened[i]);
    tsr_arena_free(&job->words);
    *job = (tsr_merge_job){.adapter = NULL};
}
