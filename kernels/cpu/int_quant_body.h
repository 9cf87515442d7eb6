/* The one body of all forms of the loops that a compiler vectorizes by itself: TSR_INT(name) is the function to define.
 */
#include "kernels/cpu/variants.h"

#include <math.h>
#include <string.h>

enum { LANES = 32 };

void TSR_INT(range_f32)(const float *x, size_t n, float *low, float *high)
{
    float least[LANES] = {0}, largest[LANES] = {0};
    bool nan[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        const unsigned lane = i % LANES;
        least[lane] = x[i] < least[lane] ? x[i] : least[lane];
        largest[lane] = x[i] > largest[lane] ? x[i] : largest[lane];
        nan[lane] |= x[i] != x[i];
    }
    *low = *high = 0;
    bool any = false;
    for (unsigned lane = 0; lane < LANES; lane++) {
        *low = least[lane] < *low ? least[lane] : *low;
        *high = largest[lane] > *high ? largest[lane] : *high;
        any = any || nan[lane];
    }
    if (any)
        *low = *high = NAN;
}

int32_t TSR_INT(sum_codes)(const int8_t *codes, size_t n)
{
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += codes[i];
    return sum;
}

void TSR_INT(widen_bf16)(const uint16_t *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}
