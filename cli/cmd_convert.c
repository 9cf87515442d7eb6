/* tessera convert: its command line. */
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/plan_job.h"
#include "convert/jobs/convert_job.h"

#include <stdlib.h>

static const char kHelp[] =
    "tessera convert SRC -o DST --to TARGET [options]\n\n"
    "Converts a checkpoint. SRC is a Hugging Face directory or one .safetensors file; DST is a directory. Every FP8\n"
    "weight is paired with its scale, whatever that is called and wherever it lies, before anything is written. A run\n"
    "that was killed is resumed by the same command.\n\n"
    "Targets:\n"
    "  bf16        FP8 back to floating point: no scales, no quantization_config (--dtype)\n"
    "  fp8-block   other blocks, scale format or dialect; codes stay where they can (--block, --scale-fmt, --scales,\n"
    "              --dialect, --exclude, --against)\n"
    "  tp          a directory for each tensor-parallel rank, cut as loaders cut (--tp); --merge joins them again\n"
    "  deepseek-mp what DeepSeek's own inference code reads (--mp, --keep-mtp); --from takes it back\n"
    "  mla-absorbed  kv_b_proj split per head, as an engine holds it (--consumer, --weights, --fold, --drop-kv-b)\n"
    "  nvfp4, nvfp4-weight-only, mxfp4, mxfp8, fp8-channel, int4-weight-only, ...  any codes to those of a scheme of\n"
    "              quantize, without BF16 on disk: moved where that loses nothing, else decoded in memory and made\n"
    "              anew; what was not quantized stays (--dialect, --scales, --mx-scale, --lossy, --experts, "
    "--exclude)\n"
    "  archive     each shard to NAME.safetensors.zst, which Tessera reads as it is and 'zstd -d' restores (--level);\n"
    "              smaller with --shuffle, but then only the next target restores it\n"
    "  safetensors archives back to the very files they were made from\n"
    "  fastertransformer, trtllm  int8 or int4 weights in the interleaved layout of an architecture's mixed GEMM, "
    "from\n"
    "              packed integers or straight from BF16 (--arch, --producer, --bits, --group-size, ...); trtllm for "
    "one\n"
    "              rank only; --from takes them back to packed integers\n\n"
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
    "  tessera convert archives -o plain --to safetensors --link reflink      what is not packed takes no room\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, tsr_plan_run *run, tsr_convert_job *job, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"-o", TSR_OPT_TEXT, &run->dst, "DST", "the output directory; made if need be"},
    };
    size_t n;
    uint64_t given;
    tsr_convert_job_options(job, options);
    tsr_plan_run_options(run, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &run->from.path, 1, &n, &given, err));
    if (run->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    TSR_TRY(tsr_convert_job_check(job, options, given, err));
    TSR_TRY(tsr_plan_run_check(run, options, given, err));
    const char *const sources[] = {run->from.path, job->against, job->config, job->activations};
    return tsr_plan_run_places(run, sources, sizeof sources / sizeof *sources, err);
}

static void close_job(void *own)
{
    tsr_convert_job_free(own);
    free(own);
}

static tsr_status make(tsr_plan_job *job, tsr_err *err)
{
    return tsr_convert_job_plan(job->own, &job->run.from, &job->plan, err);
}

tsr_status tsr_convert_read(tsr_plan_job *job, int argc, char **argv, tsr_err *err)
{
    tsr_convert_job *const own = calloc(1, sizeof *own);
    if (own == NULL)
        return tsr_out_of_memory(err, NULL);
    *own = tsr_convert_job_defaults();
    *job = (tsr_plan_job){.run = tsr_plan_run_defaults("convert"), .own = own, .close = close_job, .make = make};
    TSR_TRY(parse(argc, argv, &job->run, own, err));
    job->idle = job->run.help;
    job->run.verb = tsr_convert_job_verb(own);
    return TSR_OK;
}

int tsr_cmd_convert(int argc, char **argv)
{
    return tsr_plan_command("convert", tsr_convert_read, argc, argv);
}
