/* The errors of one step of an FP8 tensor core, in which it adds 32 products to its accumulator.
 *
 * Each of the 33 numbers is truncated to a multiple of the step's quantum: 2^-13 of the power of two of the largest
 * magnitude (kernels/cpu/fp8_gemm.h). */
#pragma once

#include "kernels/cpu/fp8_gemm.h"

#include <stdint.h>
#include <string.h>

/* Returns the largest error of a step whose largest magnitude is `largest`. 1.01 covers the terms of higher order. */
static inline double tsr_step_slack(double largest)
{
    return (TSR_GEMM_STEP + 1) * 0x1p-13 * 1.01 * largest;
}

/* Returns the largest power of two that is not above x; 0 for 0. x >= 0 is not subnormal. */
static inline double tsr_binade(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7FF0000000000000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the quantum of a step. */
static inline double tsr_step_quantum(double largest)
{
    return tsr_binade(largest) * 0x1p-13;
}

/* Returns the mean square error of a step: each number loses a part of the quantum that is uniformly distributed with
 * a random sign. */
static inline double tsr_step_variance(double quantum)
{
    return (TSR_GEMM_STEP + 1) / 3.0 * quantum * quantum;
}
