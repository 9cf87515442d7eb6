/* Checks whether DST is a correct quantization, cast or renaming of SRC. Each finding has its place and cause.
 *
 * The comparison finds differences. These checks judge them and name the fault if its traces allow: whose values a
 * tensor has, and what happened to its scales. docs/verify.md describes every check and the origin of its limit. */
#pragma once

#include "common/options.h"
#include "verify/compare/compare.h"

typedef enum tsr_check {
    TSR_CHECK_NAMES,  /* every tensor exists under its name */
    TSR_CHECK_SHAPES, /* in its shape */
    TSR_CHECK_SCALES, /* scales are positive normal numbers, and powers of two if config.json says so */
    TSR_CHECK_CODES,  /* no value of codes is NaN or Inf, and no other value that is not NaN or Inf in SRC */
    TSR_CHECK_VALUES, /* errors are within the limits */
    TSR_CHECK_BLOCKS, /* no block would have a much smaller error with another scale */
    TSR_CHECK_CONFIG, /* config.json is that of SRC except for the quantization, and matches the tensors */
    TSR_N_CHECKS,
} tsr_check;

typedef struct tsr_weight_limits {
    double min_sqnr;      /* dB, for a tensor of 8-bit codes */
    double min_sqnr_int4; /* dB, for a tensor of int4 */
    double min_sqnr_fp4;  /* dB, for a tensor of e2m1: NVFP4 and MXFP4 */
    /* integers below the SQNR limit pass if their squared errors are at most this many times the average cost of steps
     * that reach each group's largest value; NVFP4, MXFP4 and MXFP8 pass if every code is the nearest and every scale
     * follows a rule. 0: they never pass */
    double max_int_cost;
    double max_block_error;  /* relative, for a 128x128 block of an e4m3 tensor whose own blocks lie inside */
    double max_cast_error;   /* relative, for a 128x128 block of a tensor without scales in another dtype */
    uint64_t max_misrounded; /* codes of a tensor that are not the nearest */
    bool asks_block_error;   /* max_block_error was given, so a block that it applies to must exist */
    bool any_scales;         /* scales may have larger errors than others, as after a search by weighted errors */
} tsr_weight_limits;

/* Returns the default limits:
 * - 30 dB: correct block FP8 has 31.5 dB for any weights, int8 about 40.
 * - 10 dB: int4 has 16 to 20 dB. A uniform step loses 20 lg(amax / rms), which outliers increase, the more the longer
 * the group. So integers below 30 and 10 dB are compared with the cost of their own groups.
 * - 14 dB: half a step of e2m1 is at most a fifth of a value from 1 on, where the largest of a group lies. NVFP4 has 18
 * to 21 dB, MXFP4 17 to 19.
 * - 3.1: half a step squared is 3 times a twelfth of a squared step; codes and scales are rounded.
 * - 0.0626: half a step of e4m3 is at most 2^-4 of its value, and subnormal steps add less than 0.0002.
 * - 2^-8: half a step of BF16.
 * - No code may be misrounded. */
tsr_weight_limits tsr_weight_limits_defaults(void);

typedef struct tsr_finding {
    tsr_check check;
    const char *where; /* tensor, file, or key of the configuration */
    const char *text;
} tsr_finding;

/* Zero-initialised is empty. */
typedef struct tsr_findings {
    tsr_finding *items; /* ordered by check, then by tensor */
    size_t count, capacity;
    size_t judged[TSR_N_CHECKS]; /* number of tensors (for the configuration 1) that a check covered; with 0 its passing
                                  * means nothing */
    tsr_arena arena;
} tsr_findings;

/* Returns a check's name: "names", ... Static storage. */
const char *tsr_check_name(tsr_check check);

/* Rejects a given max_block_error (TSR_E_USAGE) if no weight of DST that these globs select (none: all) has blocks that
 * it applies to. */
tsr_status tsr_weight_limits_refuse(const tsr_weight_limits *limits, const tsr_weights *dst, const tsr_list *tensors,
                                    tsr_err *err);

/* Runs the checks. `c` has src as a and dst as b, whole or for some tensors. Findings are results; TSR_E_IO and similar
 * are errors. */
tsr_status tsr_check_weights(const tsr_side *src, const tsr_side *dst, const tsr_comparison *c,
                             const tsr_weight_limits *limits, tsr_findings *findings, tsr_err *err);

void tsr_findings_free(tsr_findings *findings);
