/* Encodes microscaling formats with AVX-512.
 *
 * E2M1 codes of BF16 need no division per value. The code of |x| is the number of bounds that it reaches, out of 7: the
 * ties of E2M1 times t. In BF16's bits the bounds of a group are
 *     B(0.25), B(0.75), B(1.25), B(1.75), and again B(1.25), B(1.75), B(1.25), one and two exponents higher,
 * because doubling x doubles the quotient. The four are computed for 16 groups at a time, with the exact quotients of
 * the numbers next to each tie, so that the codes are those of the IEEE quotient. This holds while bounds are normal
 * numbers and no quotient is subnormal; other groups are left to the definition. */
#include "kernels/cpu/x86/e4m3_avx512.h"

enum { TOGETHER = 16, STEP = 128 }; /* groups whose bounds are computed together; values that are packed together */

enum { AT_A_TIME = 16 };
#define TSR_MX_CODES(name) tsr_##name##_avx512
#include "kernels/cpu/x86/mx_codes_body.h"

static inline __mmask16 live_of(size_t n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

/* ---- scales ---- */

void tsr_scale_e8m0_avx512(const uint32_t *amax, size_t n, uint32_t limit, int emax, uint8_t *scales, float *t)
{
    const __m512i mantissa = _mm512_set1_epi32(0x7FFFFF), most = _mm512_set1_epi32((int)limit);
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 live = live_of(n - i);
        const __m512i x = _mm512_maskz_loadu_epi32(live, amax + i);
        const __mmask16 above = _mm512_cmpgt_epu32_mask(_mm512_and_si512(x, mantissa), most);
        const __m512i base = _mm512_sub_epi32(_mm512_srli_epi32(x, 23), _mm512_set1_epi32(emax));
        const __m512i raised = _mm512_mask_add_epi32(base, above, base, _mm512_set1_epi32(1));
        const __m512i scale = _mm512_max_epi32(raised, _mm512_setzero_si512());
        const __mmask16 zero = _mm512_testn_epi32_mask(scale, scale);
        const __m512i power = _mm512_mask_mov_epi32(_mm512_slli_epi32(scale, 23), zero, _mm512_set1_epi32(1 << 22));
        _mm_mask_storeu_epi8(scales + i, live, _mm512_cvtepi32_epi8(scale));
        _mm512_mask_storeu_epi32(t + i, live, power);
    }
}

static inline __m512 to_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32((int)0xFFFF0000u)));
}

typedef __m512i vec;
typedef __m512 vf;
#define OP(name) _mm512_##name
#include "kernels/cpu/x86/mx_codes_shared.h"

void tsr_scale_nvfp4_avx512(const uint32_t *amax, size_t n, const tsr_nvfp4_recipe *recipe, uint8_t *scales, float *t)
{
    const __m512 global = _mm512_set1_ps(recipe->global);
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 live = live_of(n - i);
        const __m512 x = _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(live, amax + i));
        const __m512 s = nvfp4_quotient(x, recipe, global);
        const __m512i made = codes_of(s), none = recipe->multiplies ? _mm512_castps_si512(x) : made;
        const __m512i code = _mm512_mask_mov_epi32(made, _mm512_testn_epi32_mask(none, none),
                                                   _mm512_set1_epi32(recipe->multiplies ? 0x38 : 0x20));
        const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(code, 20)), _mm512_set1_ps(0x1p120f));
        _mm_mask_storeu_epi8(scales + i, live, _mm512_cvtepi32_epi8(code));
        _mm512_mask_storeu_ps(t + i, live,
                              recipe->multiplies ? _mm512_mul_ps(value, global) : _mm512_div_ps(value, global));
    }
}

/* ---- E2M1 ---- */

/* Rounding bounds of 16 groups as BF16, twice in each lane. Those of 1.25 and 1.75 have an exponent one lower, so that
 * the difference counts the bounds that a number reaches. */
typedef struct bounds {
    _Alignas(64) uint32_t quarter[TOGETHER], three_quarters[TOGETHER], low[TOGETHER], high[TOGETHER];
} bounds;

/* Computes the rounded quotient from the reciprocal of t with one correction (as in int_quant_avx512.c). */
static inline __m512 quotient(__m512 x, __m512 t, __m512 inverse)
{
    const __m512 product = _mm512_mul_ps(x, inverse), rest = _mm512_fnmadd_ps(product, t, x);
    return _mm512_fmadd_ps(rest, inverse, product);
}

/* Returns the smallest BF16 whose quotient reaches c, or exceeds it if `beyond`: its bits minus `less`, twice in a
 * lane. */
static inline __m512i bound_of(__m512 t, __m512 inverse, float c, bool beyond, int less)
{
    const __m512 tie = _mm512_set1_ps(c);
    const __m512i below =
        _mm512_and_si512(_mm512_castps_si512(_mm512_mul_ps(t, tie)), _mm512_set1_epi32((int)0xFFFF0000u));
    const __m512i next = _mm512_add_epi32(below, _mm512_set1_epi32(1 << 16));
    const __m512 q = quotient(_mm512_castsi512_ps(below), t, inverse);
    const __m512i one = _mm512_set1_epi32(1);
    __m512i found = _mm512_sub_epi32(_mm512_srli_epi32(below, 16), _mm512_set1_epi32(less));
    if (beyond) {
        const __m512 q_next = quotient(_mm512_castsi512_ps(next), t, inverse);
        found = _mm512_mask_add_epi32(found, _mm512_cmp_ps_mask(q, tie, _CMP_LE_OQ), found, one);
        found = _mm512_mask_add_epi32(found, _mm512_cmp_ps_mask(q_next, tie, _CMP_LE_OQ), found, one);
    } else {
        found = _mm512_mask_add_epi32(found, _mm512_cmp_ps_mask(q, tie, _CMP_LT_OQ), found, one);
    }
    return _mm512_or_si512(found, _mm512_slli_epi32(found, 16));
}

/* Computes the bounds of n groups. Returns a mask of those that are left to the definition. */
static inline __mmask16 make_bounds(const float *t_of, size_t n, bool down, bounds *b)
{
    const __m512 one = _mm512_set1_ps(1), t = _mm512_mask_loadu_ps(one, live_of(n), t_of);
    const __m512 inverse = _mm512_div_ps(one, t);
    _mm512_store_si512(b->quarter, bound_of(t, inverse, 0.25f, true, 0));
    _mm512_store_si512(b->three_quarters, bound_of(t, inverse, 0.75f, down, 0));
    _mm512_store_si512(b->low, bound_of(t, inverse, 1.25f, true, 128));
    _mm512_store_si512(b->high, bound_of(t, inverse, 1.75f, down, 128));
    return (__mmask16) ~(_mm512_cmp_ps_mask(t, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ) &
                         _mm512_cmp_ps_mask(t, one, _CMP_LE_OQ));
}

/* Returns the bound of group g, or that of g for the first 16 values and of g + 1 for the others. */
ALWAYS_INLINE __m512i spread(const uint32_t *bound, size_t g, bool two)
{
    const __m512i first = _mm512_set1_epi32((int)bound[g]);
    return two ? _mm512_mask_set1_epi32(first, 0xFF00, (int)bound[g + 1]) : first;
}

/* Returns codes of 32 values, one word each. */
ALWAYS_INLINE __m512i codes32(__m512i x, const bounds *b, size_t g, bool two, bool down)
{
    const __m512i one = _mm512_set1_epi16(1), u = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
    const __m512i low = _mm512_srli_epi16(_mm512_subs_epu16(u, spread(b->low, g, two)), 7);
    const __m512i high = _mm512_srli_epi16(_mm512_subs_epu16(u, spread(b->high, g, two)), 7);
    __m512i code =
        _mm512_add_epi16(_mm512_min_epu16(low, _mm512_set1_epi16(3)), _mm512_min_epu16(high, _mm512_set1_epi16(2)));
    code = _mm512_mask_add_epi16(code, _mm512_cmpge_epu16_mask(u, spread(b->quarter, g, two)), code, one);
    code = _mm512_mask_add_epi16(code, _mm512_cmpge_epu16_mask(u, spread(b->three_quarters, g, two)), code, one);
    /* A negative number other than zero; when rounding down, anything that is not positive. */
    const __mmask32 minus = down ? _mm512_cmpge_epu16_mask(_mm512_sub_epi16(x, one), _mm512_set1_epi16(0x7FFF))
                                 : _mm512_cmpgt_epu16_mask(x, _mm512_set1_epi16(INT16_MIN));
    return _mm512_mask_add_epi16(code, minus, code, _mm512_set1_epi16(8));
}

/* The same if t is a power of two: the ties have the same mantissas in every group, so one table serves all. `base` is
 * the bits of t / 4, from which v counts. A code may begin at every multiple of 32 steps, or one step later: a tie to
 * even belongs to the previous code if that is even. */
ALWAYS_INLINE __m512i codes32_by_table(__m512i x, uint32_t base, bool down)
{
    const __m512i one = _mm512_set1_epi16(1), u = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
    const __m512i v = _mm512_min_epu16(_mm512_subs_epu16(u, _mm512_set1_epi32((int)base)), _mm512_set1_epi16(900));
    const __m512i up = _mm512_add_epi16(v, _mm512_set1_epi16(31));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(v, 6), one);
    const __m512i place = _mm512_srli_epi16(down ? up : _mm512_add_epi16(up, odd), 5);
    const __m512i table = _mm512_set_epi16(7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 1,
                                           1, 1, 1, 1, 1, 0);
    const __m512i code = _mm512_permutexvar_epi16(place, table);
    const __mmask32 minus = down ? _mm512_cmpge_epu16_mask(_mm512_sub_epi16(x, one), _mm512_set1_epi16(0x7FFF))
                                 : _mm512_cmpgt_epu16_mask(x, _mm512_set1_epi16(INT16_MIN));
    return _mm512_mask_add_epi16(code, minus, code, _mm512_set1_epi16(8));
}

/* Packs 128 codes, one word each in four registers, to nibbles. */
ALWAYS_INLINE __m512i pack128(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i weights = _mm512_set1_epi16(0x1001); /* even + 16 * odd */
    const __m512i first = _mm512_maddubs_epi16(_mm512_packus_epi16(a, b), weights);
    const __m512i second = _mm512_maddubs_epi16(_mm512_packus_epi16(c, d), weights);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_packus_epi16(first, second));
}

/* Encodes n values, whole groups, at most TOGETHER of them. */
ALWAYS_INLINE void encode_groups(const uint16_t *x, size_t n, const bounds *b, bool two, bool down, uint8_t *packed)
{
    const size_t each = two ? 2 : 1; /* groups in a register */
    for (size_t i = 0, g = 0; i < n; i += STEP, g += 4 * each) {
        if (n - i >= STEP) {
            const __m512i codes = pack128(codes32(_mm512_loadu_si512(x + i), b, g, two, down),
                                          codes32(_mm512_loadu_si512(x + i + 32), b, g + each, two, down),
                                          codes32(_mm512_loadu_si512(x + i + 64), b, g + 2 * each, two, down),
                                          codes32(_mm512_loadu_si512(x + i + 96), b, g + 3 * each, two, down));
            _mm512_storeu_si512(packed + i / 2, codes);
            continue;
        }
        __m512i word[4] = {0};
        for (size_t j = 0; j < 4 && i + 32 * j < n; j++)
            word[j] = codes32(_mm512_maskz_loadu_epi16(first_lanes(n - i - 32 * j), x + i + 32 * j), b, g + j * each,
                              two, down);
        _mm512_mask_storeu_epi8(packed + i / 2, ((__mmask64)1 << (n - i) / 2) - 1,
                                pack128(word[0], word[1], word[2], word[3]));
    }
}

/* Encodes STEP values, four groups of 32, beginning at group g. */
ALWAYS_INLINE void encode_by_table(const uint16_t *x, const uint32_t *base, bool down, uint8_t *packed)
{
    const __m512i codes = pack128(codes32_by_table(_mm512_loadu_si512(x), base[0], down),
                                  codes32_by_table(_mm512_loadu_si512(x + 32), base[1], down),
                                  codes32_by_table(_mm512_loadu_si512(x + 64), base[2], down),
                                  codes32_by_table(_mm512_loadu_si512(x + 96), base[3], down));
    _mm512_storeu_si512(packed, codes);
}

/* Encodes 16 groups of 32 whose t are usual powers of two. Returns false if they are not; then nothing was done. */
ALWAYS_INLINE bool encode_powers(const uint16_t *x, const float *t_of, bool down, uint8_t *packed)
{
    _Alignas(64) uint32_t base[TOGETHER];
    const __m512i t = _mm512_loadu_si512(t_of);
    const __m512i low = _mm512_set1_epi32(27 << 23), high = _mm512_set1_epi32(127 << 23);
    if (_mm512_test_epi32_mask(t, _mm512_set1_epi32(0x7FFFFF)) != 0 || _mm512_cmplt_epi32_mask(t, low) != 0 ||
        _mm512_cmpgt_epi32_mask(t, high) != 0)
        return false;
    const __m512i quarter = _mm512_srli_epi32(_mm512_sub_epi32(t, _mm512_set1_epi32(2 << 23)), 16);
    _mm512_store_si512(base, _mm512_or_si512(quarter, _mm512_slli_epi32(quarter, 16)));
    for (size_t g = 0; g < TOGETHER; g += 4)
        encode_by_table(x + 32 * g, base + g, down, packed + 16 * g);
    return true;
}

void encode_bf16(const uint16_t *x, size_t n, size_t group, const float *t, bool down, tsr_e2m1_rounding rounding,
                 uint8_t *packed)
{
    const bool two = group == 16; /* groups in a register */
    for (size_t at = 0; at < n; at += TOGETHER * group, t += TOGETHER) {
        const size_t here = n - at < TOGETHER * group ? n - at : TOGETHER * group;
        bounds b;
        prefetch_read((const char *)(x + n + at), here * sizeof *x); /* the next row is assumed to follow */
        if (!two && here == TOGETHER * group && encode_powers(x + at, t, down, packed + at / 2))
            continue;
        unsigned left = make_bounds(t, here / group, down, &b);
        encode_groups(x + at, here, &b, two, down, packed + at / 2);
        for (; left != 0; left &= left - 1) {
            const size_t g = (size_t)__builtin_ctz(left), from = at + g * group;
            tsr_encode_e2m1_bf16_rare(x + from, group, t[g], rounding, packed + from / 2);
        }
    }
}

/* ---- E2M1 of FP32: quotients and comparisons ---- */

vec count_above(vec code, vf size, float tie, bool beyond)
{
    const __m512 bound = _mm512_set1_ps(tie);
    const __mmask16 more =
        beyond ? _mm512_cmp_ps_mask(size, bound, _CMP_GT_OQ) : _mm512_cmp_ps_mask(size, bound, _CMP_GE_OQ);
    return _mm512_mask_add_epi32(code, more, code, _mm512_set1_epi32(1));
}

/* Returns 8 bytes of 16 quotients. */
ALWAYS_INLINE __m128i bytes_of(__m512 q, bool down)
{
    const __m512 size = _mm512_abs_ps(q), zero = _mm512_setzero_ps();
    __m512i code = codes_of_sizes(size, _mm512_setzero_si512(), down);
    const __mmask16 minus = down ? _mm512_cmp_ps_mask(q, zero, _CMP_LE_OQ) : _mm512_cmp_ps_mask(q, zero, _CMP_LT_OQ);
    code = _mm512_mask_add_epi32(code, minus, code, _mm512_set1_epi32(8));
    return _mm512_cvtepi64_epi8(_mm512_or_si512(code, _mm512_srli_epi64(code, 28)));
}

void encode_f32(const float *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding, uint8_t *packed)
{
    for (size_t at = 0; at < n; at += group, t++) {
        const __m512 scale = _mm512_set1_ps(*t);
        const __mmask16 usable = *t == 0 ? 0 : 0xFFFF; /* otherwise the quotients count as 0 */
        for (size_t i = at; i < at + group; i += 16) {
            const __m512 exact = _mm512_maskz_div_ps(usable, _mm512_loadu_ps(x + i), scale);
            const __m512 q = rounding == TSR_E2M1_EVEN_BF16 ? to_bf16(exact) : exact;
            _mm_storel_epi64((__m128i *)(packed + i / 2), bytes_of(q, rounding == TSR_E2M1_DOWN));
        }
    }
}

/* ---- MXFP8 ---- */

/* Converts numbers with codes of 8 and more: their bits minus those of 2^(scale - 127 - 7), shifted right by four. */
ALWAYS_INLINE __m512i normal_codes(__m512i x, __m512i base)
{
    const __m512i v = _mm512_sub_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x7FFF)), base);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi16(1));
    const __m512i rounded = _mm512_srli_epi16(_mm512_add_epi16(_mm512_add_epi16(v, _mm512_set1_epi16(7)), odd), 4);
    const __m512i code = _mm512_min_epu16(rounded, _mm512_set1_epi16(0x7E));
    /* code | (x >> 8 & 0x80) */
    return _mm512_ternarylogic_epi32(code, _mm512_srli_epi16(x, 8), _mm512_set1_epi16(0x80), 0xF8);
}

/* Returns by how much the numbers' bits exceed 2^(scale - 127 - 6), as unsigned words. */
ALWAYS_INLINE __m512i above(__m512i x, __m512i base)
{
    const __m512i u = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
    return _mm512_sub_epi16(u, _mm512_add_epi16(base, _mm512_set1_epi16(1 << 7)));
}

/* Returns the bits of 2^(scale - 127 - 7). */
ALWAYS_INLINE __m512i base_of(uint8_t scale)
{
    return _mm512_set1_epi16((short)((scale - 7) * 128));
}

/* Returns true if normal numbers with this scale have normal codes. */
ALWAYS_INLINE bool is_usual(uint8_t scale)
{
    return scale >= 8 && scale <= 240;
}

static __attribute__((noinline)) void encode_unusual(const uint16_t *x, size_t n, const uint8_t *scales, uint8_t *codes)
{
    for (size_t i = 0; i < n; i += 32) {
        const uint8_t byte = scales[i / 32];
        const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(byte == 0 ? 1 << 22 : byte << 23));
        _mm256_storeu_si256((void *)(codes + i), encode32(load32_bf16(x + i, ~0u), scale));
    }
}

void tsr_encode_mxfp8_bf16_avx512(const uint16_t *x, size_t n, const uint8_t *scales, uint8_t *codes)
{
    const __m512i extent = _mm512_set1_epi16(15 * 128 - 1); /* up to 2^9; larger sums could exceed a byte */
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    size_t i = 0;
    for (; i + 64 <= n; i += 64, scales += 2) {
        const __m512i a = _mm512_loadu_si512(x + i), b = _mm512_loadu_si512(x + i + 32);
        const __m512i base_a = base_of(scales[0]), base_b = base_of(scales[1]);
        _mm_prefetch((const char *)(x + n + i), _MM_HINT_T0); /* the next row is assumed to follow */
        _mm_prefetch((const char *)(x + n + i + 32), _MM_HINT_T0);
        const __mmask32 others = _mm512_cmpgt_epu16_mask(_mm512_max_epu16(above(a, base_a), above(b, base_b)), extent);
        if (__builtin_expect(others != 0 || !is_usual(scales[0]) || !is_usual(scales[1]), 0)) {
            encode_unusual(x + i, 64, scales, codes + i);
            continue;
        }
        const __m512i mixed = _mm512_packus_epi16(normal_codes(a, base_a), normal_codes(b, base_b));
        _mm512_storeu_si512(codes + i, _mm512_permutexvar_epi64(order, mixed));
    }
    encode_unusual(x + i, n - i, scales, codes + i);
}
