/* tessera quantize: its options. */
#include "cli/commands.h"
#include "cli/job.h"
#include "convert/quantize_plan.h"

#include <stdio.h>

/* Healthy block FP8 sits at 31.5 +- 0.2 dB whatever the distribution; below this something is wrong. */
static const double kLowSqnr = 30;

typedef struct arguments {
    const char *block;
    int scheme, scale_fmt, scales, dialect;
    tsr_list include, exclude;
} arguments;

static const char kHelp[] =
    "tessera quantize SRC -o DST [options]\n\n"
    "Quantizes a checkpoint (BF16, F16 or F32 safetensors) to e4m3 with one scale per 128x128 block, the format of\n"
    "DeepSeek-V3 that vLLM, SGLang, transformers and DeepSeek's own code load. SRC is a Hugging Face directory or one\n"
    ".safetensors file; DST is a directory. Needs no GPU. A run that was killed is resumed by the same command.\n\n"
    "Examples:\n"
    "  tessera quantize Llama-3.1-8B -o Llama-3.1-8B-FP8\n"
    "  tessera quantize DeepSeek-V3-BF16 -o DeepSeek-V3-FP8 --scale-fmt ue8m0     for Blackwell\n"
    "  tessera quantize model -o out --dry-run                                    what would be done, and why\n"
    "  tessera quantize model -o out --exclude '*.kv_b_proj.*' --scales mse\n"
    "  tessera quantize model -o out --dialect compressed-tensors                 vLLM's llm-compressor format\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, tsr_job *job, arguments *a, tsr_err *err)
{
    tsr_option options[32] = {
        {"-o", TSR_OPT_TEXT, &job->dst, "DST", "the output directory; made if need be"},
        {"--scheme", TSR_OPT_CHOICE, &a->scheme, "fp8-block", "what to quantize to"},
        {"--block", TSR_OPT_TEXT, &a->block, "RxC", "rows and columns of a block (128x128)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->scale_fmt, "f32|ue8m0",
         "scales as they come, or rounded up to powers of two (f32)"},
        {"--scales", TSR_OPT_CHOICE, &a->scales, "amax|mse",
         "amax/448, or the scale of least squared error: slower, never worse (amax)"},
        {"--dialect", TSR_OPT_CHOICE, &a->dialect, "deepseek|compressed-tensors",
         "names of the scales and form of the configuration (deepseek)"},
        {"--include", TSR_OPT_LIST, &a->include, "GLOB", "quantize these tensors too; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->exclude, "GLOB", "keep these tensors as they are; may be repeated"},
    };
    enum { OWN = 8 };
    size_t n;
    tsr_job_options(job, options + OWN);
    TSR_TRY(tsr_options_parse(options, OWN + TSR_JOB_OPTIONS, argc, argv, &job->src, 1, &n, NULL, err));
    if (job->help) {
        fputs(kHelp, stdout);
        tsr_options_help(options, OWN + TSR_JOB_OPTIONS);
        return TSR_OK;
    }
    return tsr_job_check(job, err);
}

static tsr_status quantize(const tsr_job *job, const arguments *a, tsr_err *err)
{
    tsr_checkpoint *opened = NULL;
    tsr_plan plan = {0};
    tsr_quantize_options options = {
        .block = {.scale_fmt = (tsr_scale_fmt)a->scale_fmt, .search = a->scales == 1},
        .dialect = (tsr_dialect)a->dialect,
        .policy = {.include = a->include.items,
                   .n_include = a->include.count,
                   .exclude = a->exclude.items,
                   .n_exclude = a->exclude.count},
        .max_shard_bytes = job->max_shard_bytes,
    };
    TSR_TRY(tsr_parse_block("--block", a->block, &options.block.block_rows, &options.block.block_cols, err));
    TSR_TRY(tsr_checkpoint_open(&opened, job->src, job->ignore.items, job->ignore.count, err));
    const tsr_checkpoint *const source = opened;
    tsr_status status = tsr_quantize_plan(&plan, &source, &options, err);
    if (status == TSR_OK)
        status = tsr_job_run(job, &plan, err);
    tsr_plan_free(&plan);
    tsr_checkpoint_close(opened);
    return status;
}

int tsr_cmd_quantize(int argc, char **argv)
{
    tsr_job job = tsr_job_defaults("quantize");
    job.low_sqnr = kLowSqnr;
    arguments a = {.block = "128x128"};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &job, &a, &err);
    if (status == TSR_OK && !job.help)
        status = quantize(&job, &a, &err);
    return tsr_job_end(&job, status, &err);
}
