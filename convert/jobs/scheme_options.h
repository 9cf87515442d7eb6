/* The options of `quantize` and `convert` that describe a scheme, and the plan of the scheme. Messages spell options as
 * on the command line. */
#pragma once

#include "common/options.h"
#include "convert/plans/ct_plan.h"
#include "convert/plans/layouts/w4afp8_plan.h"
#include "convert/plans/mx_plan.h"
#include "convert/plans/quantize_plan.h"
#include "convert/schemes/schemes.h"

/* The words of choice options. Their order defines the values of the members of tsr_scheme_arguments with the same
 * names. */
#define TSR_SCALES_WORDS      "amax|mse|best|four-six"
#define TSR_SCALE_FMT_WORDS   "f32|ue8m0"
#define TSR_MX_SCALE_WORDS    "floor|even|rceil|ceil"
#define TSR_SCALE_DTYPE_WORDS "f32|bf16|f16"
#define TSR_ROUNDING_WORDS    "even|away"
#define TSR_DIVISOR_WORDS     "127|127.5|128|7|7.5|8"
#define TSR_METHOD_WORDS      "rtn|gptq"

/* Default limit on the tensor bytes of one output file. */
#define TSR_MAX_SHARD_BYTES UINT64_C(5000000000)

/* The options that describe a scheme. */
typedef struct tsr_scheme_arguments {
    tsr_scheme scheme;                /* a scheme that has a name */
    const char *block, *activations;  /* "128x128"; a file */
    const char *input_scale;          /* a number; NULL: not given */
    const char *kv_scale, *kv_ranges; /* a number; a file; NULL: not given */
    /* indices of the words above; `away`: index of the word of --rounding */
    const char *importance; /* a file; NULL: none */
    int scale_fmt, away, method;
    int scales; /* -1: best if there is importance and the format allows it, else amax */
    int dialect, mx_scale, scale_dtype, divisor; /* -1: default of the scheme */
    uint64_t group_size;                         /* UINT64_MAX: default of the scheme */
    bool zero_points, activation_zero_points;
    tsr_list include, exclude;
    uint64_t max_shard_bytes;
} tsr_scheme_arguments;

tsr_scheme_arguments tsr_scheme_defaults(void);

/* Sets *divisor to the number chosen by --divisor; -1 leaves it unchanged. TSR_E_USAGE: the number is for the other
 * width of codes (`int4`: 4 bits, else 8). `what` names the codes in messages. */
tsr_status tsr_read_divisor(int choice, bool int4, const char *what, float *divisor, tsr_err *err);

/* Sets *group to --group-size; UINT64_MAX leaves it unchanged. TSR_E_USAGE: no kernel supports it. */
tsr_status tsr_read_group_size(uint64_t given, uint64_t *group, tsr_err *err);

/* Reads --input-scale; 0: it was not given. TSR_E_USAGE: it is no positive number, or --activations was given too. */
tsr_status tsr_read_input_scale(const tsr_scheme_arguments *arguments, float *scale, tsr_err *err);

/* Reads --kv-scale and --kv-ranges; `ranges` holds the file's. TSR_E_USAGE: both are given, or the scale is no positive
 * number. */
tsr_status tsr_read_kv_origin(const tsr_scheme_arguments *arguments, tsr_calibration *ranges, tsr_kv_origin *origin,
                              tsr_err *err);

/* The options of the plan. Only those of the scheme's form are filled. Freeing a zero-initialized one is allowed. */
typedef struct tsr_scheme_options {
    tsr_quantize_options blocks;
    tsr_ct_options rows;
    tsr_mx_options groups;
    tsr_w4afp8_options experts;
    tsr_calibration calibration, kv_ranges;
    tsr_importance importance;
    tsr_scale_search search; /* how scales are chosen */
} tsr_scheme_options;

/* Returns how scales are chosen for a scheme with scales of the dtype `stored`, as in tsr_scheme_check_scales. */
tsr_scale_search tsr_scheme_chosen_search(const tsr_scheme_arguments *arguments, tsr_scheme scheme, tsr_dtype stored);

/* Reads --importance and --method. TSR_E_USAGE: --scales mse was given, which does not weight errors, or --method gptq
 * without --importance. TSR_E_MISMATCH: --method gptq, and the file has no products. */
tsr_status tsr_read_importance(const tsr_scheme_arguments *arguments, tsr_importance *importance, tsr_err *err);

/* Makes the options of the plan and reads --activations and --importance. TSR_E_USAGE: the scheme does not accept an
 * option. `ranges`: nvfp4 requires --activations. */
tsr_status tsr_scheme_read(const tsr_scheme_arguments *arguments, bool ranges, tsr_scheme_options *options,
                           tsr_err *err);

/* Sets the dialect that the model's loaders read, unless --dialect was given. `split`: experts become single tensors,
 * which a layout of stacks cannot hold. */
void tsr_scheme_settle(const tsr_scheme_arguments *arguments, const tsr_checkpoint *source, bool split,
                       tsr_scheme_options *options);

/* Returns true if the output holds stacks of experts as codes, [experts, out, in]. */
bool tsr_scheme_stacks(const tsr_scheme_arguments *arguments, const tsr_scheme_options *options);

tsr_status tsr_plan_named_scheme(tsr_plan *plan, const tsr_checkpoint *const *source,
                                 const tsr_scheme_arguments *arguments, const tsr_scheme_options *options,
                                 tsr_err *err);

void tsr_scheme_free(tsr_scheme_options *options);
