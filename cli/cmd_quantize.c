/* tessera quantize: its command line. */
#include "cli/commands.h"
#include "cli/families.h"
#include "cli/output.h"
#include "cli/plan_job.h"
#include "convert/jobs/quantize_job.h"

#include <stdlib.h>

typedef struct quantizing {
    tsr_quantize_job job;
    bool list_families;
} quantizing;

static const char kHelp[] =
    "tessera quantize SRC -o DST [options]\n\n"
    "Quantizes a checkpoint (BF16, F16 or F32 safetensors) to e4m3 with one scale per 128x128 block, the format of\n"
    "DeepSeek-V3 that vLLM, SGLang, transformers and DeepSeek's own code load; or to e4m3 with one scale a row, int8 "
    "and\n"
    "int4 in the formats of compressed-tensors that vLLM loads; or to NVFP4, MXFP4 and MXFP8, in the dialect of "
    "whoever\n"
    "is to load them. SRC is a Hugging Face directory or one .safetensors file; DST is a directory. Needs no GPU. A "
    "run\n"
    "that was killed is resumed by the same command.\n\n"
    "Examples:\n"
    "  tessera quantize Llama-3.1-8B -o Llama-3.1-8B-FP8\n"
    "  tessera quantize DeepSeek-V3-BF16 -o DeepSeek-V3-FP8 --scale-fmt ue8m0     for Blackwell\n"
    "  tessera quantize model -o out --dry-run                                    what would be done, and why\n"
    "  tessera quantize model -o out --exclude '*.kv_b_proj.*' --scales mse\n"
    "  tessera quantize model -o out --dialect compressed-tensors                 vLLM's llm-compressor format\n"
    "  tessera quantize model -o out --scheme fp8-channel                         a scale a row and a token\n"
    "  tessera quantize model -o out --scheme int8-channel                        W8A8, with azp_adj beside it\n"
    "  tessera quantize model -o out --scheme int8-channel --activations calibrated.json   static activations\n"
    "  tessera quantize model -o out --scheme int4-weight-only --zero-points      W4A16 in groups of 128\n"
    "  tessera quantize K2-BF16 -o out --scheme int4-weight-only --scales-from K2      the codes that K2 has\n"
    "  tessera quantize model -o out --scheme nvfp4-weight-only                   NVFP4A16, for vLLM, SGLang\n"
    "  tessera quantize model -o out --scheme nvfp4 --activations ranges.json --dialect modelopt     for TensorRT-LLM\n"
    "  tessera quantize model -o out --scheme mxfp4-weight-only --scales mse      experts for every engine\n"
    "  tessera quantize model -o out --scheme mxfp8 --dialect deepseek            quant_method mxfp8, for SGLang\n"
    "  tessera quantize DeepSeek-V4-BF16 -o out --scheme mxfp4 --dialect deepseek   as its releases are\n"
    "  tessera quantize gpt-oss-BF16 -o out --scheme mxfp4-weight-only            as its releases are\n"
    "  tessera quantize model -o out --rules rules.json                           several schemes: "
    "docs/plan-schemes.md\n"
    "  tessera quantize model -o out --link hard                                  tokenizer.json and its like: links\n"
    "  tessera quantize --list-families                                           which tensors, of which models\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, tsr_plan_run *run, quantizing *q, tsr_err *err)
{
    tsr_quantize_job *const job = &q->job;
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"-o", TSR_OPT_TEXT, &run->dst, "DST", "the output directory; made if need be"},
    };
    const tsr_option last[] = {
        {"--list-families", TSR_OPT_FLAG, &q->list_families, NULL,
         "print which tensors of which models are quantized, and stop; also with --json"},
        {0},
    };
    size_t n;
    uint64_t given;
    tsr_quantize_job_options(job, options);
    tsr_options_append(options, last);
    tsr_plan_run_options(run, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &run->from.path, 1, &n, &given, err));
    if (run->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    TSR_TRY(tsr_quantize_job_check(job, options, given, err));
    if (q->list_families)
        return TSR_OK;
    TSR_TRY(tsr_plan_run_check(run, options, given, err));
    const char *const sources[] = {run->from.path, job->of.activations, job->rules, job->scales_from};
    return tsr_plan_run_places(run, sources, sizeof sources / sizeof *sources, err);
}

static void close_job(void *own)
{
    quantizing *const q = own;
    tsr_quantize_job_free(&q->job);
    free(q);
}

static tsr_status make(tsr_plan_job *job, tsr_err *err)
{
    quantizing *const q = job->own;
    return tsr_quantize_job_plan(&q->job, &job->run.from, &job->plan, err);
}

tsr_status tsr_quantize_read(tsr_plan_job *job, int argc, char **argv, tsr_err *err)
{
    quantizing *const q = calloc(1, sizeof *q);
    if (q == NULL)
        return tsr_out_of_memory(err, NULL);
    q->job = tsr_quantize_job_defaults();
    *job = (tsr_plan_job){.run = tsr_plan_run_defaults("quantize"), .own = q, .close = close_job, .make = make};
    TSR_TRY(parse(argc, argv, &job->run, q, err));
    job->run.verb = "quantizing";
    job->run.low_sqnr =
        tsr_scheme_low_sqnr(q->job.rules != NULL ? TSR_INT4_WEIGHT_ONLY : (tsr_named_scheme)q->job.of.scheme);
    job->idle = job->run.help || q->list_families;
    return q->list_families && !job->run.help ? tsr_list_families(job->run.json, err) : TSR_OK;
}

int tsr_cmd_quantize(int argc, char **argv)
{
    return tsr_plan_command("quantize", tsr_quantize_read, argc, argv);
}
