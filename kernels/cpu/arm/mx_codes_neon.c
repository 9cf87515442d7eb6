/* Encodes microscaling formats with NEON: an E2M1 code is the number of ties below the quotient. */
#include "kernels/cpu/mx_codes.h"

#include "kernels/cpu/arm/floats_neon.h"
#include "kernels/cpu/variants.h"

enum { MXFP8_GROUP = 32 };

/* Computes tsr_e2m1_from_f32 for 4 quotients, except zeros, or the same with ties toward zero. */
ALWAYS_INLINE uint32x4_t e2m1_of(float32x4_t q, tsr_e2m1_rounding rounding)
{
    static const float kTies[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const float32x4_t a = vabsq_f32(q);
    uint32x4_t passed = vdupq_n_u32(0); /* each comparison subtracts one */
    for (int i = 0; i < 7; i++) {
        const float32x4_t tie = vdupq_n_f32(kTies[i]);
        /* A tie after an odd code rounds to the next code, which is even. */
        const bool reached = i % 2 == 1 && rounding != TSR_E2M1_DOWN;
        passed = vaddq_u32(passed, reached ? vcgeq_f32(a, tie) : vcgtq_f32(a, tie));
    }
    const uint32x4_t eight = vdupq_n_u32(8);
    const uint32x4_t negative =
        rounding == TSR_E2M1_DOWN ? vbicq_u32(eight, vcgtzq_f32(q)) : vandq_u32(eight, vcltzq_f32(q));
    return vsubq_u32(negative, passed);
}

ALWAYS_INLINE uint16x4_t codes_of(float32x4_t x, float32x4_t t, tsr_e2m1_rounding rounding)
{
    const float32x4_t exact = vdivq_f32(x, t);
    return vmovn_u32(e2m1_of(rounding == TSR_E2M1_EVEN_BF16 ? rounded_to_bf16(exact) : exact, rounding));
}

/* Encodes 8 columns to 4 bytes. */
ALWAYS_INLINE uint32_t encode8(floats8 x, float32x4_t t, tsr_e2m1_rounding rounding)
{
    const uint16x8_t codes = vcombine_u16(codes_of(x.part[0], t, rounding), codes_of(x.part[1], t, rounding));
    /* Two neighbouring columns form a lane of 32 bits. */
    const uint32x4_t pairs = vreinterpretq_u32_u16(codes), joined = vsraq_n_u32(pairs, pairs, 12);
    const uint16x4_t words = vmovn_u32(joined);
    return vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(words, words))), 0);
}

typedef void definition_fn(const void *x, size_t n, float t, tsr_e2m1_rounding rounding, uint8_t *packed);

static void define_bf16(const void *x, size_t n, float t, tsr_e2m1_rounding rounding, uint8_t *packed)
{
    tsr_encode_e2m1_bf16_ref(x, n, n, &t, rounding, packed);
}

static void define_f32(const void *x, size_t n, float t, tsr_e2m1_rounding rounding, uint8_t *packed)
{
    tsr_encode_e2m1_f32_ref(x, n, n, &t, rounding, packed);
}

/* Encodes groups. The definition handles groups with t = 0 and sizes that are no multiple of 8. */
ALWAYS_INLINE void encode(const void *x, size_t x_bytes, size_t n, size_t group, load8_fn *load,
                          definition_fn *definition, const float *t, tsr_e2m1_rounding rounding, uint8_t *packed)
{
    for (size_t first = 0; first < n; first += group, t++) {
        const char *const at = (const char *)x + first * x_bytes;
        if (*t == 0 || group % 8 != 0) {
            definition(at, group, *t, rounding, packed + first / 2);
            continue;
        }
        for (size_t i = 0; i < group; i += 8) {
            const uint32_t four = encode8(load(at + i * x_bytes, 8), vdupq_n_f32(*t), rounding);
            memcpy(packed + (first + i) / 2, &four, sizeof four);
        }
    }
}

/* As encode(), with a constant for each rounding. */
ALWAYS_INLINE void encode_by(const void *x, size_t x_bytes, size_t n, size_t group, load8_fn *load,
                             definition_fn *definition, const float *t, tsr_e2m1_rounding rounding, uint8_t *packed)
{
    if (rounding == TSR_E2M1_DOWN)
        encode(x, x_bytes, n, group, load, definition, t, TSR_E2M1_DOWN, packed);
    else if (rounding == TSR_E2M1_EVEN_BF16)
        encode(x, x_bytes, n, group, load, definition, t, TSR_E2M1_EVEN_BF16, packed);
    else
        encode(x, x_bytes, n, group, load, definition, t, TSR_E2M1_EVEN, packed);
}

void tsr_encode_e2m1_bf16_neon(const uint16_t *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding,
                               uint8_t *packed)
{
    encode_by(x, sizeof *x, n, group, load8_bf16, define_bf16, t, rounding, packed);
}

void tsr_encode_e2m1_f32_neon(const float *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding,
                              uint8_t *packed)
{
    encode_by(x, sizeof *x, n, group, load8_f32, define_f32, t, rounding, packed);
}

void tsr_encode_mxfp8_bf16_neon(const uint16_t *x, size_t n, const uint8_t *scales, uint8_t *codes)
{
    for (size_t i = 0; i < n; i += 8)
        vst1_u8(codes + i, divided_e4m3(load8_bf16(x + i, 8), vdupq_n_f32(tsr_f32_from_e8m0(scales[i / MXFP8_GROUP]))));
}
