/* The values that codes choose between under one scale: whether the nearest was chosen, and what the nearest costs. */
#ifndef TSR_VERIFY_VALUES_ROUNDING_H
#define TSR_VERIFY_VALUES_ROUNDING_H

#include <stddef.h>
#include <stdint.h>

typedef enum tsr_codes { TSR_CODES_E4M3, TSR_CODES_E2M1, TSR_CODES_INTEGERS } tsr_codes;

typedef struct tsr_rounding {
    tsr_codes kind;
    double scale;           /* positive and finite */
    double lowest, highest; /* of integers: the values of the outermost codes; floats reach as far to either side */
} tsr_rounding;

/* Counts the values y[0 .. n) of codes that are not x rounded: |x - y| exceeds half a step at x, and x is not beyond the
 * outermost value. Ties may go to either side. Half a step of BF16 is allowed in addition, for tools that divide in BF16. That
 * is at most a 16th of e4m3's half step and a 64th of e2m1's. For integers it is taken at the quotient and, with a zero point,
 * at their sum. */
uint64_t tsr_count_misrounded(const tsr_rounding *rounding, const double *x, const double *y, size_t n);

/* Counts misrounded integers that have a grid of their own each: scale[i], positive and finite, lowest[i] and
 * highest[i]. */
uint64_t tsr_count_misrounded_each(const double *scale, const double *lowest, const double *highest, const double *x,
                                   const double *y, size_t n);

/* The sum of (x - nearest value)^2 over x[0], x[stride], ...: n of them. Of floats only. */
double tsr_rounding_error2(const tsr_rounding *rounding, const double *x, size_t n, size_t stride);

/* The nearest value of e4m3 to q >= 0, or its largest; of two that are as near, either. */
double tsr_nearest_e4m3(double q);

#endif
