/* Computes scales and zero points from ranges and their unions, such that vLLM's own union gives the same values. */
#include "quantize/int_input.h"

#include <math.h>

static int32_t clamp_code(float x)
{
    return (int32_t)fminf(fmaxf(x, -128), 127);
}

static tsr_int_input from_range(float least, float largest, bool asymmetric)
{
    const float low = fminf(least, 0), high = fmaxf(largest, 0);
    const float scale = asymmetric ? (high - low) / 255 : fmaxf(-low, high) / 127.5f;
    if (!(scale > 0))
        return (tsr_int_input){.scale = 1};
    return (tsr_int_input){scale, asymmetric ? clamp_code(rintf(-128 - low / scale)) : 0};
}

static tsr_int_input of_one(const tsr_calibrated *x, bool asymmetric)
{
    if (x->scaled)
        return (tsr_int_input){x->scale, x->zero_point};
    return from_range(x->least, x->largest, asymmetric);
}

/* Returns the range that vLLM computes for fused layers that all have the range `x`. */
static tsr_int_input remade(tsr_int_input x)
{
    const float least = x.scale * (float)(-128 - x.zero_point), largest = x.scale * (float)(127 - x.zero_point);
    const float scale = (largest - least) / 255;
    return (tsr_int_input){scale, (int32_t)truncf(-128 - least / scale)};
}

static tsr_int_input settle(tsr_int_input x)
{
    enum { ULPS = 1024 };
    tsr_int_input y = x;
    for (int i = 0; i < ULPS; i++) {
        const tsr_int_input z = remade(y);
        if (z.scale == y.scale && z.zero_point == y.zero_point)
            return y;
        y.scale = nextafterf(y.scale, INFINITY);
    }
    return x;
}

tsr_int_input tsr_int_input_of(const tsr_calibrated *const *layers, size_t n, bool asymmetric)
{
    tsr_int_input x = of_one(layers[0], asymmetric);
    if (n == 1)
        return x;
    float least = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        const tsr_int_input one = of_one(layers[i], asymmetric);
        x.scale = fmaxf(x.scale, one.scale);
        least = fminf(least, one.scale * (float)(-128 - one.zero_point));
        largest = fmaxf(largest, one.scale * (float)(127 - one.zero_point));
    }
    return asymmetric ? settle(from_range(least, largest, true)) : x;
}
