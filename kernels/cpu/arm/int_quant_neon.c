/* Implements integer quantization with NEON: codes with intrinsics, the rest compiled from int_quant_body.h. */
#define TSR_INT(name) tsr_##name##_neon
#include "kernels/cpu/int_quant_body.h"

#include "kernels/cpu/arm/floats_neon.h"

/* Rounding of a quotient; a constant in each caller. */
typedef enum how { TO_EVEN, AWAY, TO_EVEN_OF_BF16, AWAY_OF_BF16 } how;

typedef struct code_lanes {
    float32x4_t scale, inverse, zero, low, high;
} code_lanes;

/* Computes the IEEE quotient. If no reciprocal or remainder can be subnormal, the product with the reciprocal is
 * corrected by its exact remainder. Otherwise it divides, which takes several times as long. */
ALWAYS_INLINE float32x4_t quotient(float32x4_t x, const code_lanes *c, bool usual)
{
    if (!usual)
        return vdivq_f32(x, c->scale);
    const float32x4_t product = vmulq_f32(x, c->inverse);
    return vfmaq_f32(product, vfmsq_f32(x, product, c->scale), c->inverse);
}

ALWAYS_INLINE int32x4_t nearest(float32x4_t x, const code_lanes *c, bool usual, how rounding)
{
    const float32x4_t exact = quotient(x, c, usual);
    const float32x4_t q = rounding >= TO_EVEN_OF_BF16 ? rounded_to_bf16(exact) : exact;
    const float32x4_t t = vminq_f32(vmaxq_f32(vaddq_f32(q, c->zero), c->low), c->high);
    return rounding == AWAY || rounding == AWAY_OF_BF16 ? vcvtaq_s32_f32(t) : vcvtnq_s32_f32(t);
}

ALWAYS_INLINE int8x8_t nearest8(floats8 x, const code_lanes *c, bool usual, how rounding)
{
    const int16x4_t first = vmovn_s32(nearest(x.part[0], c, usual, rounding));
    return vmovn_s16(vmovn_high_s32(first, nearest(x.part[1], c, usual, rounding)));
}

/* Encodes n columns of one scale. */
ALWAYS_INLINE void encode_columns(const void *x, size_t x_bytes, size_t n, load8_fn *load, const code_lanes *c,
                                  bool usual, how rounding, int8_t *codes)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const char *const at = (const char *)x + i * x_bytes;
        vst1q_s8(codes + i, vcombine_s8(nearest8(load(at, 8), c, usual, rounding),
                                        nearest8(load(at + 8 * x_bytes, 8), c, usual, rounding)));
    }
    for (; i < n; i += 8) {
        const size_t count = n - i < 8 ? n - i : 8;
        const int8x8_t eight = nearest8(load((const char *)x + i * x_bytes, count), c, usual, rounding);
        memcpy(codes + i, &eight, count);
    }
}

/* Returns true if no reciprocal or remainder can be subnormal and no quotient can exceed 2^30. */
ALWAYS_INLINE bool is_usual(float scale, uint32_t amax)
{
    return scale >= 0x1p-100f && scale <= 0x1p100f && tsr_f32_from_bits(amax) <= scale * 0x1p30f;
}

ALWAYS_INLINE void encode_groups(const void *x, size_t x_bytes, size_t cols, size_t group, load8_fn *load,
                                 const tsr_int_row *row, how rounding, int8_t *codes)
{
    for (size_t first = 0, g = 0; first < cols; first += group, g++) {
        const size_t n = cols - first < group ? cols - first : group;
        const float scale = row->scale[g];
        const code_lanes c = {vdupq_n_f32(scale), vdupq_n_f32(1 / scale), vdupq_n_f32(zero_of(row, g)),
                              vdupq_n_f32(row->low), vdupq_n_f32(row->high)};
        const char *const at = (const char *)x + first * x_bytes;
        if (x_bytes == sizeof(uint16_t) && is_usual(scale, row->amax[g]))
            encode_columns(at, x_bytes, n, load, &c, true, rounding, codes + first);
        else
            encode_columns(at, x_bytes, n, load, &c, false, rounding, codes + first);
    }
}

void tsr_encode_int_bf16_neon(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes)
{
    if (row->bf16 && row->away)
        encode_groups(x, sizeof *x, cols, group, load8_bf16, row, AWAY_OF_BF16, codes);
    else if (row->bf16)
        encode_groups(x, sizeof *x, cols, group, load8_bf16, row, TO_EVEN_OF_BF16, codes);
    else if (row->away)
        encode_groups(x, sizeof *x, cols, group, load8_bf16, row, AWAY, codes);
    else
        encode_groups(x, sizeof *x, cols, group, load8_bf16, row, TO_EVEN, codes);
}

void tsr_encode_int_f32_neon(const float *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes)
{
    if (row->away)
        encode_groups(x, sizeof *x, cols, group, load8_f32, row, AWAY, codes);
    else
        encode_groups(x, sizeof *x, cols, group, load8_f32, row, TO_EVEN, codes);
}
