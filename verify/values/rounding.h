/* Tests whether codes are the nearest under a scale, and computes the error of the nearest codes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum tsr_codes { TSR_CODES_E4M3, TSR_CODES_E2M3, TSR_CODES_E3M2, TSR_CODES_E2M1, TSR_CODES_INTEGERS } tsr_codes;

typedef struct tsr_rounding {
    tsr_codes kind;
    double scale;           /* positive and finite */
    double lowest, highest; /* integers: the values of the outermost codes; floats are symmetric */
} tsr_rounding;

/* Counts the values y[0 .. n) of codes that are not x rounded: |x - y| exceeds half a step at x, and x is not beyond
 * the outermost value. Ties may go either way. Half a step of BF16 is allowed in addition, for tools that divide in
 * BF16: at most a 16th of the half step of e4m3 and e2m3, a 32nd of e3m2's and a 64th of e2m1's. For integers it is
 * taken at the quotient and, with a zero point, at their sum. */
uint64_t tsr_count_misrounded(const tsr_rounding *rounding, const double *x, const double *y, size_t n);

/* Counts misrounded integers that each have their own grid: scale[i], positive and finite, lowest[i] and highest[i]. */
uint64_t tsr_count_misrounded_each(const double *scale, const double *lowest, const double *highest, const double *x,
                                   const double *y, size_t n);

/* Returns the sum of (x - nearest value)^2 over n elements x[0], x[stride], ... Floats only. */
double tsr_rounding_error2(const tsr_rounding *rounding, const double *x, size_t n, size_t stride);

/* Returns the e4m3 value nearest to q >= 0, or the largest. Of two equally near ones, either. */
double tsr_nearest_e4m3(double q);
