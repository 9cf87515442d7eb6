/* Plans a checkpoint of the same function whose channels are scaled by powers of two. */
#include "convert/jobs/fold_job.h"

#include "convert/jobs/convert_inputs.h"
#include "convert/jobs/provenance.h"
#include "convert/ops/fold_op.h"
#include "convert/plans/quantize_plan.h"
#include "convert/search/rules.h"
#include "quantize/policy/policy.h"

#include <stdlib.h>

void tsr_fold_job_options(tsr_fold_job *job, tsr_option *options)
{
    const tsr_option own[] = {
        {"--scheme", TSR_OPT_TEXT, &job->scheme, "SCHEME",
         "the scheme that the output will be quantized to, with its options as in rules files (int4-weight-only)"},
        {"--importance", TSR_OPT_TEXT, &job->importance, "FILE",
         "mean squares of the layers' inputs, from tessera calibrate or llama.cpp (docs/importance.md)"},
        {0},
    };
    tsr_options_append(options, own);
}

/* Searches the exponents, which the steps of the plan use. */
static tsr_status search(const tsr_plan *plan, const tsr_run_options *run, unsigned cpu_flags, tsr_err *err)
{
    tsr_fold_job *const job = plan->preparation;
    job->search.cpu_flags = cpu_flags;
    return tsr_fold_search_run(&job->search, run, &job->gain, err);
}

static tsr_status plan_tensors(const tsr_fold_job *job, tsr_plan *plan, tsr_err *err)
{
    const tsr_checkpoint *const c = job->checkpoint;
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const tsr_fold *const fold = &job->sets.folds[i];
        const bool folded = fold->rows != NULL || fold->columns != NULL;
        TSR_TRY(folded ? tsr_plan_fold(plan, t, fold, err) : tsr_plan_copy(plan, t, t->name, err));
        TSR_TRY(tsr_plan_add_note(plan, t, folded ? "fold" : "copy",
                                  folded ? "its channels are scaled by powers of two" : "not in a set of channels",
                                  err));
    }
    return TSR_OK;
}

static tsr_status make_plan(tsr_fold_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    const tsr_checkpoint *const c = job->checkpoint;
    tsr_text command = {0};
    plan->importance = &job->weights;
    plan->prepare = search;
    plan->preparation = job;
    plan->next = "tessera calibrate DST --tokens FILE -o STATS.safetensors";
    tsr_text_printf(&command, "fold --scheme %s --max-shard-size %llu", tsr_scheme_spelling(job->search.scheme),
                    U64(from->max_shard_bytes));
    TSR_TRY(tsr_plan_take_command(plan, &command, err));
    TSR_TRY(plan_tensors(job, plan, err));
    TSR_TRY(tsr_plan_model_files(plan, from->max_shard_bytes, NULL, err));
    if (c->config != NULL)
        TSR_TRY(tsr_plan_text_file(plan, "", TSR_CONFIG_NAME, c->config, c->config_size, err));
    return tsr_plan_finish(plan, err);
}

/* Records the options as given. */
static tsr_status note_words(tsr_fold_job *job, const tsr_job_source *from, tsr_plan_provenance *with, tsr_err *err)
{
    tsr_fold_job nothing = {.scheme = NULL};
    tsr_option given[TSR_MAX_OPTIONS] = {{0}}, defaults[TSR_MAX_OPTIONS] = {{0}};
    tsr_fold_job_options(job, given);
    tsr_fold_job_options(&nothing, defaults);
    return tsr_provenance_note(with, "fold", from, given, defaults, &job->arena, err);
}

tsr_status tsr_fold_job_plan(tsr_fold_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    tsr_plan_provenance with;
    tsr_scheme scheme;
    TSR_TRY(tsr_mixed_scheme_parse(job->scheme == NULL ? "int4-weight-only" : job->scheme, &scheme, err));
    if (scheme == TSR_SCHEME_KEEP)
        return tsr_fail(err, TSR_E_USAGE, "--scheme %s: name the scheme that the output will be quantized to",
                        job->scheme);
    TSR_TRY(tsr_checkpoint_open(&job->checkpoint, from->path, from->ignore.items, from->ignore.count, err));
    TSR_TRY(tsr_quantize_check_source(job->checkpoint, err));
    TSR_TRY(tsr_importance_read(&job->weights, job->importance, err));
    TSR_TRY(tsr_fold_sets_find(&job->sets, job->checkpoint, &job->arena, err));
    TSR_TRY(note_words(job, from, &with, err));
    job->sources[0] = job->checkpoint;
    job->search = (tsr_fold_search){.sets = &job->sets,
                                    .checkpoint = job->checkpoint,
                                    .model_type = tsr_policy_model_type(job->checkpoint, &job->arena),
                                    .importance = &job->weights,
                                    .scheme = scheme};
    *plan = tsr_plan_begin(job->sources, 1);
    TSR_TRY(tsr_plan_ended(plan, make_plan(job, from, plan, err)));
    TSR_TRY(tsr_warn_of_ignored(plan, from, &job->checkpoint, 1, err));
    plan->provenance = with;
    return TSR_OK;
}

void tsr_fold_job_free(tsr_fold_job *job)
{
    free(job->sets.items);
    tsr_importance_free(&job->weights);
    tsr_checkpoint_close(job->checkpoint);
    tsr_arena_free(&job->arena);
    *job = (tsr_fold_job){.scheme = NULL};
}
