/* Defines codes of the microscaling formats in plain C, one value at a time. */
#include "kernels/cpu/mx_codes.h"

#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

#include <math.h>
#include <string.h>

enum { MXFP8_GROUP = 32 };

/* ---- scales ---- */

void tsr_scale_e8m0_ref(const uint32_t *amax, size_t n, uint32_t limit, int emax, uint8_t *scales, float *t)
{
    for (size_t i = 0; i < n; i++) {
        const int exponent = (int)(amax[i] >> 23) + ((amax[i] & 0x7FFFFF) > limit) - emax;
        scales[i] = (uint8_t)(exponent < 0 ? 0 : exponent);
        t[i] = tsr_f32_from_e8m0(scales[i]);
    }
}

static float divided(float amax, const tsr_nvfp4_recipe *recipe, uint8_t *scale)
{
    const float sixth = amax / 6.0f;
    const float x = (recipe->bf16_quotient ? tsr_f32_from_bf16(tsr_bf16_from_f32(sixth)) : sixth) * recipe->global;
    const uint8_t code = tsr_e4m3_from_f32(x);
    *scale = code == 0 ? 0x20 : code;
    return tsr_e4m3_to_f32(*scale) / recipe->global;
}

static float multiplied(float amax, const tsr_nvfp4_recipe *recipe, uint8_t *scale)
{
    const float x = amax / (6.0f * recipe->global);
    *scale = amax == 0 ? 0x38 : tsr_e4m3_from_f32(x < 0x1p-9f ? 0x1p-9f : x);
    return tsr_e4m3_to_f32(*scale) * recipe->global;
}

void tsr_scale_nvfp4_ref(const uint32_t *amax, size_t n, const tsr_nvfp4_recipe *recipe, uint8_t *scales, float *t)
{
    for (size_t i = 0; i < n; i++) {
        const float x = tsr_f32_from_bits(amax[i]);
        t[i] = recipe->multiplies ? multiplied(x, recipe, &scales[i]) : divided(x, recipe, &scales[i]);
    }
}

/* ---- codes ---- */

static uint8_t rounded_down(float q)
{
    const float a = fabsf(q);
    const int magnitude = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
    return (uint8_t)((q > 0 ? 0 : 8) | magnitude);
}

static uint8_t code_of(float x, float t, tsr_e2m1_rounding rounding)
{
    const float exact = t == 0 ? 0 : x / t;
    const float q = rounding == TSR_E2M1_EVEN_BF16 ? tsr_f32_from_bf16(tsr_bf16_from_f32(exact)) : exact;
    if (rounding == TSR_E2M1_DOWN)
        return rounded_down(q);
    return q == 0 ? 0 : tsr_e2m1_from_f32(q);
}

void tsr_encode_e2m1_bf16_ref(const uint16_t *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding,
                              uint8_t *packed)
{
    for (size_t i = 0; i < n; i += 2) {
        const uint8_t even = code_of(tsr_f32_from_bf16(x[i]), t[i / group], rounding);
        const uint8_t odd = code_of(tsr_f32_from_bf16(x[i + 1]), t[i / group], rounding);
        packed[i / 2] = (uint8_t)(even | odd << 4);
    }
}

void tsr_encode_e2m1_bf16_rare(const uint16_t *x, size_t group, float t, tsr_e2m1_rounding rounding, uint8_t *packed)
{
    unsigned any = 0;
    for (size_t i = 0; i < group; i++)
        any |= x[i];
    if ((any & 0x7FFF) != 0)
        tsr_encode_e2m1_bf16_ref(x, group, group, &t, rounding, packed);
    else
        memset(packed, rounding == TSR_E2M1_DOWN ? 0x88 : 0, group / 2);
}

void tsr_encode_e2m1_f32_ref(const float *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding,
                             uint8_t *packed)
{
    for (size_t i = 0; i < n; i += 2) {
        const uint8_t even = code_of(x[i], t[i / group], rounding), odd = code_of(x[i + 1], t[i / group], rounding);
        packed[i / 2] = (uint8_t)(even | odd << 4);
    }
}

void tsr_encode_mxfp8_bf16_ref(const uint16_t *x, size_t n, const uint8_t *scales, uint8_t *codes)
{
    for (size_t i = 0; i < n; i++)
        codes[i] = tsr_e4m3_from_f32(tsr_f32_from_bf16(x[i]) / tsr_f32_from_e8m0(scales[i / MXFP8_GROUP]));
}
