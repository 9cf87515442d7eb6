/* tessera quantize: its options. */
#include "cli/commands.h"
#include "cli/families.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/run_plan.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/mx_plan.h"
#include "convert/plans/quantize_plan.h"

#include <stdio.h>

enum scheme {
    FP8_BLOCK,
    FP8_CHANNEL,
    INT8_CHANNEL,
    INT8_WEIGHT_ONLY,
    INT4_WEIGHT_ONLY,
    MX, /* the first tsr_mx_target */
    SCHEMES = MX + TSR_MX_TARGETS,
};

typedef struct arguments {
    const char *block, *activations;
    int scheme, scale_fmt, scales, away;
    int dialect, mx_scale, scale_dtype, divisor; /* -1: as the scheme has it */
    uint64_t group_size;                         /* UINT64_MAX: likewise */
    bool zero_points, activation_zero_points, list_families;
    tsr_list include, exclude;
} arguments;

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
    "  tessera quantize model -o out --scheme nvfp4-weight-only                   NVFP4A16, for vLLM, SGLang\n"
    "  tessera quantize model -o out --scheme nvfp4 --activations ranges.json --dialect modelopt     for TensorRT-LLM\n"
    "  tessera quantize model -o out --scheme mxfp4-weight-only --scales mse      experts for every engine\n"
    "  tessera quantize model -o out --scheme mxfp8 --dialect deepseek            quant_method mxfp8, for SGLang\n"
    "  tessera quantize --list-families                                           which tensors, of which models\n\n"
    "Options:\n";

/* In the order of the words of --scheme, with the options that not all schemes take. */
static const struct scheme_options {
    const char *name, *options;
} kSchemes[] = {
    [FP8_BLOCK] = {"fp8-block", "--block --scale-fmt --dialect"},
    [FP8_CHANNEL] = {"fp8-channel", "--dialect --scale-dtype"},
    [INT8_CHANNEL] = {"int8-channel",
                      "--dialect --scale-dtype --rounding --divisor --activations --activation-zero-points"},
    [INT8_WEIGHT_ONLY] = {"int8-weight-only", "--dialect --scale-dtype --rounding --divisor --group-size"},
    [INT4_WEIGHT_ONLY] = {"int4-weight-only",
                          "--dialect --scale-dtype --rounding --divisor --group-size --zero-points"},
    [MX + TSR_MX_NVFP4] = {"nvfp4", "--dialect --activations"},
    [MX + TSR_MX_NVFP4_WEIGHT_ONLY] = {"nvfp4-weight-only", "--dialect"},
    [MX + TSR_MX_MXFP4] = {"mxfp4", "--dialect --mx-scale"},
    [MX + TSR_MX_MXFP4_WEIGHT_ONLY] = {"mxfp4-weight-only", "--dialect --mx-scale"},
    [MX + TSR_MX_MXFP8] = {"mxfp8", "--dialect --mx-scale"},
    [MX + TSR_MX_MXFP8_WEIGHT_ONLY] = {"mxfp8-weight-only", "--dialect --mx-scale"},
};

/* Whether only some schemes take this option. */
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
        {"--scheme", TSR_OPT_CHOICE, &a->scheme,
         "fp8-block|fp8-channel|int8-channel|int8-weight-only|int4-weight-only|nvfp4|nvfp4-weight-only|mxfp4|"
         "mxfp4-weight-only|mxfp8|mxfp8-weight-only",
         "what to quantize to (fp8-block)"},
        {"--scales", TSR_OPT_CHOICE, &a->scales, "amax|mse",
         "from the largest value, or the scale of least squared error: slower, never worse (amax)"},
        {"--include", TSR_OPT_LIST, &a->include, "GLOB", "quantize these tensors too; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->exclude, "GLOB", "keep these tensors as they are; may be repeated"},
        {"--block", TSR_OPT_TEXT, &a->block, "RxC", "fp8-block: rows and columns of a block (128x128)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->scale_fmt, "f32|ue8m0",
         "fp8-block: scales as they come, or rounded up to powers of two (f32)"},
        {"--dialect", TSR_OPT_CHOICE, &a->dialect, "deepseek|compressed-tensors|modelopt",
         "names of the scales and form of the configuration (fp8-block: deepseek; others: compressed-tensors)"},
        {"--mx-scale", TSR_OPT_CHOICE, &a->mx_scale, "floor|even|rceil|ceil",
         "mxfp: the power of two for a group, from its largest value (what the dialect's own tools use: "
         "compressed-tensors even, others rceil)"},
        {"--group-size", TSR_OPT_COUNT, &a->group_size, "N",
         "weight-only: columns that share a scale; 0 is a whole row (0; int4: 128)"},
        {"--zero-points", TSR_OPT_FLAG, &a->zero_points, NULL, "int4: asymmetric weights"},
        {"--activation-zero-points", TSR_OPT_FLAG, &a->activation_zero_points, NULL,
         "int8-channel: activations with zero points, dynamic ones or --activations"},
        {"--activations", TSR_OPT_TEXT, &a->activations, "FILE",
         "int8-channel: static scales of the inputs, or their ranges; nvfp4, which needs it: ranges; JSON or "
         "safetensors; see docs/numerics.md"},
        {"--scale-dtype", TSR_OPT_CHOICE, &a->scale_dtype, "f32|bf16|f16",
         "of the scales, with which codes are made (channel: f32; weight-only: bf16); f16 with int only"},
        {"--rounding", TSR_OPT_CHOICE, &a->away, "even|away", "int: where ties go (even)"},
        {"--divisor", TSR_OPT_CHOICE, &a->divisor, "127|127.5|128|7|7.5|8",
         "int: symmetric scales are amax over this (127.5, 7.5)"},
        {"--list-families", TSR_OPT_FLAG, &a->list_families, NULL,
         "print which tensors of which models are quantized, and stop; also with --json"},
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
    if (a->list_families)
        return TSR_OK;
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
    if (a->dialect >= 0 && a->dialect != TSR_MX_DIALECT_COMPRESSED_TENSORS)
        return tsr_fail(err, TSR_E_USAGE,
                        "--dialect %s: no loader reads %s in it; what is read: --dialect compressed-tensors",
                        tsr_mx_dialect_name((tsr_mx_dialect)a->dialect), kSchemes[a->scheme].name);
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

static tsr_status block_options(const tsr_plan_run *run, const arguments *a, tsr_quantize_options *options,
                                tsr_err *err)
{
    if (a->dialect == TSR_MX_DIALECT_MODELOPT)
        return tsr_fail(err, TSR_E_USAGE, "--dialect modelopt is not for fp8-block: deepseek or compressed-tensors");
    *options = (tsr_quantize_options){
        .block = {.scale_fmt = (tsr_scale_fmt)a->scale_fmt, .search = a->scales == 1},
        .dialect =
            a->dialect == TSR_MX_DIALECT_COMPRESSED_TENSORS ? TSR_DIALECT_COMPRESSED_TENSORS : TSR_DIALECT_DEEPSEEK,
        .policy = policy_of(a),
        .max_shard_bytes = run->max_shard_bytes,
    };
    tsr_block block;
    TSR_TRY(tsr_parse_block("--block", a->block, &block, err));
    options->block.block_rows = (uint32_t)block.rows;
    options->block.block_cols = (uint32_t)block.cols;
    return TSR_OK;
}

static tsr_status mx_options(const tsr_plan_run *run, const arguments *a, tsr_mx_options *options, tsr_err *err)
{
    /* In the order of --mx-scale's words. */
    static const tsr_mx_rule kRules[] = {TSR_MX_FLOOR, TSR_MX_EVEN, TSR_MX_RCEIL, TSR_MX_CEIL};
    *options = (tsr_mx_options){
        .target = (tsr_mx_target)(a->scheme - MX),
        .dialect = a->dialect < 0 ? TSR_MX_DIALECT_COMPRESSED_TENSORS : (tsr_mx_dialect)a->dialect,
        .rule = a->mx_scale < 0 ? NULL : &kRules[a->mx_scale],
        .search = a->scales == 1,
        .policy = policy_of(a),
        .max_shard_bytes = run->max_shard_bytes,
    };
    if (tsr_mx_needs_ranges(options->target) && a->activations == NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--scheme nvfp4 quantizes activations, too, and needs their ranges: --activations FILE "
                        "(tools/capture_activations.py makes one); --scheme nvfp4-weight-only does without");
    return tsr_mx_check_dialect(options->target, options->dialect, err);
}

/* The plan of the scheme that was asked for. Its options have to outlive it. */
typedef struct options {
    tsr_quantize_options blocks;
    tsr_ct_options rows;
    tsr_mx_options groups;
    tsr_calibration calibration;
} options;

static tsr_status read_options(const tsr_plan_run *run, const arguments *a, options *o, tsr_err *err)
{
    return a->scheme == FP8_BLOCK ? block_options(run, a, &o->blocks, err)
           : a->scheme >= MX      ? mx_options(run, a, &o->groups, err)
                                  : int_options(run, a, &o->rows, err);
}

static tsr_status plan_scheme(tsr_plan *plan, const tsr_checkpoint *const *source, const arguments *a, options *o,
                              tsr_err *err)
{
    if (a->activations != NULL) {
        TSR_TRY(tsr_calibration_read(&o->calibration, a->activations, err));
        o->rows.calibration = o->groups.calibration = &o->calibration;
    }
    return a->scheme == FP8_BLOCK ? tsr_quantize_plan(plan, source, &o->blocks, err)
           : a->scheme >= MX      ? tsr_mx_plan(plan, source, &o->groups, err)
                                  : tsr_ct_plan(plan, source, &o->rows, err);
}

static tsr_status quantize(const tsr_plan_run *run, const arguments *a, tsr_err *err)
{
    tsr_checkpoint *opened = NULL;
    tsr_plan plan = {0};
    options o = {.calibration = {0}};
    TSR_TRY(read_options(run, a, &o, err));
    TSR_TRY(tsr_checkpoint_open(&opened, run->src, run->ignore.items, run->ignore.count, err));
    const tsr_checkpoint *const source = opened;
    tsr_status status = plan_scheme(&plan, &source, a, &o, err);
    if (status == TSR_OK)
        status = tsr_run_plan(run, &plan, err);
    tsr_plan_free(&plan);
    tsr_calibration_free(&o.calibration);
    tsr_checkpoint_close(opened);
    return status;
}

int tsr_cmd_quantize(int argc, char **argv)
{
    /* What healthy weights reach: block FP8 31.5 +- 0.2 dB whatever the distribution, int8 35 to 42, int4 15 to 19,
     * MXFP8 30 to 32, NVFP4 20 to 21, MXFP4 17 to 19. */
    static const double kLowSqnr[SCHEMES] = {
        [FP8_BLOCK] = 30,
        [FP8_CHANNEL] = 30,
        [INT8_CHANNEL] = 30,
        [INT8_WEIGHT_ONLY] = 30,
        [INT4_WEIGHT_ONLY] = 12,
        [MX + TSR_MX_NVFP4] = 17,
        [MX + TSR_MX_NVFP4_WEIGHT_ONLY] = 17,
        [MX + TSR_MX_MXFP4] = 15,
        [MX + TSR_MX_MXFP4_WEIGHT_ONLY] = 15,
        [MX + TSR_MX_MXFP8] = 28,
        [MX + TSR_MX_MXFP8_WEIGHT_ONLY] = 28,
    };
    tsr_plan_run run = tsr_plan_run_defaults("quantize");
    arguments a = {
        .block = "128x128", .dialect = -1, .mx_scale = -1, .scale_dtype = -1, .divisor = -1, .group_size = UINT64_MAX};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &run, &a, &err);
    run.verb = "quantizing";
    run.low_sqnr = kLowSqnr[a.scheme];
    if (status == TSR_OK && !run.help)
        status = a.list_families ? tsr_list_families(run.json, &err) : quantize(&run, &a, &err);
    return tsr_end("quantize", status, true, &err);
}
