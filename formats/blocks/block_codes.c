/* Codes positive numbers logarithmically. Steps follow from exponent and mantissa bits; no logarithm is computed. */
#include "formats/blocks/block_codes.h"

#include "common/float_bits.h"

#include <math.h>

/* Returns the step of a positive finite number with these bits, from 1 on. */
static inline uint32_t step_of(uint32_t bits)
{
    const uint32_t half = 1u << (TSR_BLOCK_STEP_BITS - 1), step = (bits + half) >> TSR_BLOCK_STEP_BITS;
    return step == 0 ? 1 : step > TSR_BLOCK_LAST_STEP ? TSR_BLOCK_LAST_STEP : step;
}

static inline uint8_t code_of(uint32_t bits, uint32_t base)
{
    if (bits >= TSR_FP32_INF_BITS)
        return bits == TSR_FP32_INF_BITS ? TSR_BLOCK_INF : TSR_BLOCK_NAN;
    const uint32_t step = step_of(bits);
    return bits == 0 ? TSR_BLOCK_ZERO : step <= base ? TSR_BLOCK_LOW : (uint8_t)(step - base);
}

uint16_t tsr_block_encode(const float *x, size_t n, uint8_t *codes)
{
    uint32_t largest = 0; /* bits of positive floats compare like the numbers */
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = tsr_f32_bits(x[i]);
        largest = bits < TSR_FP32_INF_BITS && bits > largest ? bits : largest;
    }
    const uint32_t last = step_of(largest), base = last > TSR_BLOCK_TOP ? last - TSR_BLOCK_TOP : 0;
    for (size_t i = 0; i < n; i++)
        codes[i] = code_of(tsr_f32_bits(x[i]), base);
    return (uint16_t)base;
}

float tsr_block_decode(uint16_t base, uint8_t code)
{
    if (code == TSR_BLOCK_NAN)
        return NAN;
    if (code == TSR_BLOCK_INF)
        return INFINITY;
    return code == TSR_BLOCK_ZERO ? 0 : tsr_f32_from_bits(((uint32_t)base + code) << TSR_BLOCK_STEP_BITS);
}
