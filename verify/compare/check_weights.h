/* Is DST what quantizing, casting or renaming SRC should have given? Findings, each with what was found where.
 *
 * The comparison finds what differs; this judges it, and names the fault where its traces allow: whose values a tensor
 * holds, what happened to its scales. See docs/verify.md for every check and where its limit comes from. */
#ifndef TSR_VERIFY_COMPARE_CHECK_WEIGHTS_H
#define TSR_VERIFY_COMPARE_CHECK_WEIGHTS_H

#include "verify/compare/compare.h"

typedef enum tsr_check {
    TSR_CHECK_NAMES,  /* every tensor is there, under its name */
    TSR_CHECK_SHAPES, /* in its shape */
    TSR_CHECK_SCALES, /* scales are positive normal numbers; powers of two if config.json says so */
    TSR_CHECK_CODES,  /* no value of codes is NaN or Inf, and no other that is not so in SRC */
    TSR_CHECK_VALUES, /* errors are within the limits */
    TSR_CHECK_BLOCKS, /* no block would be much better off with another scale */
    TSR_CHECK_CONFIG, /* config.json is SRC's but for the quantization, and says what the tensors are */
    TSR_N_CHECKS,
} tsr_check;

typedef struct tsr_weight_limits {
    double min_sqnr;         /* dB, of a tensor of 8-bit codes */
    double min_sqnr_int4;    /* dB, of a tensor of int4 */
    double min_sqnr_fp4;     /* dB, of a tensor of e2m1: NVFP4 and MXFP4 */
    double max_int_cost;     /* integers below that pass where squared errors are no more than this many times what
                                steps that reach each group's largest value cost in the mean; NVFP4, MXFP4 and MXFP8
                                where every code is the nearest and every scale by rule. 0: they do not */
    double max_block_error;  /* relative, of a 128x128 block of an e4m3 tensor, where its own blocks lie inside */
    double max_cast_error;   /* relative, of a 128x128 block of a tensor without scales in another dtype */
    uint64_t max_misrounded; /* codes of a tensor that are not the nearest */
} tsr_weight_limits;

/* 30 dB: healthy block FP8 has 31.5 whatever the weights, int8 about 40; 10 dB: int4 has 16 to 20. A uniform step loses
 * 20 lg of amax / rms, which outliers make large, and the more the longer a group is: below 30 and 10 dB integers are
 * held to what their own groups have to cost. 14 dB: half a step of e2m1 is at most a fifth of a value from 1 on, where
 * the largest of a group lies; NVFP4 has 18 to 21, MXFP4 17 to 19. 3.1: half a step, squared, is 3 times a twelfth of a step, squared, and
 * codes and scales are rounded. 0.0626: half a step of e4m3 is at most 2^-4 of its value, and
 * what lies in the subnormal steps adds less than 0.0002. 2^-8: half a step of BF16. No code misrounded. */
tsr_weight_limits tsr_weight_limits_defaults(void);

typedef struct tsr_finding {
    tsr_check check;
    const char *where; /* tensor, file, or key of the configuration */
    const char *text;
} tsr_finding;

/* Zero-initialised is empty. */
typedef struct tsr_findings {
    tsr_finding *items; /* in the order of the checks, then of the tensors */
    size_t count, capacity;
    size_t
        judged[TSR_N_CHECKS]; /* tensors, of the configuration 1, that a check looked at: 0 says nothing by passing */
    tsr_arena arena;
} tsr_findings;

/* Return a check's name ("names", ...), its description, and the meaning of its failure. Static storage. */
const char *tsr_check_name(tsr_check check);
const char *tsr_check_title(tsr_check check);
const char *tsr_check_failure(tsr_check check);

/* `c` has src as a and dst as b, whole or for some tensors. Findings are results; TSR_E_IO and the like are errors. */
tsr_status tsr_check_weights(const tsr_side *src, const tsr_side *dst, const tsr_comparison *c,
                             const tsr_weight_limits *limits, tsr_findings *findings, tsr_err *err) TSR_WARN_UNUSED;

void tsr_findings_free(tsr_findings *findings);

#endif
