/* Reads the options that describe a scheme, and makes its plan. */
#include "convert/jobs/scheme_options.h"

#include <math.h>

tsr_scheme_arguments tsr_scheme_defaults(void)
{
    return (tsr_scheme_arguments){.scheme = TSR_SCHEME_FP8_BLOCK,
                                  .block = "128x128",
                                  .dialect = -1,
                                  .mx_scale = -1,
                                  .scale_dtype = -1,
                                  .divisor = -1,
                                  .scales = -1,
                                  .group_size = UINT64_MAX,
                                  .max_shard_bytes = TSR_MAX_SHARD_BYTES};
}

tsr_status tsr_read_divisor(int choice, bool int4, const char *what, float *divisor, tsr_err *err)
{
    /* In the order of the words of --divisor. */
    static const float kDivisors[] = {127, 127.5f, 128, 7, 7.5f, 8};
    if (choice >= 0)
        *divisor = kDivisors[choice];
    if ((*divisor < 64) != int4)
        return tsr_fail(err, TSR_E_USAGE, "--divisor %g cannot be used with %s", (double)*divisor, what);
    return TSR_OK;
}

tsr_status tsr_read_group_size(uint64_t given, uint64_t *group, tsr_err *err)
{
    if (given == UINT64_MAX)
        return TSR_OK;
    if (given != 0 && given != 32 && given != 64 && given != 128)
        return tsr_fail(err, TSR_E_USAGE, "--group-size: must be 0, 32, 64 or 128, which kernels support");
    *group = given;
    return TSR_OK;
}

tsr_scale_search tsr_scheme_chosen_search(const tsr_scheme_arguments *a, tsr_scheme scheme, tsr_dtype stored)
{
    if (a->scales >= 0)
        return (tsr_scale_search)a->scales;
    const bool best = a->importance != NULL && tsr_scheme_check_scales(scheme, TSR_SCALES_BEST, stored, NULL) == TSR_OK;
    return best ? TSR_SCALES_BEST : TSR_SCALES_AMAX;
}

tsr_status tsr_read_importance(const tsr_scheme_arguments *a, tsr_importance *importance, tsr_err *err)
{
    const bool gptq = a->method == 1;
    if (gptq && a->importance == NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--method gptq needs --importance FILE, written by tessera calibrate --hessians");
    if (a->importance == NULL)
        return TSR_OK;
    if (a->scales == TSR_SCALES_MSE)
        return tsr_fail(err, TSR_E_USAGE,
                        "--scales mse cannot be combined with --importance, which it ignores; use --scales best");
    TSR_TRY(tsr_importance_read(importance, a->importance, err));
    importance->gptq = gptq;
    if (gptq && importance->n_products == 0)
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: --method gptq needs INPUT." TSR_PRODUCTS_MEMBER ", which the file does not have; tessera "
                        "calibrate --hessians writes them",
                        a->importance);
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
    const tsr_scheme_row *const row = tsr_scheme_row_of(a->scheme);
    tsr_int_scheme ints = row->ints;
    TSR_TRY(tsr_read_divisor(a->divisor, ints.bits == 4, row->name, &ints.divisor, err));
    TSR_TRY(tsr_read_group_size(a->group_size, &ints.group, err));
    if (a->scale_dtype >= 0)
        ints.scale_dtype = kDtypes[a->scale_dtype];
    if (row->form == TSR_FORM_FP8_ROWS && ints.scale_dtype == TSR_F16)
        return tsr_fail(err, TSR_E_USAGE, "--scale-dtype f16 cannot be used with fp8-channel; use f32 or bf16");
    ints.search = tsr_scheme_chosen_search(a, a->scheme, ints.scale_dtype);
    TSR_TRY(tsr_scheme_check_scales(a->scheme, ints.search, ints.scale_dtype, err));
    ints.asymmetric = a->zero_points;
    ints.away = a->away == 1;
    *options = (tsr_ct_options){
        .id = a->scheme,
        .scheme = ints,
        .asymmetric_activations = a->activation_zero_points,
        .policy = policy_of(a),
        .max_shard_bytes = a->max_shard_bytes,
    };
    return TSR_OK;
}

static tsr_status block_options(const tsr_scheme_arguments *a, tsr_quantize_options *options, tsr_err *err)
{
    tsr_block block;
    TSR_TRY(tsr_parse_block("--block", a->block, &block, err));
    const tsr_dtype stored = a->scale_fmt == TSR_SCALE_UE8M0 ? TSR_F8_E8M0 : TSR_F32;
    const tsr_scale_search search = tsr_scheme_chosen_search(a, a->scheme, stored);
    TSR_TRY(tsr_scheme_check_scales(a->scheme, search, stored, err));
    *options = (tsr_quantize_options){
        .block = {.block_rows = (uint32_t)block.rows,
                  .block_cols = (uint32_t)block.cols,
                  .scale_fmt = (tsr_scale_fmt)a->scale_fmt,
                  .search = search},
        .dialect = a->dialect < 0 ? TSR_DIALECT_DEEPSEEK : (tsr_dialect)a->dialect,
        .policy = policy_of(a),
        .max_shard_bytes = a->max_shard_bytes,
    };
    return TSR_OK;
}

/* Reads a scale that FP32 can hold, and its reciprocal too. */
static tsr_status read_scale(const char *option, const char *text, float *scale, tsr_err *err)
{
    double value = 0;
    TSR_TRY(tsr_parse_number(option, text, TSR_ANY_NUMBER, &value, err));
    *scale = (float)value;
    if (!(*scale > 0) || !isfinite(*scale) || !isfinite(1 / *scale))
        return tsr_fail(err, TSR_E_USAGE, "%s %s: must be a positive number that FP32 can hold", option, text);
    return TSR_OK;
}

tsr_status tsr_read_input_scale(const tsr_scheme_arguments *a, float *scale, tsr_err *err)
{
    *scale = 0;
    if (a->input_scale == NULL)
        return TSR_OK;
    if (a->activations != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--input-scale cannot be combined with --activations, which has the ranges");
    return read_scale("--input-scale", a->input_scale, scale, err);
}

tsr_status tsr_read_kv_origin(const tsr_scheme_arguments *a, tsr_calibration *ranges, tsr_kv_origin *origin,
                              tsr_err *err)
{
    *origin = (tsr_kv_origin){0};
    if (a->kv_scale != NULL && a->kv_ranges != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--kv-scale cannot be combined with --kv-ranges, which has the ranges");
    if (a->kv_scale != NULL)
        return read_scale("--kv-scale", a->kv_scale, &origin->scale, err);
    if (a->kv_ranges == NULL)
        return TSR_OK;
    origin->ranges = ranges;
    return tsr_calibration_read(ranges, a->kv_ranges, err);
}

static tsr_status mx_options(const tsr_scheme_arguments *a, bool ranges, tsr_mx_options *options, tsr_err *err)
{
    /* In the order of the words of --mx-scale. */
    static const tsr_mx_rule kRules[] = {TSR_MX_FLOOR, TSR_MX_EVEN, TSR_MX_RCEIL, TSR_MX_CEIL};
    *options = (tsr_mx_options){
        .scheme = a->scheme,
        .dialect = a->dialect < 0 ? TSR_DIALECT_COMPRESSED_TENSORS : (tsr_dialect)a->dialect,
        .rule = a->mx_scale < 0 ? NULL : &kRules[a->mx_scale],
        .search = tsr_scheme_chosen_search(a, a->scheme, TSR_F32),
        .policy = policy_of(a),
        .max_shard_bytes = a->max_shard_bytes,
    };
    const bool fp8 = tsr_scheme_row_of(a->scheme)->form == TSR_FORM_FP8_TENSOR;
    TSR_TRY(tsr_scheme_check_scales(a->scheme, options->search, TSR_F32, err));
    TSR_TRY(tsr_read_input_scale(a, &options->input_scale, err));
    if (options->input_scale != 0 || a->activations != NULL)
        return TSR_OK;
    if (fp8 && options->dialect == TSR_DIALECT_MODELOPT)
        return tsr_fail_as(err, TSR_ERROR_ACTIVATION_RANGES, TSR_E_USAGE,
                           "fp8-tensor of dialect modelopt stores a scale of each input: give --activations FILE "
                           "(tessera calibrate makes it) or --input-scale X, or use --dialect compressed-tensors");
    if (ranges && tsr_mx_needs_ranges(options->scheme))
        return tsr_fail_as(err, TSR_ERROR_ACTIVATION_RANGES, TSR_E_USAGE,
                           "--scheme nvfp4 also quantizes activations and needs their ranges: give --activations FILE "
                           "(tessera calibrate makes it) or --input-scale X, or use --scheme nvfp4-weight-only");
    return TSR_OK;
}

/* Reads the options of w4afp8 in SGLang's dialect. SGLang rounds the scales of experts to BF16 when it loads them. */
static tsr_status expert_options(const tsr_scheme_arguments *a, tsr_w4afp8_options *options, tsr_err *err)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(a->scheme);
    tsr_ct_options rows;
    float input_scale;
    TSR_TRY(int_options(a, &rows, err));
    TSR_TRY(tsr_read_input_scale(a, &input_scale, err));
    if (rows.scheme.scale_dtype != TSR_BF16)
        return tsr_fail(
            err, TSR_E_USAGE,
            "--scale-dtype cannot be combined with --dialect sglang: SGLang rounds the scales of experts to "
            "BF16 when it loads them");
    if (input_scale == 0 && a->activations == NULL)
        return tsr_fail_as(err, TSR_ERROR_ACTIVATION_RANGES, TSR_E_USAGE,
                           "w4afp8 of dialect sglang stores a scale of each expert's input: give --activations FILE "
                           "(tessera calibrate makes it) or --input-scale X, or use --dialect compressed-tensors");
    *options = (tsr_w4afp8_options){
        .experts = rows.scheme,
        .block = {.block_rows = row->fp8.block_rows,
                  .block_cols = row->fp8.block_cols,
                  .search = rows.scheme.search == TSR_SCALES_MSE ? TSR_SCALES_MSE : TSR_SCALES_AMAX},
        .input_scale = input_scale,
        .policy = policy_of(a),
        .max_shard_bytes = a->max_shard_bytes,
    };
    return TSR_OK;
}

/* Rejects static scales of inputs for int4 of compressed-tensors, whose inputs have a scale per token. */
static tsr_status check_inputs(const tsr_scheme_arguments *a, tsr_scheme_form form, tsr_err *err)
{
    if (form != TSR_FORM_PACKED || (a->activations == NULL && a->input_scale == NULL))
        return TSR_OK;
    return tsr_fail(
        err, TSR_E_USAGE,
        "%s needs --dialect sglang with %s; in other dialects each token has a scale, computed while serving",
        a->activations != NULL ? "--activations" : "--input-scale", tsr_scheme_row_of(a->scheme)->name);
}

tsr_status tsr_scheme_read(const tsr_scheme_arguments *a, bool ranges, tsr_scheme_options *o, tsr_err *err)
{
    const tsr_scheme_form form = tsr_scheme_form_in(a->scheme, a->dialect);
    *o = (tsr_scheme_options){.search = TSR_SCALES_AMAX};
    if (a->dialect >= 0)
        TSR_TRY(tsr_scheme_check_dialect(a->scheme, (tsr_dialect)a->dialect, err));
    TSR_TRY(check_inputs(a, form, err));
    TSR_TRY(form == TSR_FORM_BLOCKS               ? block_options(a, &o->blocks, err)
            : form == TSR_FORM_EXPERTS            ? expert_options(a, &o->experts, err)
            : tsr_scheme_is_of_mx_plan(a->scheme) ? mx_options(a, ranges, &o->groups, err)
                                                  : int_options(a, &o->rows, err));
    TSR_TRY(tsr_read_kv_origin(a, &o->kv_ranges, &o->groups.kv, err));
    o->rows.kv = o->blocks.kv = o->experts.kv = o->groups.kv;
    o->search = form == TSR_FORM_BLOCKS               ? o->blocks.block.search
                : form == TSR_FORM_EXPERTS            ? o->experts.block.search
                : tsr_scheme_is_of_mx_plan(a->scheme) ? o->groups.search
                                                      : o->rows.scheme.search;
    TSR_TRY(tsr_read_importance(a, &o->importance, err));
    if (a->importance != NULL)
        o->blocks.importance = o->rows.importance = o->groups.importance = o->experts.importance = &o->importance;
    if (a->activations == NULL)
        return TSR_OK;
    TSR_TRY(tsr_calibration_read(&o->calibration, a->activations, err));
    o->rows.calibration = o->groups.calibration = o->experts.calibration = &o->calibration;
    return TSR_OK;
}

void tsr_scheme_settle(const tsr_scheme_arguments *a, const tsr_checkpoint *source, bool split, tsr_scheme_options *o)
{
    if (a->dialect < 0 && tsr_scheme_is_of_mx_plan(a->scheme) && !split)
        o->groups.dialect = tsr_mx_default_dialect(a->scheme, source);
}

bool tsr_scheme_stacks(const tsr_scheme_arguments *a, const tsr_scheme_options *o)
{
    return tsr_scheme_is_of_mx_plan(a->scheme) && o->groups.dialect == TSR_DIALECT_GPT_OSS;
}

tsr_status tsr_plan_named_scheme(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_scheme_arguments *a,
                                 const tsr_scheme_options *o, tsr_err *err)
{
    const tsr_scheme_form form = tsr_scheme_form_in(a->scheme, a->dialect);
    return form == TSR_FORM_EXPERTS              ? tsr_w4afp8_plan(plan, source, &o->experts, err)
           : form == TSR_FORM_BLOCKS             ? tsr_quantize_plan(plan, source, &o->blocks, err)
           : tsr_scheme_is_of_mx_plan(a->scheme) ? tsr_mx_plan(plan, source, &o->groups, err)
                                                 : tsr_ct_plan(plan, source, &o->rows, err);
}

void tsr_scheme_free(tsr_scheme_options *options)
{
    tsr_calibration_free(&options->calibration);
    tsr_calibration_free(&options->kv_ranges);
    tsr_importance_free(&options->importance);
}
