/* tessera quantize: its options. */
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/run_plan.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/quantize_plan.h"

#include <stdio.h>

enum scheme { FP8_BLOCK, FP8_CHANNEL, INT8_CHANNEL, INT8_WEIGHT_ONLY, INT4_WEIGHT_ONLY };

typedef struct arguments {
    const char *block, *activations;
    int scheme, scale_fmt, scales, dialect, away;
    int scale_dtype, divisor; /* -1: as the scheme has it */
    uint64_t group_size;      /* UINT64_MAX: likewise */
    bool zero_points, activation_zero_points;
    tsr_list include, exclude;
} arguments;

static const char kHelp[] =
    "tessera quantize SRC -o DST [options]\n\n"
    "Quantizes a checkpoint (BF16, F16 or F32 safetensors) to e4m3 with one scale per 128x128 block, the format of\n"
    "DeepSeek-V3 that vLLM, SGLang, transformers and DeepSeek's own code load; or to e4m3 with one scale a row, int8 "
    "and\n"
    "int4 in the formats of compressed-tensors that vLLM loads. SRC is a Hugging Face directory or one\n"
    ".safetensors file; DST is a directory. Needs no GPU. A run that was killed is resumed by the same command.\n\n"
    "Examples:\n"
    "  tessera quantize Llama-3.1-8B -o Llama-3.1-8B-FP8\n"
    "  tessera quantize DeepSeek-V3-BF16 -o DeepSeek-V3-FP8 --scale-fmt ue8m0     for Blackwell\n"
    "  tessera quantize model -o out --dry-run                                    what would be done, and why\n"
    "  tessera quantize model -o out --exclude '*.kv_b_proj.*' --scales mse\n"
    "  tessera quantize model -o out --dialect compressed-tensors                 vLLM's llm-compressor format\n"
    "  tessera quantize model -o out --scheme fp8-channel                         a scale a row and a token\n"
    "  tessera quantize model -o out --scheme int8-channel                        W8A8, with azp_adj beside it\n"
    "  tessera quantize model -o out --scheme int8-channel --activations calibrated.json   static activations\n"
    "  tessera quantize model -o out --scheme int4-weight-only --zero-points      W4A16 in groups of 128\n\n"
    "Options:\n";

/* In the order of --scheme's words, with the options that mean something only to some of them. */
static const struct scheme_options {
    const char *name, *options;
} kSchemes[] = {
    [FP8_BLOCK] = {"fp8-block", "--block --scale-fmt --dialect"},
    [FP8_CHANNEL] = {"fp8-channel", "--scale-dtype"},
    [INT8_CHANNEL] = {"int8-channel", "--scale-dtype --rounding --divisor --activations --activation-zero-points"},
    [INT8_WEIGHT_ONLY] = {"int8-weight-only", "--scale-dtype --rounding --divisor --group-size"},
    [INT4_WEIGHT_ONLY] = {"int4-weight-only", "--scale-dtype --rounding --divisor --group-size --zero-points"},
};

/* Whether the option means something to some schemes only. */
static bool is_of_schemes(const char *option)
{
    for (size_t i = 0; i < sizeof kSchemes / sizeof *kSchemes; i++) {
        if (tsr_is_listed(kSchemes[i].options, option))
            return true;
    }
    return false;
}

static const float kDivisors[] = {127, 127.5f, 128, 7, 7.5f, 8};

static tsr_status parse(int argc, char **argv, tsr_plan_run *run, arguments *a, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"-o", TSR_OPT_TEXT, &run->dst, "DST", "the output directory; made if need be"},
        {"--scheme", TSR_OPT_CHOICE, &a->scheme, "fp8-block|fp8-channel|int8-channel|int8-weight-only|int4-weight-only",
         "what to quantize to (fp8-block)"},
        {"--scales", TSR_OPT_CHOICE, &a->scales, "amax|mse",
         "from the largest value, or the scale of least squared error: slower, never worse (amax)"},
        {"--include", TSR_OPT_LIST, &a->include, "GLOB", "quantize these tensors too; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->exclude, "GLOB", "keep these tensors as they are; may be repeated"},
        {"--block", TSR_OPT_TEXT, &a->block, "RxC", "fp8-block: rows and columns of a block (128x128)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->scale_fmt, "f32|ue8m0",
         "fp8-block: scales as they come, or rounded up to powers of two (f32)"},
        {"--dialect", TSR_OPT_CHOICE, &a->dialect, "deepseek|compressed-tensors",
         "fp8-block: names of the scales and form of the configuration (deepseek)"},
        {"--group-size", TSR_OPT_COUNT, &a->group_size, "N",
         "weight-only: columns that share a scale; 0 is a whole row (0; int4: 128)"},
        {"--zero-points", TSR_OPT_FLAG, &a->zero_points, NULL, "int4: asymmetric weights"},
        {"--activation-zero-points", TSR_OPT_FLAG, &a->activation_zero_points, NULL,
         "int8-channel: activations with zero points, dynamic ones or --activations"},
        {"--activations", TSR_OPT_TEXT, &a->activations, "FILE",
         "int8-channel: static scales of the inputs, or their ranges, JSON or safetensors; see docs/numerics.md"},
        {"--scale-dtype", TSR_OPT_CHOICE, &a->scale_dtype, "f32|bf16|f16",
         "of the scales, with which codes are made (channel: f32; weight-only: bf16); f16 with int only"},
        {"--rounding", TSR_OPT_CHOICE, &a->away, "even|away", "int: where ties go (even)"},
        {"--divisor", TSR_OPT_CHOICE, &a->divisor, "127|127.5|128|7|7.5|8",
         "int: symmetric scales are amax over this (127.5, 7.5)"},
    };
    size_t n;
    uint64_t given;
    tsr_plan_run_options(run, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &run->src, 1, &n, &given, err));
    if (run->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((given >> i & 1) != 0 && is_of_schemes(options[i].name) &&
            !tsr_is_listed(kSchemes[a->scheme].options, options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s means nothing with --scheme %s", options[i].name,
                            kSchemes[a->scheme].name);
    }
    TSR_TRY(tsr_plan_run_check(run, err));
    const tsr_places places = {.sources = {run->src, a->activations}, .dst = run->dst, .json = run->json};
    return tsr_places_check(&places, err);
}

static tsr_policy_options policy_of(const arguments *a)
{
    return (tsr_policy_options){.include = a->include.items,
                                .n_include = a->include.count,
                                .exclude = a->exclude.items,
                                .n_exclude = a->exclude.count};
}

static tsr_status int_options(const tsr_plan_run *run, const arguments *a, tsr_ct_options *options, tsr_err *err)
{
    static const tsr_dtype kDtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    const bool weight_only = a->scheme >= INT8_WEIGHT_ONLY, int4 = a->scheme == INT4_WEIGHT_ONLY;
    const float divisor = a->divisor < 0 ? (int4 ? 7.5f : 127.5f) : kDivisors[a->divisor];
    if ((divisor < 64) != int4)
        return tsr_fail(err, TSR_E_USAGE, "--divisor %g is not for %s", (double)divisor, kSchemes[a->scheme].name);
    if (a->group_size != UINT64_MAX && a->group_size != 0 && a->group_size != 32 && a->group_size != 64 &&
        a->group_size != 128)
        return tsr_fail(err, TSR_E_USAGE, "--group-size: 0, 32, 64 or 128: what kernels take");
    if (a->scheme == FP8_CHANNEL && a->scale_dtype >= 0 && kDtypes[a->scale_dtype] == TSR_F16)
        return tsr_fail(err, TSR_E_USAGE, "--scale-dtype f16 is not for fp8-channel: f32 or bf16");
    *options = (tsr_ct_options){
        .scheme = {.bits = int4 ? 4 : 8,
                   .group = a->group_size != UINT64_MAX ? a->group_size
                            : int4                      ? 128
                                                        : 0,
                   .asymmetric = a->zero_points,
                   .divisor = divisor,
                   .away = a->away == 1,
                   .scale_dtype = a->scale_dtype >= 0 ? kDtypes[a->scale_dtype]
                                  : weight_only       ? TSR_BF16
                                                      : TSR_F32,
                   .search = a->scales == 1},
        .form = weight_only                ? TSR_CT_PACKED
                : a->scheme == FP8_CHANNEL ? TSR_CT_FP8
                                           : TSR_CT_W8A8,
        .asymmetric_activations = a->activation_zero_points,
        .policy = policy_of(a),
        .max_shard_bytes = run->max_shard_bytes,
    };
    return TSR_OK;
}

static tsr_status quantize(const tsr_plan_run *run, const arguments *a, tsr_err *err)
{
    tsr_checkpoint *opened = NULL;
    tsr_plan plan = {0};
    tsr_ct_options integers;
    tsr_calibration calibration = {0};
    tsr_quantize_options blocks = {
        .block = {.scale_fmt = (tsr_scale_fmt)a->scale_fmt, .search = a->scales == 1},
        .dialect = (tsr_dialect)a->dialect,
        .policy = policy_of(a),
        .max_shard_bytes = run->max_shard_bytes,
    };
    TSR_TRY(tsr_parse_block("--block", a->block, &blocks.block.block_rows, &blocks.block.block_cols, err));
    if (a->scheme != FP8_BLOCK)
        TSR_TRY(int_options(run, a, &integers, err));
    TSR_TRY(tsr_checkpoint_open(&opened, run->src, run->ignore.items, run->ignore.count, err));
    const tsr_checkpoint *const source = opened;
    tsr_status status = TSR_OK;
    if (a->activations != NULL) {
        status = tsr_calibration_read(&calibration, a->activations, err);
        integers.calibration = &calibration;
    }
    if (status == TSR_OK)
        status = a->scheme == FP8_BLOCK ? tsr_quantize_plan(&plan, &source, &blocks, err)
                                        : tsr_ct_plan(&plan, &source, &integers, err);
    if (status == TSR_OK)
        status = tsr_run_plan(run, &plan, err);
    tsr_plan_free(&plan);
    tsr_calibration_free(&calibration);
    tsr_checkpoint_close(opened);
    return status;
}

int tsr_cmd_quantize(int argc, char **argv)
{
    /* What healthy weights reach: block FP8 31.5 +- 0.2 dB whatever the distribution, int8 35 to 42, int4 15 to 19. */
    static const double kLowSqnr[] = {
        [FP8_BLOCK] = 30, [FP8_CHANNEL] = 30, [INT8_CHANNEL] = 30, [INT8_WEIGHT_ONLY] = 30, [INT4_WEIGHT_ONLY] = 12};
    tsr_plan_run run = tsr_plan_run_defaults("quantize");
    arguments a = {.block = "128x128", .scale_dtype = -1, .divisor = -1, .group_size = UINT64_MAX};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &run, &a, &err);
    run.verb = "quantizing";
    run.low_sqnr = kLowSqnr[a.scheme];
    if (status == TSR_OK && !run.help)
        status = quantize(&run, &a, &err);
    return tsr_end("quantize", status, true, &err);
}
