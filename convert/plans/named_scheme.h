/* The schemes that `tessera quantize --scheme` and `tessera convert --to` share: their options, and their plans. */
#ifndef TSR_CLI_SCHEMES_H
#define TSR_CLI_SCHEMES_H

#include "cli/options.h"
#include "cli/run_plan.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/mx_plan.h"
#include "convert/plans/quantize_plan.h"

/* In the order of the words of --scheme. */
typedef enum tsr_scheme {
    TSR_FP8_BLOCK,
    TSR_FP8_CHANNEL,
    TSR_INT8_CHANNEL,
    TSR_INT8_WEIGHT_ONLY,
    TSR_INT4_WEIGHT_ONLY,
    TSR_MX_SCHEMES, /* the first tsr_mx_target */
    TSR_ALL_SCHEMES = (int)TSR_MX_SCHEMES + (int)TSR_MX_TARGETS,
} tsr_scheme;

/* The tsr_scheme of a tsr_mx_target: a sum of two enumerations is a warning of newer compilers. */
#define TSR_MX_SCHEME(target) ((int)TSR_MX_SCHEMES + (int)(target))

/* As --scheme has it. */
const char *tsr_scheme_word(tsr_scheme scheme);

/* The scheme of this name; TSR_ALL_SCHEMES: there is none. */
tsr_scheme tsr_scheme_find(const char *name);

/* What the command line says of a scheme. */
typedef struct tsr_scheme_arguments {
    const char *block, *activations;
    int scheme, scale_fmt, scales, away;
    int dialect, mx_scale, scale_dtype, divisor; /* -1: as the scheme has it */
    uint64_t group_size;                         /* UINT64_MAX: likewise */
    bool zero_points, activation_zero_points;
    tsr_list include, exclude;
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
tsr_status tsr_scheme_read(const tsr_plan_run *run, const tsr_scheme_arguments *arguments, bool ranges,
                           tsr_scheme_options *options, tsr_err *err) TSR_WARN_UNUSED;

/* Sets what the command line leaves to the model: the dialect that its loaders read. `split`: experts are to be one by
 * one, which no layout of stacks can hold. */
void tsr_scheme_settle(const tsr_scheme_arguments *arguments, const tsr_checkpoint *source, bool split,
                       tsr_scheme_options *options);

/* Whether the output holds stacks of experts as codes, [experts, out, in]. */
bool tsr_scheme_stacks(const tsr_scheme_arguments *arguments, const tsr_scheme_options *options);

tsr_status tsr_scheme_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_scheme_arguments *arguments,
                           const tsr_scheme_options *options, tsr_err *err) TSR_WARN_UNUSED;

void tsr_scheme_free(tsr_scheme_options *options);

/* Below so many dB a tensor is pointed out. */
double tsr_scheme_low_sqnr(tsr_scheme scheme);

#endif
