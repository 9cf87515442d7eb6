/* Implements group_max as TSR_GROUP_MAX(name), for each form to include and the compiler to vectorize. */
#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

#include <math.h>

static inline uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void TSR_GROUP_MAX(raise_groups)(const float *e2, const float *t, const uint32_t *amax, size_t n,
                                 const tsr_group_max *tops)
{
    uint32_t *restrict const error = tops->error, *restrict const scale = tops->scale,
                             *restrict const most = tops->amax;
    for (size_t g = 0; g < n; g++) {
        const float unit = TSR_MX_UNIT(t[g]);
        const uint32_t held = amax[g] == 0 ? 0 : tsr_f32_bits(t[g]);
        error[g] = larger(error[g], tsr_f32_bits(sqrtf(e2[g]) * unit));
        scale[g] = larger(scale[g], held);
        most[g] = larger(most[g], amax[g]);
    }
}
