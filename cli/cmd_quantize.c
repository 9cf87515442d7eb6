/* tessera quantize: its options. */
#include "cli/commands.h"
#include "cli/families.h"
#include "cli/output.h"
#include "cli/plan_job.h"
#include "convert/plans/again_plan.h"
#include "convert/plans/named_scheme.h"
#include "convert/plans/rules_plan.h"
#include "convert/plans/split_plan.h"

#include <stdlib.h>

/* What the command line says. */
typedef struct arguments {
    tsr_scheme_arguments of;
    const char *block;
    tsr_list include, exclude;
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
        {"--scheme", TSR_OPT_CHOICE, &a->of.scheme, TSR_SCHEME_WORDS, "what to quantize to (fp8-block)"},
        {"--rules", TSR_OPT_TEXT, &a->rules, "FILE",
         "several schemes, in compressed-tensors' dialect or ModelOpt's: which weights get which; tessera plan-schemes "
         "writes such "
         "a file, or you do"},
        {"--scales", TSR_OPT_CHOICE, &a->of.scales, TSR_SCALES_WORDS,
         "from the largest value, or the scale of least squared error: slower, never worse (amax)"},
        {"--include", TSR_OPT_LIST, &a->include, "GLOB", "quantize these tensors too; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->exclude, "GLOB", "keep these tensors as they are; may be repeated"},
        {"--experts", TSR_OPT_CHOICE, &a->experts, "split|stack",
         "stacks of experts as a tensor for each expert and projection, or as they are (split, where the scheme or its "
         "loaders have no place for a stack; with --rules stack)"},
        {"--block", TSR_OPT_TEXT, &a->block, "RxC", "fp8-block: rows and columns of a block (128x128)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->of.scale_fmt, TSR_SCALE_FMT_WORDS,
         "fp8-block: scales as they come, or rounded up to powers of two (f32)"},
        {"--dialect", TSR_OPT_CHOICE, &a->of.dialect, TSR_DIALECT_WORDS,
         "names of the scales and form of the configuration (fp8-block: deepseek; mxfp4 of gpt-oss: gpt-oss; others: "
         "compressed-tensors)"},
        {"--mx-scale", TSR_OPT_CHOICE, &a->of.mx_scale, TSR_MX_SCALE_WORDS,
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
        {"--scale-dtype", TSR_OPT_CHOICE, &a->of.scale_dtype, TSR_SCALE_DTYPE_WORDS,
         "of the scales, with which codes are made (channel: f32; weight-only: bf16); f16 with int only"},
        {"--rounding", TSR_OPT_CHOICE, &a->of.away, TSR_ROUNDING_WORDS, "int: where ties go (even)"},
        {"--divisor", TSR_OPT_CHOICE, &a->of.divisor, TSR_DIVISOR_WORDS,
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
                            tsr_scheme_word((tsr_named_scheme)a->of.scheme));
    }
    if (a->list_families)
        return TSR_OK;
    TSR_TRY(tsr_plan_run_check(run, options, given, err));
    const char *const sources[] = {run->src, a->of.activations, a->rules, a->scales_from};
    return tsr_plan_run_places(run, sources, sizeof sources / sizeof *sources, err);
}

/* A job: what it was told, and what its plan borrows. */
typedef struct quantizing {
    arguments a;
    bool by_scheme;            /* else by rules */
    tsr_scheme_options scheme; /* its dialect is settled once the source is known */
    tsr_rules rules;
    tsr_calibration calibration; /* for rules */
    tsr_rules_options by_rules;
    tsr_checkpoint *opened[2];
    const tsr_checkpoint *sources[2]; /* the same */
    tsr_any_view view;
} quantizing;

static void close_job(void *own)
{
    quantizing *const q = own;
    tsr_any_free(&q->view);
    for (size_t i = 0; i < 2; i++)
        tsr_checkpoint_close(q->opened[i]);
    tsr_scheme_free(&q->scheme);
    tsr_calibration_free(&q->calibration);
    tsr_rules_free(&q->rules);
    free(q);
}

static tsr_status open_source(const tsr_plan_run *run, const char *path, size_t i, quantizing *q, tsr_err *err)
{
    TSR_TRY(tsr_checkpoint_open(&q->opened[i], path, run->ignore.items, run->ignore.count, err));
    q->sources[i] = q->opened[i];
    return TSR_OK;
}

static tsr_status make_scheme(tsr_plan *plan, const tsr_checkpoint *const *source, const void *options, tsr_err *err)
{
    const quantizing *const q = options;
    return q->by_scheme ? tsr_scheme_plan(plan, source, &q->a.of, &q->scheme, err)
                        : tsr_rules_plan(plan, source, &q->by_rules, err);
}

/* What the model decides where the command line does not. */
static tsr_status settle(quantizing *q, tsr_experts *experts, tsr_err *err)
{
    tsr_scheme_settle(&q->a.of, q->sources[0], *experts == TSR_EXPERTS_SPLIT, &q->scheme);
    if (!tsr_scheme_stacks(&q->a.of, &q->scheme))
        return TSR_OK;
    if (*experts == TSR_EXPERTS_SPLIT)
        return tsr_fail(err, TSR_E_USAGE, "--experts split: --dialect gpt-oss holds stacks of experts");
    *experts = TSR_EXPERTS_TURN;
    return TSR_OK;
}

/* Opens the source and plans. */
static tsr_status plan_scheme(tsr_plan_job *job, quantizing *q, tsr_experts experts, tsr_err *err)
{
    const bool keeps_stacks = q->by_scheme && q->a.of.scheme == TSR_FP8_BLOCK;
    TSR_TRY(open_source(&job->run, job->run.src, 0, q, err));
    if (q->by_scheme)
        TSR_TRY(settle(q, &experts, err));
    return tsr_split_plan(&job->plan, &q->view, q->sources, experts, keeps_stacks, make_scheme, q, err);
}

/* Codes again, with the scales that they had. */
static tsr_status plan_again(tsr_plan_job *job, tsr_err *err)
{
    quantizing *const q = job->own;
    TSR_TRY(open_source(&job->run, job->run.src, 0, q, err));
    TSR_TRY(open_source(&job->run, q->a.scales_from, 1, q, err));
    return tsr_again_plan(&job->plan, q->sources, job->run.max_shard_bytes, err);
}

static tsr_status plan_by_scheme(tsr_plan_job *job, tsr_err *err)
{
    static const tsr_experts kExperts[] = {TSR_EXPERTS_AS_NEEDED, TSR_EXPERTS_SPLIT, TSR_EXPERTS_STACK};
    quantizing *const q = job->own;
    arguments *const a = &q->a;
    q->by_scheme = true;
    if (a->block != NULL)
        TSR_TRY(tsr_parse_block("--block", a->block, &a->of.block, err));
    a->of.policy = (tsr_policy_options){.include = a->include.items,
                                        .n_include = a->include.count,
                                        .exclude = a->exclude.items,
                                        .n_exclude = a->exclude.count};
    a->of.max_shard_bytes = job->run.max_shard_bytes;
    TSR_TRY(tsr_scheme_read(&a->of, true, &q->scheme, err));
    return plan_scheme(job, q, kExperts[a->experts + 1], err);
}

static tsr_status plan_by_rules(tsr_plan_job *job, tsr_err *err)
{
    quantizing *const q = job->own;
    const arguments *const a = &q->a;
    const bool calibrated = a->of.activations != NULL;
    if (a->of.dialect == TSR_MX_DIALECT_DEEPSEEK || a->of.dialect == TSR_MX_DIALECT_GPT_OSS)
        return tsr_fail(err, TSR_E_USAGE,
                        "--dialect %s holds one scheme for all layers; compressed-tensors and "
                        "modelopt hold a mixture",
                        tsr_mx_dialect_name((tsr_mx_dialect)a->of.dialect));
    TSR_TRY(tsr_rules_read(&q->rules, a->rules, err));
    if (a->of.dialect >= 0)
        q->rules.dialect = (tsr_mx_dialect)a->of.dialect;
    if (calibrated)
        TSR_TRY(tsr_calibration_read(&q->calibration, a->of.activations, err));
    q->by_rules = (tsr_rules_options){.rules = &q->rules,
                                      .search = a->of.scales == 1,
                                      .calibration = calibrated ? &q->calibration : NULL,
                                      .max_shard_bytes = job->run.max_shard_bytes};
    return plan_scheme(job, q, a->experts == 0 ? TSR_EXPERTS_SPLIT : TSR_EXPERTS_STACK, err);
}

tsr_status tsr_quantize_read(tsr_plan_job *job, int argc, char **argv, tsr_err *err)
{
    quantizing *const q = calloc(1, sizeof *q);
    if (q == NULL)
        return tsr_out_of_memory(err, NULL);
    q->a = (arguments){.of = tsr_scheme_defaults(), .experts = -1};
    *job = (tsr_plan_job){.run = tsr_plan_run_defaults("quantize"), .own = q, .close = close_job};
    TSR_TRY(parse(argc, argv, &job->run, &q->a, err));
    job->run.verb = "quantizing";
    job->run.low_sqnr =
        tsr_scheme_low_sqnr(q->a.rules != NULL ? TSR_INT4_WEIGHT_ONLY : (tsr_named_scheme)q->a.of.scheme);
    job->make = q->a.rules != NULL ? plan_by_rules : q->a.scales_from != NULL ? plan_again : plan_by_scheme;
    job->idle = job->run.help || q->a.list_families;
    return q->a.list_families && !job->run.help ? tsr_list_families(job->run.json, err) : TSR_OK;
}

int tsr_cmd_quantize(int argc, char **argv)
{
    return tsr_plan_command("quantize", tsr_quantize_read, argc, argv);
}
