/* From arguments to the options of a scheme's plan. */
#include "convert/plans/named_scheme.h"

#include <string.h>

static const char *const kNames[] = {
    [TSR_FP8_BLOCK] = "fp8-block",
    [TSR_FP8_CHANNEL] = "fp8-channel",
    [TSR_INT8_CHANNEL] = "int8-channel",
    [TSR_INT8_WEIGHT_ONLY] = "int8-weight-only",
    [TSR_INT4_WEIGHT_ONLY] = "int4-weight-only",
    [TSR_MX_SCHEME(TSR_MX_NVFP4)] = "nvfp4",
    [TSR_MX_SCHEME(TSR_MX_NVFP4_WEIGHT_ONLY)] = "nvfp4-weight-only",
    [TSR_MX_SCHEME(TSR_MX_MXFP4)] = "mxfp4",
    [TSR_MX_SCHEME(TSR_MX_MXFP4_WEIGHT_ONLY)] = "mxfp4-weight-only",
    [TSR_MX_SCHEME(TSR_MX_MXFP8)] = "mxfp8",
    [TSR_MX_SCHEME(TSR_MX_MXFP8_WEIGHT_ONLY)] = "mxfp8-weight-only",
};

const char *tsr_scheme_word(tsr_named_scheme scheme)
{
    return kNames[scheme];
}

tsr_named_scheme tsr_scheme_find(const char *name)
{
    unsigned i = 0;
    while (i < TSR_ALL_SCHEMES && strcmp(kNames[i], name) != 0)
        i++;
    return (tsr_named_scheme)i;
}

tsr_scheme_arguments tsr_scheme_defaults(void)
{
    return (tsr_scheme_arguments){.block = "128x128",
                                  .dialect = -1,
                                  .mx_scale = -1,
                                  .scale_dtype = -1,
                                  .divisor = -1,
                                  .group_size = UINT64_MAX,
                                  .max_shard_bytes = TSR_MAX_SHARD_BYTES};
}

tsr_status tsr_read_divisor(int choice, bool int4, const char *what, float *divisor, tsr_err *err)
{
    /* In the order of --divisor's words. */
    static const float kDivisors[] = {127, 127.5f, 128, 7, 7.5f, 8};
    if (choice >= 0)
        *divisor = kDivisors[choice];
    if ((*divisor < 64) != int4)
        return tsr_fail(err, TSR_E_USAGE, "--divisor %g is not for %s", (double)*divisor, what);
    return TSR_OK;
}

tsr_status tsr_read_group_size(uint64_t given, uint64_t *group, tsr_err *err)
{
    if (given == UINT64_MAX)
        return TSR_OK;
    if (given != 0 && given != 32 && given != 64 && given != 128)
        return tsr_fail(err, TSR_E_USAGE, "--group-size: 0, 32, 64 or 128: what kernels take");
    *group = given;
    return TSR_OK;
}

tsr_status tsr_check_block_dialect(int dialect, tsr_err *err)
{
    if (dialect == TSR_MX_DIALECT_MODELOPT || dialect == TSR_MX_DIALECT_GPT_OSS)
        return tsr_fail(err, TSR_E_USAGE, "--dialect %s is not for fp8-block: deepseek or compressed-tensors",
                        tsr_mx_dialect_name((tsr_mx_dialect)dialect));
    return TSR_OK;
}

static tsr_policy_options policy_of(const tsr_scheme_arguments *a)
{
    return (tsr_policy_options){.include = a->include.items,
                                .n_include = a->include.count,
                                .exclude = a->exclude.items,
                                .n_exclude = a->exclude.count};
}

static tsr_status int_options(const tsr_scheme_arguments *a, tsr_ct_options *options, tsr_err *err)
{
    static const tsr_dtype kDtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    const bool weight_only = a->scheme >= TSR_INT8_WEIGHT_ONLY, int4 = a->scheme == TSR_INT4_WEIGHT_ONLY;
    if (a->dialect >= 0 && a->dialect != TSR_MX_DIALECT_COMPRESSED_TENSORS)
        return tsr_fail(err, TSR_E_USAGE,
                        "--dialect %s: no loader reads %s in it; what is read: --dialect compressed-tensors",
                        tsr_mx_dialect_name((tsr_mx_dialect)a->dialect), kNames[a->scheme]);
    float divisor = int4 ? 7.5f : 127.5f;
    uint64_t group = int4 ? 128 : 0;
    TSR_TRY(tsr_read_divisor(a->divisor, int4, kNames[a->scheme], &divisor, err));
    TSR_TRY(tsr_read_group_size(a->group_size, &group, err));
    if (a->scheme == TSR_FP8_CHANNEL && a->scale_dtype >= 0 && kDtypes[a->scale_dtype] == TSR_F16)
        return tsr_fail(err, TSR_E_USAGE, "--scale-dtype f16 is not for fp8-channel: f32 or bf16");
    *options = (tsr_ct_options){
        .scheme = {.bits = int4 ? 4 : 8,
                   .group = group,
                   .asymmetric = a->zero_points,
                   .divisor = divisor,
                   .away = a->away == 1,
                   .scale_dtype = a->scale_dtype >= 0 ? kDtypes[a->scale_dtype]
                                  : weight_only       ? TSR_BF16
                                                      : TSR_F32,
                   .search = a->scales == 1},
        .form = weight_only                    ? TSR_CT_PACKED
                : a->scheme == TSR_FP8_CHANNEL ? TSR_CT_FP8
                                               : TSR_CT_W8A8,
        .asymmetric_activations = a->activation_zero_points,
        .policy = policy_of(a),
        .max_shard_bytes = a->max_shard_bytes,
    };
    return TSR_OK;
}

static tsr_status block_options(const tsr_scheme_arguments *a, tsr_quantize_options *options, tsr_err *err)
{
    tsr_block block;
    TSR_TRY(tsr_check_block_dialect(a->dialect, err));
    TSR_TRY(tsr_parse_block("--block", a->block, &block, err));
    *options = (tsr_quantize_options){
        .block = {.block_rows = (uint32_t)block.rows,
                  .block_cols = (uint32_t)block.cols,
                  .scale_fmt = (tsr_scale_fmt)a->scale_fmt,
                  .search = a->scales == 1},
        .dialect =
            a->dialect == TSR_MX_DIALECT_COMPRESSED_TENSORS ? TSR_DIALECT_COMPRESSED_TENSORS : TSR_DIALECT_DEEPSEEK,
        .policy = policy_of(a),
        .max_shard_bytes = a->max_shard_bytes,
    };
    return TSR_OK;
}

static tsr_status mx_options(const tsr_scheme_arguments *a, bool ranges, tsr_mx_options *options, tsr_err *err)
{
    /* In the order of --mx-scale's words. */
    static const tsr_mx_rule kRules[] = {TSR_MX_FLOOR, TSR_MX_EVEN, TSR_MX_RCEIL, TSR_MX_CEIL};
    *options = (tsr_mx_options){
        .target = (tsr_mx_target)(a->scheme - TSR_MX_SCHEMES),
        .dialect = a->dialect < 0 ? TSR_MX_DIALECT_COMPRESSED_TENSORS : (tsr_mx_dialect)a->dialect,
        .rule = a->mx_scale < 0 ? NULL : &kRules[a->mx_scale],
        .search = a->scales == 1,
        .policy = policy_of(a),
        .max_shard_bytes = a->max_shard_bytes,
    };
    if (ranges && tsr_mx_needs_ranges(options->target) && a->activations == NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--scheme nvfp4 quantizes activations, too, and needs their ranges: --activations FILE "
                        "(tools/capture_activations.py makes one); --scheme nvfp4-weight-only does without");
    return tsr_mx_check_dialect(options->target, options->dialect, err);
}

tsr_status tsr_scheme_read(const tsr_scheme_arguments *a, bool ranges, tsr_scheme_options *o, tsr_err *err)
{
    *o = (tsr_scheme_options){.calibration = {0}};
    TSR_TRY(a->scheme == TSR_FP8_BLOCK    ? block_options(a, &o->blocks, err)
            : a->scheme >= TSR_MX_SCHEMES ? mx_options(a, ranges, &o->groups, err)
                                          : int_options(a, &o->rows, err));
    if (a->activations == NULL)
        return TSR_OK;
    TSR_TRY(tsr_calibration_read(&o->calibration, a->activations, err));
    o->rows.calibration = o->groups.calibration = &o->calibration;
    return TSR_OK;
}

void tsr_scheme_settle(const tsr_scheme_arguments *a, const tsr_checkpoint *source, bool split, tsr_scheme_options *o)
{
    if (a->dialect < 0 && a->scheme >= TSR_MX_SCHEMES && !split)
        o->groups.dialect = tsr_mx_default_dialect(o->groups.target, source);
}

bool tsr_scheme_stacks(const tsr_scheme_arguments *a, const tsr_scheme_options *o)
{
    return a->scheme >= TSR_MX_SCHEMES && o->groups.dialect == TSR_MX_DIALECT_GPT_OSS;
}

tsr_status tsr_scheme_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_scheme_arguments *a,
                           const tsr_scheme_options *o, tsr_err *err)
{
    return a->scheme == TSR_FP8_BLOCK    ? tsr_quantize_plan(plan, source, &o->blocks, err)
           : a->scheme >= TSR_MX_SCHEMES ? tsr_mx_plan(plan, source, &o->groups, err)
                                         : tsr_ct_plan(plan, source, &o->rows, err);
}

void tsr_scheme_free(tsr_scheme_options *options)
{
    tsr_calibration_free(&options->calibration);
}

double tsr_scheme_low_sqnr(tsr_named_scheme scheme)
{
    /* What healthy weights reach: block FP8 31.5 +- 0.2 dB whatever the distribution, int8 35 to 42, int4 15 to 19,
     * MXFP8 30 to 32, NVFP4 20 to 21, MXFP4 17 to 19. */
    static const double kLowSqnr[TSR_ALL_SCHEMES] = {
        [TSR_FP8_BLOCK] = 30,
        [TSR_FP8_CHANNEL] = 30,
        [TSR_INT8_CHANNEL] = 30,
        [TSR_INT8_WEIGHT_ONLY] = 30,
        [TSR_INT4_WEIGHT_ONLY] = 12,
        [TSR_MX_SCHEME(TSR_MX_NVFP4)] = 17,
        [TSR_MX_SCHEME(TSR_MX_NVFP4_WEIGHT_ONLY)] = 17,
        [TSR_MX_SCHEME(TSR_MX_MXFP4)] = 15,
        [TSR_MX_SCHEME(TSR_MX_MXFP4_WEIGHT_ONLY)] = 15,
        [TSR_MX_SCHEME(TSR_MX_MXFP8)] = 28,
        [TSR_MX_SCHEME(TSR_MX_MXFP8_WEIGHT_ONLY)] = 28,
    };
    return kLowSqnr[scheme];
}
