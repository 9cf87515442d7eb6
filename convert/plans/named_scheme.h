/* The schemes that quantizing and converting know by a name: what a user may say of each, and its plan. Messages call what was
 * said as the command line spells it. */
#ifndef TSR_CONVERT_PLANS_NAMED_SCHEME_H
#define TSR_CONVERT_PLANS_NAMED_SCHEME_H

#include "common/options.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/mx_plan.h"
#include "convert/plans/quantize_plan.h"

/* The words of choices, in the order of what they stand for: of tsr_named_scheme, of tsr_mx_dialect, and of the members of
 * tsr_scheme_arguments that have these names. */
#define TSR_SCHEME_WORDS                                                                                  \
    "fp8-block|fp8-channel|int8-channel|int8-weight-only|int4-weight-only|nvfp4|nvfp4-weight-only|mxfp4|" \
    "mxfp4-weight-only|mxfp8|mxfp8-weight-only"
#define TSR_DIALECT_WORDS     "deepseek|compressed-tensors|modelopt|gpt-oss"
#define TSR_SCALES_WORDS      "amax|mse"
#define TSR_SCALE_FMT_WORDS   "f32|ue8m0"
#define TSR_MX_SCALE_WORDS    "floor|even|rceil|ceil"
#define TSR_SCALE_DTYPE_WORDS "f32|bf16|f16"
#define TSR_ROUNDING_WORDS    "even|away"
#define TSR_DIVISOR_WORDS     "127|127.5|128|7|7.5|8"

/* Of tensor data in one output file, where nothing is said. */
#define TSR_MAX_SHARD_BYTES UINT64_C(5000000000)

/* In the order of TSR_SCHEME_WORDS. */
typedef enum tsr_named_scheme {
    TSR_FP8_BLOCK,
    TSR_FP8_CHANNEL,
    TSR_INT8_CHANNEL,
    TSR_INT8_WEIGHT_ONLY,
    TSR_INT4_WEIGHT_ONLY,
    TSR_MX_SCHEMES, /* the first tsr_mx_target */
    TSR_ALL_SCHEMES = (int)TSR_MX_SCHEMES + (int)TSR_MX_TARGETS,
} tsr_named_scheme;

/* The tsr_named_scheme of a tsr_mx_target: a sum of two enumerations is a warning of newer compilers. */
#define TSR_MX_SCHEME(target) ((int)TSR_MX_SCHEMES + (int)(target))

/* Of TSR_SCHEME_WORDS. */
const char *tsr_scheme_word(tsr_named_scheme scheme);

/* The scheme of this name; TSR_ALL_SCHEMES: there is none. */
tsr_named_scheme tsr_scheme_find(const char *name);

/* What is said of a scheme. */
typedef struct tsr_scheme_arguments {
    const char *block, *activations;             /* "128x128"; a file */
    int scheme, scale_fmt, scales, away;         /* indices in the words above; away: in those of rounding */
    int dialect, mx_scale, scale_dtype, divisor; /* -1: as the scheme has it */
    uint64_t group_size;                         /* UINT64_MAX: likewise */
    bool zero_points, activation_zero_points;
    tsr_list include, exclude;
    uint64_t max_shard_bytes;
} tsr_scheme_arguments;

tsr_scheme_arguments tsr_scheme_defaults(void);

/* The number that a choice of --divisor names, where one was made (not -1). TSR_E_USAGE: the divisor, whoever chose it, is
 * not for codes of 4 bits (`int4`) or of 8; `what` are the codes. */
tsr_status tsr_read_divisor(int choice, bool int4, const char *what, float *divisor, tsr_err *err) TSR_WARN_UNUSED;

/* --group-size, where it is given (not UINT64_MAX). TSR_E_USAGE: no kernel takes it. */
tsr_status tsr_read_group_size(uint64_t given, uint64_t *group, tsr_err *err) TSR_WARN_UNUSED;

/* TSR_E_USAGE for a --dialect that has no blocks of FP8. */
tsr_status tsr_check_block_dialect(int dialect, tsr_err *err) TSR_WARN_UNUSED;

/* The same for plans. Only that of the scheme's family is filled; a zeroed one may be freed. */
typedef struct tsr_scheme_options {
    tsr_quantize_options blocks;
    tsr_ct_options rows;
    tsr_mx_options groups;
    tsr_calibration calibration;
} tsr_scheme_options;

/* Reads --activations, too, where it is given. TSR_E_USAGE: what the scheme does not take. `ranges`: whether nvfp4 needs
 * --activations. */
tsr_status tsr_scheme_read(const tsr_scheme_arguments *arguments, bool ranges, tsr_scheme_options *options,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Sets what nothing was said of, and the model decides: the dialect that its loaders read. `split`: experts are to be one by
 * one, which no layout of stacks can hold. */
void tsr_scheme_settle(const tsr_scheme_arguments *arguments, const tsr_checkpoint *source, bool split,
                       tsr_scheme_options *options);

/* Whether the output holds stacks of experts as codes, [experts, out, in]. */
bool tsr_scheme_stacks(const tsr_scheme_arguments *arguments, const tsr_scheme_options *options);

tsr_status tsr_scheme_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_scheme_arguments *arguments,
                           const tsr_scheme_options *options, tsr_err *err) TSR_WARN_UNUSED;

void tsr_scheme_free(tsr_scheme_options *options);

/* Below so many dB a tensor is pointed out. */
double tsr_scheme_low_sqnr(tsr_named_scheme scheme);

#endif
