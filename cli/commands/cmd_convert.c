/* Implements `tessera convert`: its options and its plan. */
#include "cli/commands/commands.h"
#include "cli/plan_job.h"
#include "cli/show/plan_result.h"
#include "convert/jobs/convert_job.h"

typedef struct converting {
    tsr_plan_job plan; /* first: see tsr_command.makes_plan */
    tsr_convert_job job;
} converting;

static const char kHelp[] =
    "tessera convert SRC -o DST --to TARGET [options]\n\n"
    "Converts a checkpoint. SRC is a Hugging Face directory, one .safetensors file, or an address:\n"
    "hf://ORG/NAME, s3://, https:// (docs/remote.md). DST is a directory or s3://BUCKET/PREFIX.\n"
    "Every FP8 weight is paired with its scale before anything is written, whatever the name and file of\n"
    "the scale. The same command resumes a run that was killed.\n\n"
    "Targets:\n"
    "  bf16        FP8 decoded to floating point, without scales and quantization_config (--dtype)\n"
    "  fp8-block   other blocks, scale format or dialect; codes are kept where possible (--block, --scale-fmt, --scales,\n"
    "              --dialect, --exclude, --against)\n"
    "  tp          a directory for each tensor-parallel rank, cut as loaders cut (--tp); --merge joins them again\n"
    "  deepseek-mp  the files that DeepSeek's own inference code reads (--mp, --keep-mtp); --from takes them back\n"
    "  mla-absorbed  kv_b_proj split per head, as an engine holds it (--consumer, --weights, --fold, --drop-kv-b)\n"
    "  nvfp4, nvfp4-weight-only, mxfp4, mxfp8, fp8-channel, int4-weight-only, ...  any codes to those of a scheme of\n"
    "              quantize, without BF16 on disk: moved if that is exact, otherwise decoded in memory and quantized;\n"
    "              tensors that are not quantized stay (--dialect, --scales, --mx-scale, --lossy, --experts, --exclude)\n"
    "  archive     each shard as NAME.safetensors.zst, which Tessera reads directly and 'zstd -d' restores (--level); with\n"
    "              --shuffle it is smaller, and only the next target restores it\n"
    "  safetensors  archives restored to the files that they were made from\n"
    "  fastertransformer, trtllm  int8 or int4 weights in the interleaved layout of an architecture's mixed GEMM, from\n"
    "              packed integers or from BF16 (--arch, --producer, --bits, --group-size, ...); trtllm for one rank only;\n"
    "              --from takes them back to packed integers\n\n"
    "Examples:\n"
    "  tessera convert DeepSeek-V3 -o DeepSeek-V3-BF16 --to bf16\n"
    "  tessera convert DeepSeek-V3 -o DeepSeek-V3-UE8M0 --to fp8-block --scale-fmt ue8m0 --against DeepSeek-V3-BF16\n"
    "  tessera convert Qwen3-FP8 -o Qwen3-CT --to fp8-block --dialect compressed-tensors    renames, nothing is "
    "lost\n"
    "  tessera convert DeepSeek-V4 -o DeepSeek-V4-FP8 --to fp8-block      MXFP4 experts as e4m3, for Hopper, bit for "
    "bit\n"
    "  tessera convert Kimi-K3 -o Kimi-K3-NVFP4 --to nvfp4-weight-only --dialect modelopt\n"
    "  tessera convert Llama-W4A16 -o blobs --to fastertransformer --arch sm80\n"
    "  tessera convert Llama-BF16 -o engine-in --to trtllm --arch sm90 --bits 8\n"
    "  tessera convert blobs -o Llama-W4A16-again --from fastertransformer\n"
    "  tessera convert archives -o plain --to safetensors --link reflink      files that are not packed become reflinks\n\n"
    "Options:\n";

static tsr_status make(tsr_plan_job *plan, tsr_err *err)
{
    converting *const v = (converting *)plan;
    return tsr_convert_job_plan(&v->job, &plan->from, &plan->plan, err);
}

static void set_defaults(tsr_command_context *c)
{
    converting *const v = c->job;
    v->job = tsr_convert_job_defaults();
    v->plan = tsr_plan_job_defaults(make, "converting");
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    converting *const v = c->job;
    tsr_convert_job_options(&v->job, options);
    tsr_plan_job_options(&v->plan, options);
}

static tsr_status check_words(int argc, char **argv, tsr_err *err)
{
    return tsr_scheme_refuse_foreign("--to", argc, argv, err);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    converting *const v = c->job;
    TSR_TRY(tsr_convert_job_check(&v->job, c->options, c->given, err));
    v->plan.verb = tsr_convert_job_verb(&v->job);
    return tsr_plan_job_check(c, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const converting *const v = c->job;
    const char *const sources[] = {v->plan.from.path, v->job.against, v->job.config, v->job.activations,
                                   v->job.importance};
    tsr_plan_job_paths(c, sources, sizeof sources / sizeof *sources, paths);
}

static void close_job(tsr_command_context *c)
{
    converting *const v = c->job;
    tsr_plan_job_close(&v->plan);
    tsr_convert_job_free(&v->job);
}

const tsr_command tsr_command_convert = {
    .name = "convert",
    .summary = "dtypes, names, shards and layouts of a checkpoint",
    .schema = "tessera-convert/1",
    .check_words = check_words,
    TSR_PLAN_COMMAND(1, converting),
};
