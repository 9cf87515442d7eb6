/* Checks whether the scale of a small group follows a known rule from its largest value.
 *
 * Formats with a scale per 16 or 32 values (MXFP4, MXFP6, NVFP4, MXFP8) have several rules, and one limit of errors for
 * all of them would be loose. But each rule is a function of amax, so the scale itself can be compared with them:
 *
 *   E8M0: 2^k with amax / 2^k from 2 to 8 for e2m1, whose largest value is 6, and e2m3 (7.5), from 8 to 32 for e3m2
 *   (28), from 128 to 512 for e4m3 (448). The rules are floor (4 to 8), even (3.5 to 7), rceil (3 to 6) and ceil (2 to
 *   4) for e2m1, and those of the others are in the same interval or in it times 4 or 64.
 *   E4M3 times a global scale: the nearest e4m3 to amax / 6 over the global scale, within 2^-9 .. 448. BF16 may have
 *   rounded intermediate results. 0.125 if that would be 0 (compressed-tensors).
 *
 * Any other scale is the result of a search, or a fault. A search ends no worse than it began: the squared error of its
 * group may be at most 1 % larger than under the scale that follows from amax. */
#pragma once

#include "verify/values/rounding.h"

#include <stdbool.h>

typedef struct tsr_group_rule {
    tsr_codes kind; /* floating point */
    double global;  /* the factor of stored e4m3 scales; 0: scales are powers of two */
} tsr_group_rule;

/* A group's values x and the decoded values y: n of each, `stride` apart. */
typedef struct tsr_group {
    const double *x, *y;
    size_t n, stride;
    double scale; /* the factor of values */
} tsr_group;

typedef struct tsr_group_verdict {
    double amax, ruled;     /* the scale that follows from amax; for powers of two the better one */
    double error2, better2; /* squared errors: as stored, and of the nearest codes under `ruled` */
} tsr_group_verdict;

/* Returns true if the scale follows no rule and increases the error of the group. Returns false for groups of zeros and
 * groups with NaN or Inf. `verdict` may be NULL; it is set if the result is true. */
bool tsr_group_is_misscaled(const tsr_group_rule *rule, const tsr_group *group, tsr_group_verdict *verdict);
