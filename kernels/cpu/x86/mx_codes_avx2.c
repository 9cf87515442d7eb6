/* Encodes microscaling formats with AVX2, with the bounds that mx_codes_avx512.c explains. */
#include <immintrin.h>

enum { TOGETHER = 8, STEP = 64 }; /* groups whose bounds are computed together; values that are packed together */

enum { AT_A_TIME = 8 };
#define TSR_MX_CODES(name) tsr_##name##_avx2
#include "kernels/cpu/x86/mx_codes_body.h"

/* ---- scales ---- */

/* Stores the lowest byte of each lane; the other bytes are 0. */
ALWAYS_INLINE void store_bytes(__m256i lanes, uint8_t *out)
{
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(words, words));
}

void tsr_scale_e8m0_avx2(const uint32_t *amax, size_t n, uint32_t limit, int emax, uint8_t *scales, float *t)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)(amax + i)), zero = _mm256_setzero_si256();
        const __m256i mantissa = _mm256_and_si256(x, _mm256_set1_epi32(0x7FFFFF));
        const __m256i above = _mm256_cmpgt_epi32(mantissa, _mm256_set1_epi32((int)limit));
        const __m256i base = _mm256_sub_epi32(_mm256_srli_epi32(x, 23), _mm256_set1_epi32(emax));
        const __m256i scale = _mm256_max_epi32(_mm256_sub_epi32(base, above), zero);
        const __m256i tiny = _mm256_and_si256(_mm256_cmpeq_epi32(scale, zero), _mm256_set1_epi32(1 << 22));
        _mm256_storeu_si256((__m256i *)(t + i), _mm256_or_si256(_mm256_slli_epi32(scale, 23), tiny));
        store_bytes(scale, scales + i);
    }
    tsr_scale_e8m0_ref(amax + i, n - i, limit, emax, scales + i, t + i);
}

ALWAYS_INLINE __m256 to_bf16(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32((int)0xFFFF0000u)));
}

typedef __m256i vec;
typedef __m256 vf;
#define OP(name) _mm256_##name
#include "kernels/cpu/x86/mx_codes_shared.h"

/* Returns the e4m3 codes of numbers from 0 to 448. */
ALWAYS_INLINE __m256i codes_of(__m256 q)
{
    const __m256 a = _mm256_min_ps(_mm256_set1_ps(448), q), step = _mm256_set1_ps(0x1p14f);
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFFF)), odd);
    const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    const __m256i steps = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(a, step)), _mm256_castps_si256(step));
    const __m256 tiny = _mm256_cmp_ps(a, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    return _mm256_blendv_epi8(normal, steps, _mm256_castps_si256(tiny));
}

void tsr_scale_nvfp4_avx2(const uint32_t *amax, size_t n, const tsr_nvfp4_recipe *recipe, uint8_t *scales, float *t)
{
    const __m256 global = _mm256_set1_ps(recipe->global);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 x = _mm256_loadu_ps((const float *)(const void *)(amax + i));
        const __m256 s = nvfp4_quotient(x, recipe, global);
        const __m256i made = codes_of(s), none = recipe->multiplies ? _mm256_castps_si256(x) : made;
        const __m256i code = _mm256_blendv_epi8(made, _mm256_set1_epi32(recipe->multiplies ? 0x38 : 0x20),
                                                _mm256_cmpeq_epi32(none, _mm256_setzero_si256()));
        const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(code, 20)), _mm256_set1_ps(0x1p120f));
        _mm256_storeu_ps(t + i, recipe->multiplies ? _mm256_mul_ps(value, global) : _mm256_div_ps(value, global));
        store_bytes(code, scales + i);
    }
    tsr_scale_nvfp4_ref(amax + i, n - i, recipe, scales + i, t + i);
}

/* ---- E2M1 ---- */

/* Rounding bounds of 8 groups, twice in each lane: the largest BF16 below the bounds of 0.25 and 0.75, and below those
 * of 1.25 and 1.75 with an exponent one lower. */
typedef struct bounds {
    _Alignas(32) uint32_t quarter[TOGETHER], three_quarters[TOGETHER], low[TOGETHER], high[TOGETHER];
} bounds;

/* Computes the rounded quotient from the reciprocal of t with one correction (as in int_quant_avx512.c). */
ALWAYS_INLINE __m256 quotient(__m256 x, __m256 t, __m256 inverse)
{
    const __m256 product = _mm256_mul_ps(x, inverse), rest = _mm256_fnmadd_ps(product, t, x);
    return _mm256_fmadd_ps(rest, inverse, product);
}

/* Returns the smallest BF16 whose quotient reaches c, or exceeds it if `beyond`: its bits minus `less`, twice in a
 * lane. */
ALWAYS_INLINE void bound_of(__m256 t, __m256 inverse, float c, bool beyond, int less, uint32_t *out)
{
    const __m256 tie = _mm256_set1_ps(c);
    const __m256i below =
        _mm256_and_si256(_mm256_castps_si256(_mm256_mul_ps(t, tie)), _mm256_set1_epi32((int)0xFFFF0000u));
    const __m256i next = _mm256_add_epi32(below, _mm256_set1_epi32(1 << 16));
    const __m256 q = quotient(_mm256_castsi256_ps(below), t, inverse);
    __m256i found = _mm256_sub_epi32(_mm256_srli_epi32(below, 16), _mm256_set1_epi32(less));
    if (beyond) {
        const __m256 q_next = quotient(_mm256_castsi256_ps(next), t, inverse);
        found = _mm256_sub_epi32(found, _mm256_castps_si256(_mm256_cmp_ps(q, tie, _CMP_LE_OQ)));
        found = _mm256_sub_epi32(found, _mm256_castps_si256(_mm256_cmp_ps(q_next, tie, _CMP_LE_OQ)));
    } else {
        found = _mm256_sub_epi32(found, _mm256_castps_si256(_mm256_cmp_ps(q, tie, _CMP_LT_OQ)));
    }
    _mm256_store_si256((__m256i *)out, _mm256_or_si256(found, _mm256_slli_epi32(found, 16)));
}

/* Computes the bounds of 8 groups. Returns a mask of those that are left to the definition. */
ALWAYS_INLINE unsigned make_bounds(const float *t_of, bool down, bounds *b)
{
    const __m256 t = _mm256_loadu_ps(t_of), inverse = _mm256_div_ps(_mm256_set1_ps(1), t);
    bound_of(t, inverse, 0.25f, true, 1, b->quarter);
    bound_of(t, inverse, 0.75f, down, 1, b->three_quarters);
    bound_of(t, inverse, 1.25f, true, 128, b->low);
    bound_of(t, inverse, 1.75f, down, 128, b->high);
    const __m256 usual = _mm256_and_ps(_mm256_cmp_ps(t, _mm256_set1_ps(0x1p-100f), _CMP_GE_OQ),
                                       _mm256_cmp_ps(t, _mm256_set1_ps(1), _CMP_LE_OQ));
    return 0xFFu & ~(unsigned)_mm256_movemask_ps(usual);
}

ALWAYS_INLINE __m256i spread(const uint32_t *bound, size_t g)
{
    return _mm256_set1_epi32((int)bound[g]);
}

/* Returns codes of 16 values of group g, one word each. */
ALWAYS_INLINE __m256i codes16(const uint16_t *values, const bounds *b, size_t g, bool down)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)values), sign = _mm256_set1_epi16(INT16_MIN);
    const __m256i u = _mm256_andnot_si256(sign, x), eight = _mm256_set1_epi16(8), zero = _mm256_setzero_si256();
    const __m256i low = _mm256_srli_epi16(_mm256_subs_epu16(u, spread(b->low, g)), 7);
    const __m256i high = _mm256_srli_epi16(_mm256_subs_epu16(u, spread(b->high, g)), 7);
    __m256i code =
        _mm256_add_epi16(_mm256_min_epi16(low, _mm256_set1_epi16(3)), _mm256_min_epi16(high, _mm256_set1_epi16(2)));
    code = _mm256_sub_epi16(code, _mm256_cmpgt_epi16(u, spread(b->quarter, g)));
    code = _mm256_sub_epi16(code, _mm256_cmpgt_epi16(u, spread(b->three_quarters, g)));
    /* A negative number other than zero; when rounding down, anything that is not positive. */
    const __m256i minus = down ? _mm256_andnot_si256(_mm256_cmpgt_epi16(x, zero), eight)
                               : _mm256_and_si256(_mm256_cmpgt_epi16(_mm256_xor_si256(x, sign), zero), eight);
    return _mm256_or_si256(code, minus);
}

/* Packs 64 codes, one word each in four registers, to nibbles. */
ALWAYS_INLINE __m256i pack64(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i weights = _mm256_set1_epi16(0x1001); /* even + 16 * odd */
    const __m256i first = _mm256_maddubs_epi16(_mm256_packus_epi16(a, b), weights);
    const __m256i second = _mm256_maddubs_epi16(_mm256_packus_epi16(c, d), weights);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
}

void encode_bf16(const uint16_t *x, size_t n, size_t group, const float *t, bool down, tsr_e2m1_rounding rounding,
                 uint8_t *packed)
{
    const size_t whole = n - n % (TOGETHER * group);
    for (size_t at = 0; at < whole; at += TOGETHER * group, t += TOGETHER) {
        bounds b;
        unsigned left = make_bounds(t, down, &b);
        for (size_t i = at, g = 0; i < at + TOGETHER * group; i += STEP, g += STEP / group) {
            for (size_t line = 0; line < STEP; line += 32)
                _mm_prefetch((const char *)(x + i + TOGETHER * group + line), _MM_HINT_T0);
            const __m256i codes =
                pack64(codes16(x + i, &b, g, down), codes16(x + i + 16, &b, g + 16 / group, down),
                       codes16(x + i + 32, &b, g + 32 / group, down), codes16(x + i + 48, &b, g + 48 / group, down));
            _mm256_storeu_si256((__m256i *)(packed + i / 2), codes);
        }
        for (; left != 0; left &= left - 1) {
            const size_t g = (size_t)__builtin_ctz(left), from = at + g * group;
            tsr_encode_e2m1_bf16_rare(x + from, group, t[g], rounding, packed + from / 2);
        }
    }
    tsr_encode_e2m1_bf16_ref(x + whole, n - whole, group, t, rounding, packed + whole / 2);
}

/* ---- E2M1 of FP32: quotients and comparisons ---- */

vec count_above(vec code, vf size, float tie, bool beyond)
{
    const __m256 bound = _mm256_set1_ps(tie);
    const __m256 more = beyond ? _mm256_cmp_ps(size, bound, _CMP_GT_OQ) : _mm256_cmp_ps(size, bound, _CMP_GE_OQ);
    return _mm256_sub_epi32(code, _mm256_castps_si256(more));
}

/* Returns 4 bytes of 8 quotients. */
ALWAYS_INLINE uint32_t bytes_of(__m256 q, bool down)
{
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), q), zero = _mm256_setzero_ps();
    __m256i code = codes_of_sizes(size, _mm256_setzero_si256(), down);
    const __m256 minus = down ? _mm256_cmp_ps(q, zero, _CMP_LE_OQ) : _mm256_cmp_ps(q, zero, _CMP_LT_OQ);
    code = _mm256_or_si256(code, _mm256_and_si256(_mm256_castps_si256(minus), _mm256_set1_epi32(8)));
    const __m256i pairs = _mm256_or_si256(code, _mm256_srli_epi64(code, 28)); /* one byte in each 64 bits */
    const __m256i dense = _mm256_shuffle_epi8(pairs, _mm256_set1_epi16(0x0800));
    return ((uint32_t)_mm256_extract_epi16(dense, 0) & 0xFFFF) | (uint32_t)_mm256_extract_epi16(dense, 8) << 16;
}

void encode_f32(const float *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding, uint8_t *packed)
{
    for (size_t at = 0; at < n; at += group, t++) {
        const __m256 scale = _mm256_set1_ps(*t);
        const __m256 unusable = _mm256_cmp_ps(scale, _mm256_setzero_ps(), _CMP_EQ_OQ); /* the quotients count as 0 */
        for (size_t i = at; i < at + group; i += 8) {
            const __m256 exact = _mm256_andnot_ps(unusable, _mm256_div_ps(_mm256_loadu_ps(x + i), scale));
            const __m256 q = rounding == TSR_E2M1_EVEN_BF16 ? to_bf16(exact) : exact;
            const uint32_t bytes = bytes_of(q, rounding == TSR_E2M1_DOWN);
            __builtin_memcpy(packed + i / 2, &bytes, sizeof bytes);
        }
    }
}

/* ---- MXFP8 ---- */

/* Converts 16 numbers above 2^(scale - 127 - 7), whose bits are `base`, to codes of 8 and more. */
ALWAYS_INLINE __m256i normal_codes(__m256i x, __m256i base)
{
    const __m256i v = _mm256_sub_epi16(_mm256_and_si256(x, _mm256_set1_epi16(INT16_MAX)), base);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi16(1));
    const __m256i rounded = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(v, _mm256_set1_epi16(7)), odd), 4);
    const __m256i code = _mm256_min_epu16(rounded, _mm256_set1_epi16(0x7E));
    return _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi16(x, 8), _mm256_set1_epi16(0x80)));
}

/* Returns by how much the numbers' bits exceed 2^(scale - 127 - 6), as unsigned words. */
ALWAYS_INLINE __m256i above(__m256i x, __m256i base)
{
    const __m256i u = _mm256_and_si256(x, _mm256_set1_epi16(INT16_MAX));
    return _mm256_sub_epi16(u, _mm256_add_epi16(base, _mm256_set1_epi16(1 << 7)));
}

void tsr_encode_mxfp8_bf16_avx2(const uint16_t *x, size_t n, const uint8_t *scales, uint8_t *codes)
{
    const __m256i extent = _mm256_set1_epi16(15 * 128 - 1); /* up to 2^9; larger sums could exceed a byte */
    for (size_t i = 0; i < n; i += 32, scales++) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(x + i));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(x + i + 16));
        const __m256i base = _mm256_set1_epi16((short)((*scales - 7) * 128));
        const __m256i others = _mm256_subs_epu16(_mm256_max_epu16(above(a, base), above(b, base)), extent);
        _mm_prefetch((const char *)(x + n + i), _MM_HINT_T0); /* the next row is assumed to follow */
        if (__builtin_expect(!_mm256_testz_si256(others, others) || *scales < 8 || *scales > 240, 0)) {
            const uint32_t bits = *scales == 0 ? 1u << 22 : (uint32_t)*scales << 23;
            float scale;
            __builtin_memcpy(&scale, &bits, sizeof scale);
            tsr_encode_e4m3_bf16_avx2(x + i, 1, 32, 32, 32, &scale, codes + i, 32);
            continue;
        }
        const __m256i mixed = _mm256_packus_epi16(normal_codes(a, base), normal_codes(b, base));
        _mm256_storeu_si256((__m256i *)(codes + i), _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0)));
    }
}
