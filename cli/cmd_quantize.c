/* tessera quantize: its options. */
#include "cli/commands.h"
#include "cli/families.h"
#include "cli/output.h"
#include "cli/results.h"
#include "cli/run_plan.h"
#include "cli/schemes.h"
#include "convert/plans/again_plan.h"
#include "convert/plans/rules_plan.h"
#include "convert/plans/split_plan.h"

/* What the command line says. */
typedef struct arguments {
    tsr_scheme_arguments of;
    const char *rules;       /* instead of a scheme; NULL: none */
    const char *scales_from; /* the original; NULL: scales are made */
    int experts;             /* -1: as needed */
    bool list_families;
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
    "  tessera quantize K2-BF16 -o out --scheme int4-weight-only --scales-from K2      the codes that K2 has\n"
    "  tessera quantize model -o out --scheme nvfp4-weight-only                   NVFP4A16, for vLLM, SGLang\n"
    "  tessera quantize model -o out --scheme nvfp4 --activations ranges.json --dialect modelopt     for TensorRT-LLM\n"
    "  tessera quantize model -o out --scheme mxfp4-weight-only --scales mse      experts for every engine\n"
    "  tessera quantize model -o out --scheme mxfp8 --dialect deepseek            quant_method mxfp8, for SGLang\n"
    "  tessera quantize DeepSeek-V4-BF16 -o out --scheme mxfp4 --dialect deepseek   as its releases are\n"
    "  tessera quantize gpt-oss-BF16 -o out --scheme mxfp4-weight-only            as its releases are\n"
    "  tessera quantize model -o out --rules rules.json                           several schemes: "
    "docs/plan-schemes.md\n"
    "  tessera quantize --list-families                                           which tensors, of which models\n\n"
    "Options:\n";

/* The options that not all schemes take. */
static const char *const kOptions[] = {
    [TSR_FP8_BLOCK] = "--block --scale-fmt --dialect",
    [TSR_FP8_CHANNEL] = "--dialect --scale-dtype",
    [TSR_INT8_CHANNEL] = "--dialect --scale-dtype --rounding --divisor --activations --activation-zero-points",
    [TSR_INT8_WEIGHT_ONLY] = "--dialect --scale-dtype --rounding --divisor --group-size",
    [TSR_INT4_WEIGHT_ONLY] = "--scale-dtype --rounding --divisor --group-size --zero-points --dialect --scales-from",
    [TSR_MX_SCHEME(TSR_MX_NVFP4)] = "--dialect --activations",
    [TSR_MX_SCHEME(TSR_MX_NVFP4_WEIGHT_ONLY)] = "--dialect",
    [TSR_MX_SCHEME(TSR_MX_MXFP4)] = "--dialect --mx-scale",
    [TSR_MX_SCHEME(TSR_MX_MXFP4_WEIGHT_ONLY)] = "--dialect --mx-scale",
    [TSR_MX_SCHEME(TSR_MX_MXFP8)] = "--dialect --mx-scale",
    [TSR_MX_SCHEME(TSR_MX_MXFP8_WEIGHT_ONLY)] = "--dialect --mx-scale",
};

/* Whether only some schemes take this option. */
static bool is_of_schemes(const char *option)
{
    for (size_t i = 0; i < TSR_ALL_SCHEMES; i++) {
        if (tsr_is_listed(kOptions[i], option))
            return true;
    }
    return false;
}

static tsr_status parse(int argc, char **argv, tsr_plan_run *run, arguments *a, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"-o", TSR_OPT_TEXT, &run->dst, "DST", "the output directory; made if need be"},
        {"--scheme", TSR_OPT_CHOICE, &a->of.scheme,
         "fp8-block|fp8-channel|int8-channel|int8-weight-only|int4-weight-only|nvfp4|nvfp4-weight-only|mxfp4|"
         "mxfp4-weight-only|mxfp8|mxfp8-weight-only",
         "what to quantize to (fp8-block)"},
        {"--rules", TSR_OPT_TEXT, &a->rules, "FILE",
         "several schemes, in compressed-tensors' dialect or ModelOpt's: which weights get which; tessera plan-schemes "
         "writes such "
         "a file, or you do"},
        {"--scales", TSR_OPT_CHOICE, &a->of.scales, "amax|mse",
         "from the largest value, or the scale of least squared error: slower, never worse (amax)"},
        {"--include", TSR_OPT_LIST, &a->of.include, "GLOB", "quantize these tensors too; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->of.exclude, "GLOB", "keep these tensors as they are; may be repeated"},
        {"--experts", TSR_OPT_CHOICE, &a->experts, "split|stack",
         "stacks of experts as a tensor for each expert and projection, or as they are (split, where the scheme or its "
         "loaders have no place for a stack; with --rules stack)"},
        {"--block", TSR_OPT_TEXT, &a->of.block, "RxC", "fp8-block: rows and columns of a block (128x128)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->of.scale_fmt, "f32|ue8m0",
         "fp8-block: scales as they come, or rounded up to powers of two (f32)"},
        {"--dialect", TSR_OPT_CHOICE, &a->of.dialect, "deepseek|compressed-tensors|modelopt|gpt-oss",
         "names of the scales and form of the configuration (fp8-block: deepseek; mxfp4 of gpt-oss: gpt-oss; others: "
         "compressed-tensors)"},
        {"--mx-scale", TSR_OPT_CHOICE, &a->of.mx_scale, "floor|even|rceil|ceil",
         "mxfp: the power of two for a group, from its largest value (what the dialect's own tools use: "
         "compressed-tensors even, others rceil)"},
        {"--group-size", TSR_OPT_COUNT, &a->of.group_size, "N",
         "weight-only: columns that share a scale; 0 is a whole row (0; int4: 128)"},
        {"--zero-points", TSR_OPT_FLAG, &a->of.zero_points, NULL, "int4: asymmetric weights"},
        {"--scales-from", TSR_OPT_TEXT, &a->scales_from, "ORIGINAL",
         "int4: SRC is what ORIGINAL, of int4, was in BF16; its scales give its very codes again, or the job stops"},
        {"--activation-zero-points", TSR_OPT_FLAG, &a->of.activation_zero_points, NULL,
         "int8-channel: activations with zero points, dynamic ones or --activations"},
        {"--activations", TSR_OPT_TEXT, &a->of.activations, "FILE",
         "int8-channel: static scales of the inputs, or their ranges; nvfp4, which needs it: ranges; JSON or "
         "safetensors; see docs/numerics.md"},
        {"--scale-dtype", TSR_OPT_CHOICE, &a->of.scale_dtype, "f32|bf16|f16",
         "of the scales, with which codes are made (channel: f32; weight-only: bf16); f16 with int only"},
        {"--rounding", TSR_OPT_CHOICE, &a->of.away, "even|away", "int: where ties go (even)"},
        {"--divisor", TSR_OPT_CHOICE, &a->of.divisor, "127|127.5|128|7|7.5|8",
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
        if ((given >> i & 1) == 0)
            continue;
        if (a->rules != NULL && !tsr_is_listed("--activations --dialect", options[i].name) &&
            (is_of_schemes(options[i].name) || tsr_is_listed("--scheme --include --exclude", options[i].name)))
            return tsr_fail(err, TSR_E_USAGE, "%s means nothing with --rules: the file says it", options[i].name);
        if (a->scales_from != NULL &&
            tsr_is_listed("--dialect --scales --scale-dtype --rounding --divisor --group-size --zero-points --include "
                          "--exclude --experts",
                          options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s means nothing with --scales-from: the original says it",
                            options[i].name);
        if (a->rules == NULL && is_of_schemes(options[i].name) &&
            !tsr_is_listed(kOptions[a->of.scheme], options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s means nothing with --scheme %s", options[i].name,
                            tsr_scheme_word((tsr_scheme)a->of.scheme));
    }
    if (a->list_families)
        return TSR_OK;
    TSR_TRY(tsr_plan_run_check(run, err));
    const char *const sources[] = {run->src, a->of.activations, a->rules, a->scales_from};
    return tsr_plan_run_places(run, sources, sizeof sources / sizeof *sources, err);
}

/* What a plan is made with, for tsr_split_plan. */
typedef struct making {
    const arguments *a;
    tsr_scheme_options *scheme; /* its dialect is settled once the source is known */
    const tsr_rules_options *rules;
} making;

static tsr_status make_scheme(tsr_plan *plan, const tsr_checkpoint *const *source, const void *options, tsr_err *err)
{
    const making *const m = options;
    return m->rules != NULL ? tsr_rules_plan(plan, source, m->rules, err)
                            : tsr_scheme_plan(plan, source, &m->a->of, m->scheme, err);
}

/* What the model decides where the command line does not. */
static tsr_status settle(const making *m, const tsr_checkpoint *source, tsr_experts *experts, tsr_err *err)
{
    tsr_scheme_settle(&m->a->of, source, *experts == TSR_EXPERTS_SPLIT, m->scheme);
    if (!tsr_scheme_stacks(&m->a->of, m->scheme))
        return TSR_OK;
    if (*experts == TSR_EXPERTS_SPLIT)
        return tsr_fail(err, TSR_E_USAGE, "--experts split: --dialect gpt-oss holds stacks of experts");
    *experts = TSR_EXPERTS_TURN;
    return TSR_OK;
}

/* Opens the source, plans and runs. */
static tsr_status run_scheme(tsr_plan_run *run, const making *m, tsr_experts experts, tsr_err *err)
{
    tsr_checkpoint *opened = NULL;
    tsr_plan plan = {0};
    tsr_any_view view = {0};
    const bool keeps_stacks = m->rules == NULL && m->a->of.scheme == TSR_FP8_BLOCK;
    tsr_status status = tsr_checkpoint_open(&opened, run->src, run->ignore.items, run->ignore.count, err);
    const tsr_checkpoint *const source = opened;
    if (status == TSR_OK && m->scheme != NULL)
        status = settle(m, source, &experts, err);
    if (status == TSR_OK)
        status = tsr_split_plan(&plan, &view, &source, experts, keeps_stacks, make_scheme, m, err);
    if (status == TSR_OK)
        status = tsr_run_plan(run, &plan, err);
    tsr_plan_free(&plan);
    tsr_any_free(&view);
    tsr_checkpoint_close(opened);
    return status;
}

/* Codes again, with the scales that they had. */
static tsr_status quantize_again(tsr_plan_run *run, const arguments *a, tsr_err *err)
{
    tsr_checkpoint *opened[2] = {NULL, NULL};
    tsr_plan plan = {0};
    tsr_status status = tsr_checkpoint_open(&opened[0], run->src, run->ignore.items, run->ignore.count, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_open(&opened[1], a->scales_from, run->ignore.items, run->ignore.count, err);
    const tsr_checkpoint *const sources[] = {opened[0], opened[1]};
    if (status == TSR_OK)
        status = tsr_again_plan(&plan, sources, run->max_shard_bytes, err);
    if (status == TSR_OK)
        status = tsr_run_plan(run, &plan, err);
    tsr_plan_free(&plan);
    tsr_checkpoint_close(opened[0]);
    tsr_checkpoint_close(opened[1]);
    return status;
}

static tsr_status quantize(tsr_plan_run *run, const arguments *a, tsr_err *err)
{
    static const tsr_experts kExperts[] = {TSR_EXPERTS_AS_NEEDED, TSR_EXPERTS_SPLIT, TSR_EXPERTS_STACK};
    tsr_scheme_options o;
    TSR_TRY(tsr_scheme_read(run, &a->of, true, &o, err));
    const tsr_status status = run_scheme(run, &(making){.a = a, .scheme = &o}, kExperts[a->experts + 1], err);
    tsr_scheme_free(&o);
    return status;
}

static tsr_status quantize_by_rules(tsr_plan_run *run, const arguments *a, tsr_err *err)
{
    tsr_rules rules;
    tsr_calibration calibration = {0};
    const bool calibrated = a->of.activations != NULL;
    if (a->of.dialect == TSR_MX_DIALECT_DEEPSEEK || a->of.dialect == TSR_MX_DIALECT_GPT_OSS)
        return tsr_fail(err, TSR_E_USAGE,
                        "--dialect %s holds one scheme for all layers; compressed-tensors and "
                        "modelopt hold a mixture",
                        tsr_mx_dialect_name((tsr_mx_dialect)a->of.dialect));
    TSR_TRY(tsr_rules_read(&rules, a->rules, err));
    if (a->of.dialect >= 0)
        rules.dialect = (tsr_mx_dialect)a->of.dialect;
    const tsr_rules_options o = {.rules = &rules,
                                 .search = a->of.scales == 1,
                                 .calibration = calibrated ? &calibration : NULL,
                                 .max_shard_bytes = run->max_shard_bytes};
    tsr_status status = calibrated ? tsr_calibration_read(&calibration, a->of.activations, err) : TSR_OK;
    if (status == TSR_OK)
        status = run_scheme(run, &(making){.a = a, .rules = &o},
                            a->experts == 0 ? TSR_EXPERTS_SPLIT : TSR_EXPERTS_STACK, err);
    tsr_calibration_free(&calibration);
    tsr_rules_free(&rules);
    return status;
}

int tsr_cmd_quantize(int argc, char **argv)
{
    tsr_plan_run run = tsr_plan_run_defaults("quantize");
    arguments a = {.of = tsr_scheme_defaults(), .experts = -1};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &run, &a, &err);
    run.verb = "quantizing";
    run.low_sqnr = tsr_scheme_low_sqnr(a.rules != NULL ? TSR_INT4_WEIGHT_ONLY : (tsr_scheme)a.of.scheme);
    if (status == TSR_OK && !run.help)
        status = a.list_families         ? tsr_list_families(run.json, &err)
                 : a.rules != NULL       ? quantize_by_rules(&run, &a, &err)
                 : a.scales_from != NULL ? quantize_again(&run, &a, &err)
                                         : quantize(&run, &a, &err);
    return tsr_end("quantize", status, run.beyond == 0, &err);
}
