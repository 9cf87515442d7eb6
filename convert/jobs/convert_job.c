/* Reads and checks the options of `convert`, and makes the plan of its target. */
#include "convert/jobs/convert_job.h"
#include "convert/jobs/model_card.h"
#include "convert/jobs/provenance.h"

#include "convert/plans/cast_plan.h"
#include "convert/plans/layouts/archive_plan.h"
#include "convert/plans/layouts/gpt_oss_plan.h"
#include "convert/plans/layouts/layout_plan.h"
#include "convert/plans/ranks/deepseek_mp_plan.h"
#include "convert/plans/ranks/mla_plan.h"
#include "convert/plans/ranks/tp_plan.h"
#include "convert/plans/requantize_plan.h"
#include "convert/plans/transcode_plan.h"

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
        return tsr_fail(
            err, TSR_E_USAGE,
            "--experts split needs a scheme as the target; --to bf16 keeps stacks, and with --experts stack makes "
            "them");
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.block, err));
    return tsr_cast_plan(plan, in->sources, &options, err);
}

/* Plans gpt-oss' own layout for MXFP4 experts. */
static tsr_status plan_gpt_oss(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                               tsr_plan *plan, tsr_err *err)
{
    tsr_gpt_oss_options options = {.max_shard_bytes = from->max_shard_bytes};
    if (a->lossy || a->scales > TSR_SCALES_AMAX || a->mx_scale >= 0 || a->experts == 0 || a->exclude.count > 0)
        return tsr_fail(err, TSR_E_USAGE,
                        "--dialect gpt-oss keeps the codes of all experts in stacks; it cannot be combined with "
                        "--lossy, --scales, --mx-scale, --exclude or --experts split");
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.source_block, err));
    return tsr_gpt_oss_plan(plan, in->sources, &options, err);
}

/* Plans a scheme from any codes. `paired` are the source's weights, which are taken over; NULL: not paired yet. */
static tsr_status plan_scheme(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                              tsr_scheme scheme, tsr_weights *paired, tsr_plan *plan, tsr_err *err)
{
    tsr_scheme_arguments of = tsr_scheme_defaults();
    of.scheme = scheme;
    of.dialect = a->dialect;
    of.scales = a->scales;
    of.mx_scale = a->mx_scale;
    of.group_size = a->group_size;
    of.zero_points = a->zero_points;
    of.activations = a->activations;
    of.input_scale = a->input_scale;
    of.importance = a->importance;
    of.block = a->block == NULL ? of.block : a->block;
    of.max_shard_bytes = from->max_shard_bytes;
    of.scale_fmt = a->scale_fmt < 0 ? 0 : a->scale_fmt;
    TSR_TRY(tsr_scheme_read(&of, false, &in->scheme, err));
    tsr_scheme_settle(&of, in->sources[0], a->experts == 0, &in->scheme);
    if (tsr_scheme_stacks(&of, &in->scheme))
        return plan_gpt_oss(from, a, in, plan, err);
    const tsr_scheme_form form = tsr_scheme_form_in(scheme, a->dialect);
    const bool experts = form == TSR_FORM_EXPERTS;
    if (experts && a->exclude.count > 0)
        return tsr_fail(err, TSR_E_USAGE,
                        "--exclude cannot be combined with --dialect sglang, whose loader reads no list of "
                        "unquantized layers");
    tsr_transcode_options options = {
        .blocks = form == TSR_FORM_BLOCKS ? &in->scheme.blocks : NULL,
        .rows = form != TSR_FORM_BLOCKS && !experts && !tsr_scheme_is_of_mx_plan(scheme) ? &in->scheme.rows : NULL,
        .experts = experts ? &in->scheme.experts : NULL,
        .groups = tsr_scheme_is_of_mx_plan(scheme) ? &in->scheme.groups : NULL,
        .exclude = a->exclude.items,
        .n_exclude = a->exclude.count,
        .lossy = a->lossy,
        .split = a->experts < 0    ? TSR_SPLIT_CODES
                 : a->experts == 0 ? TSR_SPLIT_ALL
                                   : TSR_SPLIT_NONE,
        .anew = in->scheme.search != TSR_SCALES_AMAX,
        .group_as_source = a->group_size == UINT64_MAX && !tsr_scheme_row_of(scheme)->inputs,
        .paired = paired,
    };
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.source_block, err));
    return tsr_transcode_plan(plan, &in->view, in->sources[0], &options, err);
}

/* Returns true if all codes are FP8. Requantizing FP8 has options of its own. */
static bool is_fp8_only(const tsr_weights *weights)
{
    bool only = true;
    for (size_t i = 0; i < weights->count; i++)
        only = only && (weights->items[i].kind == NULL || weights->items[i].kind->family == TSR_FAMILY_FP8);
    return only;
}

/* Plans FP8 to FP8 where some weights become BF16, through the general plan. Unset options follow the source. */
static tsr_status plan_some_blocks(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                   tsr_requantize_options *options, tsr_weights *weights, tsr_plan *plan, tsr_err *err)
{
    char block[64];
    TSR_TRY(tsr_requantize_settle(options, in->sources[0], weights, err));
    snprintf(block, sizeof block, "%llux%llu", U64(options->block.rows), U64(options->block.cols));
    tsr_convert_job settled = *a;
    settled.block = block;
    settled.scale_fmt = options->scale_fmt;
    settled.dialect =
        options->dialect == TSR_DIALECT_COMPRESSED_TENSORS ? TSR_DIALECT_COMPRESSED_TENSORS : TSR_DIALECT_DEEPSEEK;
    settled.experts = 1;
    return plan_scheme(from, &settled, in, TSR_SCHEME_FP8_BLOCK, weights, plan, err);
}

static tsr_status plan_fp8_block(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                 tsr_plan *plan, tsr_err *err)
{
    tsr_requantize_options options = {.scale_fmt = a->scale_fmt,
                                      .dialect = a->dialect,
                                      .search = a->scales < 0 ? TSR_SCALES_AMAX : (tsr_scale_search)a->scales,
                                      .max_shard_bytes = from->max_shard_bytes};
    tsr_weights weights;
    tsr_status status;
    if (a->dialect >= 0)
        TSR_TRY(tsr_scheme_check_dialect(TSR_SCHEME_FP8_BLOCK, (tsr_dialect)a->dialect, err));
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &options.source_block, err));
    TSR_TRY(tsr_parse_block("--block", a->block, &options.block, err));
    TSR_TRY(tsr_weights_pair(&weights, in->sources[0], options.source_block, err));
    const bool requantizes = is_fp8_only(&weights) && a->experts != 0;
    if (requantizes && a->exclude.count == 0)
        status = tsr_requantize_plan(plan, in->sources, in->n, &weights, &options, err);
    else if (in->n > 1)
        status = tsr_fail(err, TSR_E_USAGE,
                          "--against needs a source with FP8 codes only, kept stacked, without --exclude; 'tessera "
                          "verify DST --against ORIGINAL' compares any output");
    else if (requantizes)
        status = plan_some_blocks(from, a, in, &options, &weights, plan, err);
    else
        status = plan_scheme(from, a, in, TSR_SCHEME_FP8_BLOCK, &weights, plan, err);
    tsr_weights_free(&weights);
    return status;
}

static tsr_status plan_tp(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in, tsr_plan *plan,
                          tsr_err *err)
{
    if (a->tp == 0)
        return tsr_fail(err, TSR_E_USAGE, "the number of ranks is missing: --tp N");
    const tsr_tp_options options = {.ranks = (uint32_t)(a->tp > UINT32_MAX ? UINT32_MAX : a->tp),
                                    .max_shard_bytes = from->max_shard_bytes};
    return tsr_tp_plan(plan, in->sources, &options, err);
}

static tsr_status plan_deepseek_mp(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in,
                                   tsr_plan *plan, tsr_err *err)
{
    (void)from;
    if (a->mp == 0)
        return tsr_fail(err, TSR_E_USAGE, "the number of ranks is missing: --mp N");
    const tsr_deepseek_mp_options options = {.ranks = (uint32_t)(a->mp > UINT32_MAX ? UINT32_MAX : a->mp),
                                             .keep_mtp = a->keep_mtp};
    return tsr_deepseek_mp_plan(plan, in->sources, &options, err);
}

static tsr_status plan_mla(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in, tsr_plan *plan,
                           tsr_err *err)
{
    if (a->consumer < 0)
        return tsr_fail(err, TSR_E_USAGE, "the consumer is missing: --consumer sglang|vllm|trtllm|llamacpp");
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
        return tsr_fail(err, TSR_E_USAGE, "the architecture is missing: --arch sm70|sm75|sm80|sm86|sm89|sm90");
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
                   .search = a->scales < 0 ? TSR_SCALES_AMAX : (tsr_scale_search)a->scales},
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

/* Other targets keep the source's files or write one per rank. */
#define SHARDS     "--max-shard-size "
#define SCHEME_ALL SHARDS "--source-block --scales --dialect --lossy --experts --exclude --no-card"
#define QUANTIZING "--bits --group-size --divisor --rounding --scale-dtype --scales --include --exclude"

/* A target that is not a scheme. `options` lists those that it accepts besides the common ones. */
typedef struct target {
    const char *name, *options;
    tsr_status (*plan)(const tsr_job_source *from, const tsr_convert_job *a, tsr_convert_inputs *in, tsr_plan *plan,
                       tsr_err *err);
} target;

/* The targets in the order of the words of --to (convert_options.c), in which the schemes follow them. */
static const target kTargets[] = {
    {"bf16", SHARDS "--dtype --source-block --experts --no-card", plan_bf16},
    {"tp", SHARDS "--tp", plan_tp},
    {"deepseek-mp", "--mp --keep-mtp", plan_deepseek_mp},
    {"mla-absorbed", SHARDS "--consumer --weights --fold --drop-kv-b", plan_mla},
    {"archive", "--level --shuffle", plan_archive},
    {"safetensors", "", plan_safetensors},
    {"fastertransformer", SHARDS "--arch --producer " QUANTIZING, plan_fastertransformer},
    {"trtllm", "--arch --producer " QUANTIZING, plan_trtllm},
};
enum { OTHERS = sizeof kTargets / sizeof *kTargets };

/* Returns the target of --to if it is not a scheme, else NULL. */
static const target *other_target(const tsr_convert_job *a)
{
    return a->to >= 0 && a->to < OTHERS ? &kTargets[a->to] : NULL;
}

/* Returns the scheme of --to, which is a scheme. */
static tsr_scheme scheme_of(const tsr_convert_job *a)
{
    return tsr_scheme_named((size_t)a->to - OTHERS);
}

static const char *name_of(const tsr_convert_job *a)
{
    return a->to < OTHERS ? kTargets[a->to].name : tsr_scheme_row_of(scheme_of(a))->name;
}

static bool scheme_takes(tsr_scheme scheme, const char *option)
{
    const char *const own = tsr_scheme_row_of(scheme)->convert_options;
    return tsr_is_listed(SCHEME_ALL, option) || (own != NULL && tsr_is_listed(own, option));
}

/* ---- options ---- */
/* Returns true if only some targets accept this option. */
static bool is_of_targets(const char *option)
{
    for (size_t i = 0; i < OTHERS; i++) {
        if (tsr_is_listed(kTargets[i].options, option))
            return true;
    }
    for (tsr_scheme i = TSR_SCHEME_KEEP + 1; i < TSR_SCHEMES; i++) {
        if (scheme_takes(i, option))
            return true;
    }
    return false;
}

/* Returns true if the target accepts an option that only some targets accept. */
static bool takes(const tsr_convert_job *a, const char *option)
{
    if (a->to < 0)
        return a->from >= 0 && tsr_is_listed(SHARDS, option);
    return a->to < OTHERS ? tsr_is_listed(kTargets[a->to].options, option) : scheme_takes(scheme_of(a), option);
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
        return tsr_fail(err, TSR_E_USAGE, "--merge and --from cannot be combined with --to");
    if (a->to < 0 && !a->merge && a->from < 0)
        return tsr_fail(err, TSR_E_USAGE, "the target is missing: --to %s", argument_of(options, "--to"));
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((given >> i & 1) != 0 && is_of_targets(options[i].name) && !takes(a, options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s cannot be combined with %s%s", options[i].name,
                            a->merge       ? "--merge"
                            : a->from >= 0 ? "--from"
                                           : "--to ",
                            a->to < 0 ? "" : name_of(a));
        if ((given >> i & 1) != 0 && a->quantizing == NULL && tsr_is_listed(QUANTIZING, options[i].name))
            a->quantizing = options[i].name;
    }
    if (a->config != NULL && a->from != FROM_DEEPSEEK_MP)
        return tsr_fail(err, TSR_E_USAGE, "--config needs --from deepseek-mp");
    return TSR_OK;
}

tsr_convert_job tsr_convert_job_defaults(void)
{
    return (tsr_convert_job){.to = -1,
                             .scale_fmt = -1,
                             .scales = -1,
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

const char *tsr_convert_job_verb(const tsr_convert_job *a)
{
    const target *const other = other_target(a);
    return other != NULL && other->plan == plan_archive       ? "archiving"
           : other != NULL && other->plan == plan_safetensors ? "restoring"
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

/* Records the options as given, before defaults are settled. */
static tsr_status note_words(tsr_convert_job *a, const tsr_job_source *from, tsr_plan_provenance *with, tsr_err *err)
{
    tsr_convert_job nothing = tsr_convert_job_defaults();
    tsr_job_source words = *from;
    if (!takes(a, "--max-shard-size"))
        words.max_shard_bytes = 0;
    tsr_option given[TSR_MAX_OPTIONS] = {{0}}, defaults[TSR_MAX_OPTIONS] = {{0}};
    tsr_convert_job_options(a, given);
    tsr_convert_job_options(&nothing, defaults);
    return tsr_provenance_note(with, "convert", &words, given, defaults, &a->words, err);
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
    if (other_target(a) != NULL)
        return other_target(a)->plan(from, a, in, plan, err);
    return scheme_of(a) == TSR_SCHEME_FP8_BLOCK ? plan_fp8_block(from, a, in, plan, err)
                                                : plan_scheme(from, a, in, scheme_of(a), NULL, plan, err);
}

tsr_status tsr_convert_job_plan(tsr_convert_job *a, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    tsr_plan_provenance with;
    TSR_TRY(note_words(a, from, &with, err));
    TSR_TRY(make_plan(a, from, plan, err));
    TSR_TRY(tsr_warn_of_ignored(plan, from, a->in.checkpoints, a->in.n, err));
    plan->provenance = with;
    const char *const scheme = a->to < OTHERS ? NULL : tsr_scheme_name(scheme_of(a));
    const bool has_card =
        scheme != NULL || (other_target(a) != NULL && tsr_is_listed(other_target(a)->options, "--no-card"));
    if (has_card && !a->no_card)
        TSR_TRY(
            tsr_plan_model_card(plan, scheme, a->dialect < 0 ? NULL : tsr_dialect_name((tsr_dialect)a->dialect), err));
    if (a->in.scheme.search == TSR_SCALES_BEST || a->scales == TSR_SCALES_BEST)
        plan->made.scales = "optimal";
    return TSR_OK;
}

void tsr_convert_job_free(tsr_convert_job *a)
{
    tsr_close_inputs(&a->in);
    tsr_arena_free(&a->words);
    *a = tsr_convert_job_defaults();
}
