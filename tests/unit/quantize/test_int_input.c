/* Tests static input scales of fused layers against the arithmetic of vLLM's loader, for random ranges. */
#include "quantize/int_input.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>

enum { TRIALS = 20000 };

static double uniform(void)
{
    return (double)(random_bits() >> 11) * 0x1p-53;
}

/* Returns a range around zero, of any size. */
static tsr_calibrated random_range(void)
{
    const double size = exp2(uniform() * 20 - 10);
    return (tsr_calibrated){.least = (float)(-uniform() * size), .largest = (float)(uniform() * size)};
}

/* Computes vLLM's scale and zero point of a fused layer whose members have one each
 * (kernels/linear/scaled_mm/cutlass.py): range_max = (scale * (127 - zero)).max();  range_min = (scale * (-128 -
 * zero)).min() scale = (range_max - range_min) / 255;  zero = (-128 - range_min / scale).to(int32) in FP32; to(int32)
 * truncates. All of Tessera's members have the same two. */
static void as_vllm_joins(float *scale, int32_t *zero)
{
    const volatile float largest = *scale * (float)(127 - *zero), least = *scale * (float)(-128 - *zero);
    const volatile float width = largest - least;
    const volatile float joined = width / 255;
    const volatile float ratio = least / joined;
    const volatile float exact = -128 - ratio;
    *scale = joined;
    *zero = (int32_t)exact; /* C cuts, too */
}

Test(int_input, joined_layers_are_what_vllm_remakes)
{
    for (int trial = 0; trial < TRIALS; trial++) {
        const tsr_calibrated layers[3] = {random_range(), random_range(), random_range()};
        const tsr_calibrated *const pointers[3] = {&layers[0], &layers[1], &layers[2]};
        const size_t n = 2 + (size_t)(trial % 2);
        const tsr_int_input x = tsr_int_input_of(pointers, n, true);
        float scale = x.scale;
        int32_t zero = x.zero_point;
        as_vllm_joins(&scale, &zero);
        cr_assert(scale == x.scale && zero == x.zero_point,
                  "trial %d: stored scale %a, zero point %d; vLLM makes them %a, %d", trial, (double)x.scale,
                  (int)x.zero_point, (double)scale, (int)zero);
    }
}

/* The union itself is kept, to half a step at either end. */
Test(int_input, joined_layers_reach_the_union)
{
    for (int trial = 0; trial < TRIALS; trial++) {
        const tsr_calibrated layers[2] = {random_range(), random_range()};
        const tsr_calibrated *const pointers[2] = {&layers[0], &layers[1]};
        const tsr_int_input x = tsr_int_input_of(pointers, 2, true);
        const double least = fmin(layers[0].least, layers[1].least),
                     largest = fmax(layers[0].largest, layers[1].largest);
        const double step = x.scale;
        cr_assert(step * (-128 - x.zero_point) <= least + step && step * (127 - x.zero_point) >= largest - step,
                  "trial %d: %g to %g, scale %g, zero point %d", trial, least, largest, step, (int)x.zero_point);
    }
}
