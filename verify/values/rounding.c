/* Tests codes against half a step at x, computed from the exponent of x / scale. */
#include "verify/values/rounding.h"

#include "verify/values/lanes.h"

#include <math.h>

/* A float format of few bits: half a step is a fixed share of the value's binade, down to the smallest step. */
typedef struct float_steps {
    double share;    /* half a step divided by the start of its binade, plus tolerance */
    double smallest; /* half of the smallest step */
    double largest;  /* value */
    int smallest_exponent, mantissa;
} float_steps;

/* A quotient in BF16 is off by up to 2^-8 of the start of its binade. */
static const float_steps kSteps[] = {
    [TSR_CODES_E4M3] = {0x1p-4 * (1 + 0x1p-4), 0x1p-10 * (1 + 0x1p-4), 448, -6, 3},
    [TSR_CODES_E2M3] = {0x1p-4 * (1 + 0x1p-4), 0x1p-4 * (1 + 0x1p-4), 7.5, 0, 3},
    [TSR_CODES_E3M2] = {0x1p-3 * (1 + 0x1p-5), 0x1p-5 * (1 + 0x1p-5), 28, -2, 2},
    [TSR_CODES_E2M1] = {0x1p-2 * (1 + 0x1p-6), 0x1p-2 * (1 + 0x1p-6), 6, 0, 1},
};

/* Returns the start of |q|'s binade, from the exponent alone. */
static ALWAYS_INLINE double binade_of(double q)
{
    uint64_t bits;
    double binade;
    memcpy(&bits, &q, sizeof bits);
    bits &= 0x7FF0000000000000u;
    memcpy(&binade, &bits, sizeof binade);
    return binade;
}

/* Returns half a step of BF16 at q. */
static ALWAYS_INLINE double bf16_half_step(double q)
{
    return binade_of(q) * 0x1p-8;
}

/* Counts in a plain loop, which compilers vectorize. */
static ALWAYS_INLINE void find_misrounded(const double *x, const double *y, size_t n, double inverse,
                                          const float_steps *steps, int64_t *found)
{
    const double share = steps->share, smallest = steps->smallest, largest = steps->largest;
    int64_t far = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs(x[i] - y[i]) * inverse, q = fabs(x[i]) * inverse, code = fabs(y[i]) * inverse;
        const double binade = binade_of(q);
        /* The start of x's binade is itself a code, so nothing below it is nearer. */
        const int beyond = (d > binade * share) | (code < binade * 0.99);
        far += beyond & (d > smallest) & !((q > largest) & (code > largest * 0.99));
    }
    *found += far;
}

FOR_EVERY_ISA(find_misrounded,
              (const double *x, const double *y, size_t n, double inverse, const float_steps *steps, int64_t *found),
              (x, y, n, inverse, steps, found))

/* Returns true for an integer code that is neither the nearest nor clipped. Tools that compute in BF16 round the
 * quotient and, with a zero point, the sum of both. The zero point follows from the outermost values L and H: those of
 * codes -n and n - 1 have L + H = -scale. */
static ALWAYS_INLINE int is_misrounded(double x, double y, double lowest, double highest, double inverse)
{
    const double q = x * inverse, zero = -((lowest + highest) * inverse + 1) / 2;
    const double allowed = bf16_half_step(q) + (fabs(zero) > 0.75 ? bf16_half_step(q + zero) : 0);
    const int beyond = fabs(x - y) * inverse > 0.5 + allowed;
    const int clipped = ((y == lowest) & (x < y)) | ((y == highest) & (x > y));
    return beyond & !clipped;
}

static ALWAYS_INLINE void find_misrounded_integers(const double *x, const double *y, size_t n, double lowest,
                                                   double highest, double inverse, int64_t *found)
{
    int64_t far = 0;
    for (size_t i = 0; i < n; i++)
        far += is_misrounded(x[i], y[i], lowest, highest, inverse);
    *found += far;
}

FOR_EVERY_ISA(find_misrounded_integers,
              (const double *x, const double *y, size_t n, double lowest, double highest, double inverse,
               int64_t *found),
              (x, y, n, lowest, highest, inverse, found))

static ALWAYS_INLINE void find_misrounded_each(const double *x, const double *y, size_t n, const double *lowest,
                                               const double *highest, const double *scale, int64_t *found)
{
    int64_t far = 0;
    for (size_t i = 0; i < n; i++)
        far += is_misrounded(x[i], y[i], lowest[i], highest[i], 1 / scale[i]);
    *found += far;
}

FOR_EVERY_ISA(find_misrounded_each,
              (const double *x, const double *y, size_t n, const double *lowest, const double *highest,
               const double *scale, int64_t *found),
              (x, y, n, lowest, highest, scale, found))

uint64_t tsr_count_misrounded_each(const double *scale, const double *lowest, const double *highest, const double *x,
                                   const double *y, size_t n)
{
    int64_t found = 0;
    find_misrounded_each_best(x, y, n, lowest, highest, scale, &found);
    return (uint64_t)found;
}

uint64_t tsr_count_misrounded(const tsr_rounding *rounding, const double *x, const double *y, size_t n)
{
    const double inverse = 1 / rounding->scale;
    int64_t found = 0;
    if (rounding->kind == TSR_CODES_INTEGERS)
        find_misrounded_integers_best(x, y, n, rounding->lowest, rounding->highest, inverse, &found);
    else
        find_misrounded_best(x, y, n, inverse, &kSteps[rounding->kind], &found);
    return (uint64_t)found;
}

static double nearest(const float_steps *steps, double q)
{
    int exponent;
    (void)frexp(q, &exponent);
    const int binade = exponent - 1 < steps->smallest_exponent ? steps->smallest_exponent : exponent - 1;
    const double step = ldexp(1, binade - steps->mantissa);
    return fmin(nearbyint(q / step) * step, steps->largest);
}

double tsr_nearest_e4m3(double q)
{
    return nearest(&kSteps[TSR_CODES_E4M3], q);
}

double tsr_rounding_error2(const tsr_rounding *rounding, const double *x, size_t n, size_t stride)
{
    const float_steps *const steps = &kSteps[rounding->kind];
    double error = 0;
    for (size_t i = 0; i < n; i++) {
        const double a = fabs(x[i * stride]), d = a - nearest(steps, a / rounding->scale) * rounding->scale;
        error += d * d;
    }
    return error;
}
