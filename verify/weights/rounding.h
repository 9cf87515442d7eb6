/* The values that codes choose between under one scale: whether the nearest was chosen, and what the nearest costs. */
#ifndef TSR_VERIFY_WEIGHTS_ROUNDING_H
#define TSR_VERIFY_WEIGHTS_ROUNDING_H

#include <stddef.h>
#include <stdint.h>

typedef enum tsr_codes { TSR_CODES_E4M3, TSR_CODES_E2M1, TSR_CODES_INTEGERS } tsr_codes;

typedef struct tsr_rounding {
    tsr_codes kind;
    double scale;           /* positive and finite */
    double lowest, highest; /* of integers: the values of the outermost codes; floats reach as far to either side */
} tsr_rounding;

/* Of y[0 .. n), which are values of codes, how many are not what rounding x gives: |x - y| is more than half a step
 * at x, and not because x is beyond the outermost value. Ties may go to either side. Allowed beyond half a step is what
 * tools add that divide in BF16, half a step of BF16: at most a 16th of e4m3's half step and a 64th of e2m1's; of integers, at
 * the quotient and, where there is a zero point, at their sum. */
uint64_t tsr_count_misrounded(const tsr_rounding *rounding, const double *x, const double *y, size_t n);

/* The same of integers each of which has a grid of its own: scale[i], positive and finite, lowest[i] and highest[i]. */
uint64_t tsr_count_misrounded_each(const double *scale, const double *lowest, const double *highest, const double *x,
                                   const double *y, size_t n);

/* The sum of (x - nearest value)^2 over x[0], x[stride], ...: n of them. Of floats only. */
double tsr_rounding_error2(const tsr_rounding *rounding, const double *x, size_t n, size_t stride);

/* The nearest value of e4m3 to q >= 0, or its largest; of two that are as near, either. */
double tsr_nearest_e4m3(double q);

#endif
