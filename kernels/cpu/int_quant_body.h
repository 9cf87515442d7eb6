/* Implements parts of int_quant as TSR_INT(name), for each form to include and the compiler to vectorize. */
#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum { LANES = 32 };

/* Rounds ties away from zero, exactly: adding one half would round. */
static inline float round_away(float x)
{
    const float whole = truncf(x);
    return fabsf(x - whole) >= 0.5f ? whole + copysignf(1.0f, x) : whole;
}

static inline float zero_of(const tsr_int_row *row, size_t group)
{
    return row->zero == NULL ? 0 : row->zero[group];
}

static inline int8_t code_of(float t, const tsr_int_row *row)
{
    const float clamped = t < row->low ? row->low : t > row->high ? row->high : t;
    return (int8_t)(row->away ? round_away(clamped) : rintf(clamped));
}

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
    for (size_t i = 0; i < n; i++)
        out[i] = tsr_f32_from_bf16(x[i]);
}

#ifndef TSR_FINDS_AMAX /* the including file has its own */
void TSR_INT(amax_groups_bf16)(const uint16_t *x, size_t cols, size_t group, uint32_t *amax)
{
    for (size_t first = 0; first < cols; first += group) {
        const size_t end = cols - first < group ? cols : first + group;
        uint16_t largest = 0;
        for (size_t i = first; i < end; i++) {
            const uint16_t size = x[i] & 0x7FFF;
            largest = size > largest ? size : largest;
        }
        *amax++ = (uint32_t)largest << 16;
    }
}
#endif

#ifndef TSR_FINDS_RANGES /* the including file has its own */
/* Among bit patterns, the largest as signed integers is the largest positive number, and the largest as unsigned ones
 * is the most negative number. */
void TSR_INT(range_groups_bf16)(const uint16_t *x, size_t cols, size_t group, float *low, float *high)
{
    for (size_t first = 0; first < cols; first += group) {
        const size_t end = cols - first < group ? cols : first + group;
        int16_t above = 0;
        uint16_t below = 0x8000;
        for (size_t i = first; i < end; i++) {
            above = (int16_t)x[i] > above ? (int16_t)x[i] : above;
            below = x[i] > below ? x[i] : below;
        }
        *low++ = tsr_f32_from_bf16(below);
        *high++ = tsr_f32_from_bf16((uint16_t)above);
    }
}
#endif
