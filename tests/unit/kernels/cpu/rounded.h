/* Rounds to a floating-point format with arithmetic in double. */
#pragma once

#include <math.h>

/* Returns x rounded to the nearest multiple of 2^(exponent - bits + 1), ties to even: a format with `bits` significant
 * bits, normal from 2^lowest on. */
static inline double rounded(double x, int bits, int lowest)
{
    if (x == 0 || isinf(x))
        return x;
    int exponent;
    frexp(x, &exponent);
    const int step = (exponent - 1 > lowest ? exponent - 1 : lowest) - bits + 1;
    return ldexp(nearbyint(ldexp(x, -step)), step);
}
