/* The targets, the options of each, and their plans. */
#include "convert/jobs/convert_job.h"
#include "convert/jobs/made_with.h"

#include "convert/plans/any_plan.h"
#include "convert/plans/archive_plan.h"
#include "convert/plans/cast_plan.h"
#include "convert/plans/deepseek_mp_plan.h"
#include "convert/plans/gpt_oss_plan.h"
#include "convert/plans/layout_plan.h"
#include "convert/plans/mla_plan.h"
#include "convert/plans/requantize_plan.h"
#include "convert/plans/tp_plan.h"

#include <stdio.h>
#include <string.h>

enum { FROM_DEEPSEEK_MP = 2 };

/* ---- targets ---- */

static tsr_status plan_bf16(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                            tsr_plan *plan, tsr_err *err)
{
    static const tsr_dtype kDtypes[] = {TSR_BF16, TSR_F16, TSR_F32};
    tsr_cast_options options = {
        .dtype = kDtypes[a->dtype], .stack = a->experts == 1, .max_shard_bytes = from->max_shard_bytes};
    if (a->experts == 0)
        return tsr_fail(err, TSR_E_USAGE,
                        "--experts split is for schemes; --to bf16 leaves stacks as they are, or with "
                        "--experts stack makes some");
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.block, err));
    return tsr_cast_plan(plan, in->sources, &options, err);
}

/* MXFP4 of gpt-oss' experts to its own layout. */
static tsr_status plan_gpt_oss(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                               tsr_plan *plan, tsr_err *err)
{
    tsr_gpt_oss_options options = {.max_shard_bytes = from->max_shard_bytes};
    if (a->lossy || a->scales == 1 || a->mx_scale >= 0 || a->experts == 0 || a->exclude.count > 0)
        return tsr_fail(err, TSR_E_USAGE,
                        "--dialect gpt-oss takes the codes of all experts as they are, in stacks: --lossy, --scales, "
                        "--mx-scale, --exclude and --experts split mean nothing with it");
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.source_block, err));
    return tsr_gpt_oss_plan(plan, in->sources, &options, err);
}

/* Any codes to those of a scheme. `paired`: the source's weights, which are taken over; NULL: they are not known yet. */
static tsr_status plan_scheme(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                              tsr_named_scheme scheme, tsr_weights *paired, tsr_plan *plan, tsr_err *err)
{
    tsr_scheme_arguments of = tsr_scheme_defaults();
    of.scheme = (int)scheme;
    of.dialect = a->dialect;
    of.scales = a->scales;
    of.mx_scale = a->mx_scale;
    of.group_size = a->group_size;
    of.zero_points = a->zero_points;
    of.activations = a->activations;
    of.block = a->block == NULL ? of.block : a->block;
    of.max_shard_bytes = from->max_shard_bytes;
    of.scale_fmt = a->scale_fmt < 0 ? 0 : a->scale_fmt;
    TSR_TRY(tsr_scheme_read(&of, false, &in->scheme, err));
    tsr_scheme_settle(&of, in->sources[0], a->experts == 0, &in->scheme);
    if (tsr_scheme_stacks(&of, &in->scheme))
        return plan_gpt_oss(from, a, in, plan, err);
    tsr_any_options options = {
        .blocks = scheme == TSR_FP8_BLOCK ? &in->scheme.blocks : NULL,
        .rows = scheme > TSR_FP8_BLOCK && scheme < TSR_MX_SCHEMES ? &in->scheme.rows : NULL,
        .groups = scheme >= TSR_MX_SCHEMES ? &in->scheme.groups : NULL,
        .exclude = a->exclude.items,
        .n_exclude = a->exclude.count,
        .lossy = a->lossy,
        .split = a->experts < 0    ? TSR_SPLIT_CODES
                 : a->experts == 0 ? TSR_SPLIT_ALL
                                   : TSR_SPLIT_NONE,
        .anew = a->scales == 1,
        .group_as_source = a->group_size == UINT64_MAX,
        .paired = paired,
    };
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.source_block, err));
    return tsr_any_plan(plan, &in->view, in->sources[0], &options, err);
}

static tsr_status plan_named_scheme(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                    tsr_plan *plan, tsr_err *err);

/* Whether all codes are FP8, for which requantizing has options of its own. */
static bool is_fp8_only(const tsr_weights *weights)
{
    bool only = true;
    for (size_t i = 0; i < weights->count; i++)
        only = only && (weights->items[i].kind == NULL || weights->items[i].kind->family == TSR_FAMILY_FP8);
    return only;
}

/* FP8 of which some becomes BF16, by way of any codes: what was left open is as the source has it. */
static tsr_status plan_some_blocks(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                   tsr_requantize_options *options, tsr_weights *weights, tsr_plan *plan, tsr_err *err)
{
    char block[64];
    TSR_TRY(tsr_requantize_settle(options, in->sources[0], weights, err));
    snprintf(block, sizeof block, "%llux%llu", U64(options->block.rows), U64(options->block.cols));
    tsr_convert_job settled = *a;
    settled.block = block;
    settled.scale_fmt = options->scale_fmt;
    settled.dialect = options->dialect == TSR_DIALECT_COMPRESSED_TENSORS ? TSR_MX_DIALECT_COMPRESSED_TENSORS
                                                                         : TSR_MX_DIALECT_DEEPSEEK;
    settled.experts = 1;
    return plan_scheme(from, &settled, in, TSR_FP8_BLOCK, weights, plan, err);
}

static tsr_status plan_fp8_block(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                 tsr_plan *plan, tsr_err *err)
{
    tsr_requantize_options options = {.scale_fmt = a->scale_fmt,
                                      .dialect = a->dialect,
                                      .search = a->scales == 1,
                                      .max_shard_bytes = from->max_shard_bytes};
    tsr_weights weights;
    tsr_status status;
    TSR_TRY(tsr_check_block_dialect(a->dialect, err));
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.source_block, err));
    TSR_TRY(tsr_parse_block("--block", a->block, &options.block, err));
    TSR_TRY(tsr_weights_pair(&weights, in->sources[0], options.source_block, err));
    const bool requantizes = is_fp8_only(&weights) && a->experts != 0;
    if (requantizes && a->exclude.count == 0)
        status = tsr_requantize_plan(plan, in->sources, in->n, &weights, &options, err);
    else if (in->n > 1)
        status = tsr_fail(err, TSR_E_USAGE,
                          "--against is for sources whose codes are FP8 only, and stay stacked, without --exclude; "
                          "'tessera verify DST --against ORIGINAL' compares any output");
    else if (requantizes)
        status = plan_some_blocks(from, a, in, &options, &weights, plan, err);
    else
        status = plan_scheme(from, a, in, TSR_FP8_BLOCK, &weights, plan, err);
    tsr_weights_free(&weights);
    return status;
}

static tsr_status plan_tp(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in, tsr_plan *plan,
                          tsr_err *err)
{
    if (a->tp == 0)
        return tsr_fail(err, TSR_E_USAGE, "over how many ranks? --tp N");
    const tsr_tp_options options = {.ranks = (uint32_t)(a->tp > UINT32_MAX ? UINT32_MAX : a->tp),
                                    .max_shard_bytes = from->max_shard_bytes};
    return tsr_tp_plan(plan, in->sources, &options, err);
}

static tsr_status plan_deepseek_mp(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                   tsr_plan *plan, tsr_err *err)
{
    (void)from;
    if (a->mp == 0)
        return tsr_fail(err, TSR_E_USAGE, "over how many ranks? --mp N");
    const tsr_deepseek_mp_options options = {.ranks = (uint32_t)(a->mp > UINT32_MAX ? UINT32_MAX : a->mp),
                                             .keep_mtp = a->keep_mtp};
    return tsr_deepseek_mp_plan(plan, in->sources, &options, err);
}

static tsr_status plan_mla(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in, tsr_plan *plan,
                           tsr_err *err)
{
    if (a->consumer < 0)
        return tsr_fail(err, TSR_E_USAGE, "for whom? --consumer sglang|vllm|trtllm|llamacpp");
    const tsr_mla_options options = {.consumer = (tsr_mla_consumer)a->consumer,
                                     .form = (tsr_mla_form)a->weights,
                                     .fold = a->fold,
                                     .drop_kv_b = a->drop_kv_b,
                                     .max_shard_bytes = from->max_shard_bytes};
    return tsr_mla_plan(plan, in->sources, &options, err);
}

static tsr_status plan_archive(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                               tsr_plan *plan, tsr_err *err)
{
    (void)from;
    if (a->level < 1 || a->level > 19)
        return tsr_fail(err, TSR_E_USAGE, "--level: 1 to 19");
    const tsr_archive_options options = {.level = (int)a->level, .shuffle = a->shuffle};
    return tsr_archive_plan(plan, in->sources, &options, err);
}

static tsr_status plan_safetensors(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                   tsr_plan *plan, tsr_err *err)
{
    (void)from, (void)a;
    return tsr_unarchive_plan(plan, in->sources, err);
}

static tsr_status plan_layout(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                              tsr_layout_kind kind, tsr_plan *plan, tsr_err *err)
{
    static const int kArchs[] = {70, 75, 80, 86, 89, 90};
    static const tsr_dtype kDtypes[] = {TSR_BF16, TSR_F16};
    const bool int4 = a->bits == 1;
    float divisor = int4 ? 8 : 128;
    uint64_t group = 0;
    if (a->arch < 0)
        return tsr_fail(err, TSR_E_USAGE, "for which architecture? --arch sm70|sm75|sm80|sm86|sm89|sm90");
    TSR_TRY(tsr_read_divisor(a->divisor, int4, int4 ? "int4" : "int8", &divisor, err));
    TSR_TRY(tsr_read_group_size(a->group_size, &group, err));
    tsr_layout_options options = {
        .kind = kind,
        .producer = kind == TSR_LAYOUT_TRTLLM ? TSR_FT_TRTLLM_MAIN : TSR_FT_FASTERTRANSFORMER,
        .arch = kArchs[a->arch],
        .scheme = {.bits = int4 ? 4 : 8,
                   .group = group,
                   .divisor = divisor,
                   .away = a->away == 0,
                   .zero_scale = true,
                   .scale_dtype = TSR_F32,
                   .search = a->scales == 1},
        .scale_dtype = kDtypes[a->scale_dtype],
        .asked = a->quantizing,
        .policy = {.include = a->include.items,
                   .n_include = a->include.count,
                   .exclude = a->exclude.items,
                   .n_exclude = a->exclude.count},
        .max_shard_bytes = from->max_shard_bytes,
    };
    if (a->producer != NULL && tsr_ft_producer_parse(a->producer, &options.producer, err) != TSR_OK)
        return TSR_E_USAGE;
    return tsr_layout_plan(plan, in->sources, &options, err);
}

static tsr_status plan_fastertransformer(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                         tsr_plan *plan, tsr_err *err)
{
    return plan_layout(from, a, in, TSR_LAYOUT_FASTERTRANSFORMER, plan, err);
}

static tsr_status plan_trtllm(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                              tsr_plan *plan, tsr_err *err)
{
    return plan_layout(from, a, in, TSR_LAYOUT_TRTLLM, plan, err);
}

/* Elsewhere files are as they were, or one for each rank. */
#define SHARDS     "--max-shard-size "
#define ANY        "--lossy --experts --exclude"
#define SCHEME     "--source-block --scales --dialect " ANY
#define QUANTIZING "--bits --group-size --divisor --rounding --scale-dtype --scales --include --exclude"

/* In the order of the words of --to. `options` are the options that a target takes besides the shared ones. */
static const struct target {
    const char *name, *options;
    tsr_status (*plan)(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in, tsr_plan *plan,
                       tsr_err *err);
} kTargets[] = {
    {"bf16", SHARDS "--dtype --source-block --experts", plan_bf16},
    {"fp8-block", SHARDS "--block --source-block --scale-fmt --scales --dialect --against " ANY, plan_fp8_block},
    {"tp", SHARDS "--tp", plan_tp},
    {"deepseek-mp", "--mp --keep-mtp", plan_deepseek_mp},
    {"mla-absorbed", SHARDS "--consumer --weights --fold --drop-kv-b", plan_mla},
    {"archive", "--level --shuffle", plan_archive},
    {"safetensors", "", plan_safetensors},
    {"fastertransformer", SHARDS "--arch --producer " QUANTIZING, plan_fastertransformer},
    {"trtllm", "--arch --producer " QUANTIZING, plan_trtllm},
    {"fp8-channel", SHARDS SCHEME, plan_named_scheme},
    {"int8-channel", SHARDS SCHEME, plan_named_scheme},
    {"int8-weight-only", SHARDS SCHEME " --group-size", plan_named_scheme},
    {"int4-weight-only", SHARDS SCHEME " --group-size --zero-points", plan_named_scheme},
    {"nvfp4", SHARDS SCHEME " --activations", plan_named_scheme},
    {"nvfp4-weight-only", SHARDS SCHEME, plan_named_scheme},
    {"mxfp4", SHARDS SCHEME " --mx-scale", plan_named_scheme},
    {"mxfp4-weight-only", SHARDS SCHEME " --mx-scale", plan_named_scheme},
    {"mxfp8", SHARDS SCHEME " --mx-scale", plan_named_scheme},
    {"mxfp8-weight-only", SHARDS SCHEME " --mx-scale", plan_named_scheme},
};

static tsr_status plan_named_scheme(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                    tsr_plan *plan, tsr_err *err)
{
    return plan_scheme(from, a, in, tsr_scheme_find(kTargets[a->to].name), NULL, plan, err);
}

/* ---- options ---- */

/* Whether only some targets take this option. */
static bool is_of_targets(const char *option)
{
    for (size_t i = 0; i < sizeof kTargets / sizeof *kTargets; i++) {
        if (tsr_is_listed(kTargets[i].options, option))
            return true;
    }
    return false;
}

/* Whether what is asked for takes an option of targets. */
static bool takes(const tsr_convert_job *a, const char *option)
{
    return a->to >= 0 ? tsr_is_listed(kTargets[a->to].options, option) : a->from >= 0 && tsr_is_listed(SHARDS, option);
}

static const char *argument_of(const tsr_option *options, const char *name)
{
    while (strcmp(options->name, name) != 0)
        options++;
    return options->argument;
}

tsr_status tsr_convert_job_check(tsr_convert_job *a, const tsr_option *options, uint64_t given, tsr_err *err)
{
    if (a->merge + (a->to >= 0) + (a->from >= 0) > 1)
        return tsr_fail(err, TSR_E_USAGE, "--merge and --from stand instead of --to");
    if (a->to < 0 && !a->merge && a->from < 0)
        return tsr_fail(err, TSR_E_USAGE, "convert to what? --to %s", argument_of(options, "--to"));
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((given >> i & 1) != 0 && is_of_targets(options[i].name) && !takes(a, options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s means nothing with %s%s", options[i].name,
                            a->merge       ? "--merge"
                            : a->from >= 0 ? "--from"
                                           : "--to ",
                            a->to < 0 ? "" : kTargets[a->to].name);
        if ((given >> i & 1) != 0 && a->quantizing == NULL && tsr_is_listed(QUANTIZING, options[i].name))
            a->quantizing = options[i].name;
    }
    if (a->config != NULL && a->from != FROM_DEEPSEEK_MP)
        return tsr_fail(err, TSR_E_USAGE, "--config means nothing without --from deepseek-mp");
    return TSR_OK;
}

tsr_convert_job tsr_convert_job_defaults(void)
{
    return (tsr_convert_job){.to = -1,
                             .scale_fmt = -1,
                             .dialect = -1,
                             .consumer = -1,
                             .level = 3,
                             .from = -1,
                             .arch = -1,
                             .divisor = -1,
                             .group_size = UINT64_MAX,
                             .mx_scale = -1,
                             .experts = -1};
}

void tsr_convert_job_options(tsr_convert_job *a, tsr_option *options)
{
    const tsr_option own[] = {
        {"--to", TSR_OPT_CHOICE, &a->to,
         "bf16|fp8-block|tp|deepseek-mp|mla-absorbed|archive|safetensors|fastertransformer|trtllm|fp8-channel|"
         "int8-channel|int8-weight-only|int4-weight-only|nvfp4|nvfp4-weight-only|mxfp4|mxfp4-weight-only|mxfp8|"
         "mxfp8-weight-only",
         "the target: see above"},
        {"--merge", TSR_OPT_FLAG, &a->merge, NULL,
         "instead of --to: join SRC/rank-0, rank-1, ... as --to tp left them"},
        {"--from", TSR_OPT_CHOICE, &a->from, "fastertransformer|trtllm|deepseek-mp",
         "instead of --to: a checkpoint again, of what --to left"},
        {"--config", TSR_OPT_TEXT, &a->config, "FILE",
         "the model's own config.json, where ranks of DeepSeek's convert.py have none (--from deepseek-mp)"},
        {"--dtype", TSR_OPT_CHOICE, &a->dtype, "bf16|f16|f32",
         "of what was FP8 (bf16); other tensors stay as they are"},
        {"--source-block", TSR_OPT_TEXT, &a->source_block, "RxC", "blocks of SRC, where its config.json states none"},
        {"--block", TSR_OPT_TEXT, &a->block, "RxC", "blocks to make (as in SRC)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->scale_fmt, TSR_SCALE_FMT_WORDS,
         "scales as they come, or rounded up to powers of two (as in SRC)"},
        {"--scales", TSR_OPT_CHOICE, &a->scales, TSR_SCALES_WORDS,
         "amax/448, or the scale of least squared error (amax)"},
        {"--dialect", TSR_OPT_CHOICE, &a->dialect, TSR_DIALECT_WORDS,
         "names of the scales and form of the configuration (fp8-block: as in SRC; others: compressed-tensors)"},
        {"--lossy", TSR_OPT_FLAG, &a->lossy, NULL,
         "schemes: round what has no code where codes are moved, and report it, instead of refusing it"},
        {"--experts", TSR_OPT_CHOICE, &a->experts, "split|stack",
         "schemes: stacks of experts as a tensor for each expert and projection, or as they are (what is codes: "
         "split); bf16: stack puts experts together as their family does"},
        {"--mx-scale", TSR_OPT_CHOICE, &a->mx_scale, TSR_MX_SCALE_WORDS,
         "mxfp, made anew: the power of two for a group (compressed-tensors even, others rceil)"},
        {"--zero-points", TSR_OPT_FLAG, &a->zero_points, NULL, "int4-weight-only: asymmetric weights"},
        {"--activations", TSR_OPT_TEXT, &a->activations, "FILE", "nvfp4: ranges of the layers' inputs"},
        {"--against", TSR_OPT_TEXT, &a->against, "ORIGINAL",
         "the unquantized checkpoint: the report compares with it as well"},
        {"--tp", TSR_OPT_COUNT, &a->tp, "N", "tensor-parallel ranks (tp)"},
        {"--mp", TSR_OPT_COUNT, &a->mp, "N", "ranks (deepseek-mp)"},
        {"--keep-mtp", TSR_OPT_FLAG, &a->keep_mtp, NULL, "keep the multi-token prediction layers (deepseek-mp)"},
        {"--consumer", TSR_OPT_CHOICE, &a->consumer, "sglang|vllm|trtllm|llamacpp",
         "whose names, shapes and memory order (mla-absorbed)"},
        {"--weights", TSR_OPT_CHOICE, &a->weights, "bf16|fp8-block|fp8-tensor|fp8-head",
         "of the parts: dequantized; codes kept; made anew with one scale, or one a head (bf16)"},
        {"--fold", TSR_OPT_FLAG, &a->fold, NULL, "fold the parts into q_b_proj and o_proj (mla-absorbed)"},
        {"--drop-kv-b", TSR_OPT_FLAG, &a->drop_kv_b, NULL, "leave kv_b_proj out (mla-absorbed)"},
        {"--level", TSR_OPT_COUNT, &a->level, "N", "of zstd, 1 to 19 (3): higher is smaller and slower"},
        {"--shuffle", TSR_OPT_FLAG, &a->shuffle, NULL, "the bytes of floating-point elements in planes"},
        {"--arch", TSR_OPT_CHOICE, &a->arch, "sm70|sm75|sm80|sm86|sm89|sm90",
         "whose layout (fastertransformer, trtllm)"},
        {"--producer", TSR_OPT_TEXT, &a->producer, "NAME",
         "ft, trtllm-0.5 to trtllm-0.10, trtllm-main, trtllm-py: layouts of one architecture differ by version"},
        {"--bits", TSR_OPT_CHOICE, &a->bits, "8|4", "quantizing: of a weight (8)"},
        {"--group-size", TSR_OPT_COUNT, &a->group_size, "N",
         "quantizing: input features that share a scale (0: all; int4-weight-only: 128)"},
        {"--divisor", TSR_OPT_CHOICE, &a->divisor, TSR_DIVISOR_WORDS,
         "quantizing: scales are amax over this (128, 8: as these readers' own quantizers have it)"},
        {"--rounding", TSR_OPT_CHOICE, &a->away, "away|even", "quantizing: where ties go (away)"},
        {"--scale-dtype", TSR_OPT_CHOICE, &a->scale_dtype, "bf16|f16",
         "quantizing: as stored (bf16); codes are made with FP32 scales, as these readers' own quantizers do"},
        {"--include", TSR_OPT_LIST, &a->include, "GLOB", "quantizing: these tensors too; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->exclude, "GLOB",
         "schemes: these weights become BF16; layouts, quantizing: these stay as they are; may be repeated"},
        {0},
    };
    tsr_options_append(options, own);
}

const char *tsr_convert_job_verb(const tsr_convert_job *a)
{
    return a->to >= 0 && kTargets[a->to].plan == plan_archive       ? "archiving"
           : a->to >= 0 && kTargets[a->to].plan == plan_safetensors ? "restoring"
                                                                    : "converting";
}

/* ---- the plan ---- */

static tsr_status open_inputs(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                              tsr_err *err)
{
    if (a->from == FROM_DEEPSEEK_MP)
        return tsr_open_rank_files(from, in, err);
    if (a->merge)
        return tsr_open_ranks(from, in, err);
    TSR_TRY(tsr_open_source(from, from->path, in, err));
    return a->against == NULL ? TSR_OK : tsr_open_source(from, a->against, in, err);
}

/* What was said, before anything that was left open is settled. */
static tsr_status note_words(tsr_convert_job *a, const tsr_job_source *from, tsr_plan_made_with *with, tsr_err *err)
{
    tsr_convert_job nothing = tsr_convert_job_defaults();
    tsr_job_source words = *from;
    if (!takes(a, "--max-shard-size"))
        words.max_shard_bytes = 0;
    tsr_option said[TSR_MAX_OPTIONS] = {{0}}, unsaid[TSR_MAX_OPTIONS] = {{0}};
    tsr_convert_job_options(a, said);
    tsr_convert_job_options(&nothing, unsaid);
    return tsr_made_with_note(with, "convert", &words, said, unsaid, &a->words, err);
}

static tsr_status make_plan(tsr_convert_job *a, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    tsr_convert_inputs *const in = &a->in;
    TSR_TRY(open_inputs(from, a, in, err));
    if (a->merge)
        return tsr_tp_merge_plan(plan, in->sources, in->n, err);
    if (a->from == FROM_DEEPSEEK_MP)
        return tsr_plan_rank_files(from, a->config, in, plan, err);
    if (a->from >= 0)
        return tsr_unlayout_plan(plan, in->sources, (tsr_layout_kind)a->from, from->max_shard_bytes, err);
    return kTargets[a->to].plan(from, a, in, plan, err);
}

tsr_status tsr_convert_job_plan(tsr_convert_job *a, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    tsr_plan_made_with with;
    TSR_TRY(note_words(a, from, &with, err));
    TSR_TRY(make_plan(a, from, plan, err));
    TSR_TRY(tsr_warn_of_ignored(plan, from, a->in.checkpoints, a->in.n, err));
    plan->made_with = with;
    return TSR_OK;
}

void tsr_convert_job_free(tsr_convert_job *a)
{
    tsr_close_inputs(&a->in);
    tsr_arena_free(&a->words);
    *a = tsr_convert_job_defaults();
}
