/* Implements `tessera merge`: its options and its plan. */
#include "cli/commands/commands.h"
#include "cli/plan_job.h"
#include "cli/show/plan_result.h"
#include "convert/jobs/merge_job.h"

typedef struct merging {
    tsr_plan_job plan; /* first: see tsr_command.makes_plan */
    tsr_merge_job job;
} merging;

static const char kHelp[] =
    "tessera merge BASE LORA[=FACTOR]... -o DST [options]\n\n"
    "Adds the updates of LoRA adapters to the weights of their base model, on the CPU, without Python. Each\n"
    "weight with an update keeps its dtype or format: BF16, FP8, NVFP4, MXFP4, MXFP8, int4 or int8. All other\n"
    "tensors are copied byte for byte. The result says for each tensor how much of the update survived\n"
    "rounding.\n\n"
    "BASE is a Hugging Face directory, one .safetensors file, or an address such as hf://ORG/NAME\n"
    "(docs/remote.md). LORA is a directory that PEFT wrote, or an address, with adapter_config.json and\n"
    "adapter_model.safetensors. An adapter with anything but updates of the form scale * B * A is refused.\n"
    "The updates of up to five adapters, each times its FACTOR (1), are added up before a weight is rounded.\n"
    "DST is a directory or s3://BUCKET/PREFIX. The same command resumes a run that was killed.\n\n"
    "Examples:\n"
    "  tessera merge Llama-3.1-8B my-adapter -o Llama-3.1-8B-mine\n"
    "  tessera merge Llama-3.1-8B style=0.5 facts -o out                          two adapters, half of the first\n"
    "  tessera merge Llama-3.1-8B my-adapter -o out --dry-run                     the plan, with the rank of each update\n"
    "  tessera merge Llama-3.1-8B my-adapter -o out --json result.json            what survived, for each tensor\n"
    "  tessera merge Llama-3.1-8B my-adapter -o out --max-update-error 1               exit code 1 if rounding drowns one\n\n"
    "Options:\n";

static tsr_status make(tsr_plan_job *plan, tsr_err *err)
{
    merging *const m = (merging *)plan;
    return tsr_merge_job_plan(&m->job, &plan->from, &plan->plan, err);
}

static void set_defaults(tsr_command_context *c)
{
    merging *const m = c->job;
    m->plan = tsr_plan_job_defaults(make, "merging");
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    merging *const m = c->job;
    tsr_merge_job_options(&m->job, options);
    tsr_plan_job_run_options(&m->plan, options);
    tsr_update_limits_options(&m->plan.limits, options);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    merging *const m = c->job;
    if (c->n_words == 1)
        return tsr_fail(err, TSR_E_USAGE, "no adapter given: tessera merge BASE LORA -o DST");
    for (size_t i = 1; i < c->n_words; i++)
        TSR_TRY(tsr_merge_job_add(&m->job, c->words[i], err));
    return tsr_plan_job_check(c, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const merging *const m = c->job;
    const char *sources[1 + TSR_MERGE_ADAPTERS] = {m->plan.from.path};
    for (size_t i = 0; i < m->job.n_adapters; i++)
        sources[1 + i] = m->job.adapters[i];
    tsr_plan_job_paths(c, sources, 1 + m->job.n_adapters, paths);
}

static void close_job(tsr_command_context *c)
{
    merging *const m = c->job;
    tsr_plan_job_close(&m->plan);
    tsr_merge_job_free(&m->job);
}

const tsr_command tsr_command_merge = {
    .name = "merge",
    .summary = "LoRA adapters into their base model",
    .schema = "tessera-merge/1",
    TSR_PLAN_COMMAND(2 + TSR_MERGE_ADAPTERS, merging),
};
