/* Implements `tessera quantize`: its options and its plan. */
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/plan_job.h"
#include "cli/proof.h"
#include "cli/show/plan_result.h"
#include "convert/jobs/quantize_job.h"

typedef struct quantizing {
    tsr_plan_job plan; /* first: see tsr_command.makes_plan */
    tsr_quantize_job job;
    tsr_proof proof;
    bool list_families;
} quantizing;

static const char kHelp[] =
    "tessera quantize SRC -o DST [options]\n\n"
    "Quantizes a checkpoint in BF16, F16 or F32 on the CPU. The default scheme is e4m3 with one scale for\n"
    "each 128x128 block, as in DeepSeek-V3, which vLLM, SGLang, transformers and DeepSeek's own code\n"
    "load. Other schemes are e4m3 with one scale a row, int8 and int4 as compressed-tensors stores them,\n"
    "and NVFP4, MXFP4 and MXFP8 in the dialect of a loader.\n\n"
    "SRC is a Hugging Face directory, one .safetensors file, or an address: hf://ORG/NAME, s3://, https://\n"
    "(docs/remote.md). DST is a directory or s3://BUCKET/PREFIX. The same command resumes a run that was\n"
    "killed.\n\n"
    "Examples:\n"
    "  tessera quantize Llama-3.1-8B -o Llama-3.1-8B-FP8\n"
    "  tessera quantize DeepSeek-V3-BF16 -o DeepSeek-V3-FP8 --scale-fmt ue8m0     for Blackwell\n"
    "  tessera quantize hf://meta-llama/Llama-3.1-8B -o Llama-3.1-8B-FP8            reads the Hub, without a copy\n"
    "  tessera quantize hf://meta-llama/Llama-3.1-8B -o s3://models/Llama-3.1-8B-FP8       each file is sent when it is made\n"
    "  tessera quantize model -o out --dry-run                                    the plan, with the reason for each tensor\n"
    "  tessera quantize model -o out --exclude '*.kv_b_proj.*' --scales mse\n"
    "  tessera quantize model -o out --dialect compressed-tensors                 the format of vLLM's llm-compressor\n"
    "  tessera quantize model -o out --scheme fp8-channel                         one scale a row and a token\n"
    "  tessera quantize model -o out --scheme int8-channel                        W8A8, with azp_adj beside it\n"
    "  tessera quantize model -o out --scheme int8-channel --activations calibrated.json   static activations\n"
    "  tessera quantize model -o out --scheme int4-weight-only --zero-points      W4A16 in groups of 128\n"
    "  tessera quantize K2-BF16 -o out --scheme int4-weight-only --scales-from K2      the codes of K2 again\n"
    "  tessera quantize model -o out --scheme nvfp4-weight-only                   NVFP4A16, for vLLM, SGLang\n"
    "  tessera quantize model -o out --scheme nvfp4 --activations ranges.json --dialect modelopt     for TensorRT-LLM\n"
    "  tessera quantize model -o out --scheme mxfp4-weight-only --scales mse      experts for all engines\n"
    "  tessera quantize model -o out --scheme nvfp4-weight-only --scales best     scales of the smallest error\n"
    "  tessera quantize model -o out --scheme nvfp4-weight-only --importance stats.safetensors --method gptq\n"
    "  tessera quantize model -o out --scheme int4-weight-only --importance stats.safetensors --prove held-out.txt\n"
    "  tessera quantize model -o out --scheme mxfp8 --dialect deepseek            quant_method mxfp8, for SGLang\n"
    "  tessera quantize DeepSeek-V4-BF16 -o out --scheme mxfp4 --dialect deepseek   like its releases\n"
    "  tessera quantize gpt-oss-BF16 -o out --scheme mxfp4-weight-only            like its releases\n"
    "  tessera quantize model -o out --rules rules.json                           several schemes: "
    "docs/plan-schemes.md\n"
    "  tessera quantize model -o out --link hard                                  tokenizer.json and similar files as links\n"
    "  tessera quantize model -o out --for vllm,sglang --gpu h100                 stop first if they cannot load it\n"
    "  tessera quantize --list-families                                           the tensors of each model\n\n"
    "Options:\n";

static tsr_status make(tsr_plan_job *plan, tsr_err *err)
{
    quantizing *const q = (quantizing *)plan;
    return tsr_quantize_job_plan(&q->job, &plan->from, &plan->plan, err);
}

static void set_defaults(tsr_command_context *c)
{
    quantizing *const q = c->job;
    q->job = tsr_quantize_job_defaults();
    q->plan = tsr_plan_job_defaults(make, "quantizing");
    q->plan.proof = &q->proof;
    q->proof = tsr_proof_defaults(&q->job);
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    quantizing *const q = c->job;
    const tsr_option last[] = {
        {"--list-families", TSR_OPT_FLAG, &q->list_families, NULL,
         "print which tensors of which models are quantized, and stop; also with --json"},
        {0},
    };
    tsr_quantize_job_options(&q->job, options);
    tsr_target_options_append(&q->plan.target, options);
    tsr_options_append(options, last);
    tsr_proof_options(&q->proof, options);
    tsr_plan_job_options(&q->plan, options);
}

static tsr_status check_words(int argc, char **argv, tsr_err *err)
{
    return tsr_scheme_refuse_foreign("--scheme", argc, argv, err);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    quantizing *const q = c->job;
    TSR_TRY(tsr_quantize_job_check(&q->job, c->options, c->given, err));
    const tsr_scheme_form form = tsr_scheme_form_in(q->job.of.scheme, q->job.of.dialect);
    if (q->job.rules != NULL || form == TSR_FORM_EXPERTS) { /* several schemes */
        q->plan.sqnr.low = tsr_scheme_row_of(TSR_SCHEME_INT4_WEIGHT_ONLY)->sqnr.low;
    } else {
        q->plan.scheme = tsr_scheme_name(q->job.of.scheme);
        q->plan.sqnr = tsr_scheme_row_of(q->job.of.scheme)->sqnr;
    }
    if (q->list_families) {
        c->done = true;
        return tsr_list_families(c->common.json, err);
    }
    TSR_TRY(tsr_plan_job_check(c, err));
    return tsr_proof_check(c, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const quantizing *const q = c->job;
    const char *const sources[] = {q->plan.from.path,  q->job.of.activations, q->job.of.kv_ranges,
                                   q->job.recipe,      q->job.of.importance,  q->job.rules,
                                   q->job.scales_from, q->proof.pass.tokens};
    tsr_plan_job_paths(c, sources, sizeof sources / sizeof *sources, paths);
    if (q->proof.pass.tokens != NULL)
        paths->unconfined = tsr_pass_unconfined(&q->proof.pass);
}

static void close_job(tsr_command_context *c)
{
    quantizing *const q = c->job;
    tsr_plan_job_close(&q->plan);
    tsr_proof_free(&q->proof);
    tsr_quantize_job_free(&q->job);
}

const tsr_command tsr_command_quantize = {
    .name = "quantize",
    .topic = "Write checkpoints",
    .summary = "a BF16 checkpoint to FP8, int8, int4, NVFP4 or MXFP",
    .schema = "tessera-quantize/1",
    .check_words = check_words,
    TSR_PLAN_COMMAND(1, quantizing),
};
