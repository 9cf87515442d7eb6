/* Error sums of microscaled codes with AVX2, 8 groups at a time. mx_error_avx512.c explains the method. */
#include <immintrin.h>

enum { TOGETHER = 8 };
typedef __m256 lanes;

#define TSR_MX_ERROR(name) tsr_##name##_avx2
#include "kernels/cpu/x86/mx_error_body.h"

/* ---- 16 columns ---- */

typedef struct columns {
    __m256 even, odd;
} columns;

ALWAYS_INLINE columns load(const row *r, size_t i)
{
    if (r->bf16) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)((const uint16_t *)r->x + i));
        return (columns){_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                         _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xFFFF0000u)))};
    }
    const __m256 a = _mm256_loadu_ps((const float *)r->x + i), b = _mm256_loadu_ps((const float *)r->x + i + 8);
    const __m256d evens = _mm256_castps_pd(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
    const __m256d odds = _mm256_castps_pd(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    return (columns){_mm256_castpd_ps(_mm256_permute4x64_pd(evens, _MM_SHUFFLE(3, 1, 2, 0))),
                     _mm256_castpd_ps(_mm256_permute4x64_pd(odds, _MM_SHUFFLE(3, 1, 2, 0)))};
}

/* Returns the values of 8 E4M3 codes in the upper bytes of the lanes. The lower bytes are ignored. */
ALWAYS_INLINE __m256 e4m3_values(__m256i codes)
{
    const __m256i moved = _mm256_and_si256(_mm256_srai_epi32(codes, 4), _mm256_set1_epi32((int)0x87F00000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(moved), _mm256_set1_ps(0x1p120f));
}

/* Returns the values of 8 E2M1 codes in the lowest bits of the lanes. `signs` has the codes in the highest bits. */
ALWAYS_INLINE __m256 e2m1_values(__m256i codes, __m256i signs)
{
    const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i sign = _mm256_and_si256(signs, _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign));
}

ALWAYS_INLINE columns values(const row *r, size_t i)
{
    if (r->e4m3) {
        const __m256i codes = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(r->codes + i)));
        return (columns){e4m3_values(_mm256_slli_epi32(codes, 24)), e4m3_values(_mm256_slli_epi32(codes, 16))};
    }
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(r->codes + i / 2)));
    return (columns){e2m1_values(codes, _mm256_slli_epi32(codes, 28)),
                     e2m1_values(_mm256_srli_epi32(codes, 4), _mm256_slli_epi32(codes, 24))};
}

/* ---- 8 groups ---- */

typedef struct units {
    float unit[TOGETHER], inverse[TOGETHER], boost[TOGETHER];
} units;

/* Computes the units. Returns true if any k is not 1. */
static inline bool make_units(const float *t_of, units *u)
{
    const __m256 one = _mm256_set1_ps(1), t = _mm256_loadu_ps(t_of);
    const __m256 zero = _mm256_cmp_ps(t, _mm256_setzero_ps(), _CMP_EQ_OQ);
    const __m256 unit = _mm256_blendv_ps(t, _mm256_set1_ps(0x1p-149f), zero);
    const __m256 tiny = _mm256_cmp_ps(unit, _mm256_set1_ps(0x1p-100f), _CMP_LT_OQ);
    const __m256 boost = _mm256_blendv_ps(one, _mm256_set1_ps(0x1p64f), tiny);
    _mm256_storeu_ps(u->unit, unit);
    _mm256_storeu_ps(u->boost, boost);
    _mm256_storeu_ps(u->inverse, _mm256_div_ps(one, _mm256_mul_ps(unit, boost)));
    return _mm256_movemask_ps(tiny) != 0;
}

typedef int place;

#define unit_of(u, g)    _mm256_broadcast_ss(&(u)->unit[g])
#define inverse_of(u, g) _mm256_broadcast_ss(&(u)->inverse[g])
#define boost_of(u, g)   _mm256_broadcast_ss(&(u)->boost[g])

ALWAYS_INLINE __m256 larger_size(__m256 a, __m256 b)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_max_ps(_mm256_andnot_ps(sign, a), _mm256_andnot_ps(sign, b));
}

#define OP(name) _mm256_##name
#include "kernels/cpu/x86/mx_error_compare.h"

ALWAYS_INLINE __m256 sums_of(const __m256 p[TOGETHER])
{
    const __m256 a = add_quads(add_pairs(p[0], p[1]), add_pairs(p[2], p[3]));
    const __m256 b = add_quads(add_pairs(p[4], p[5]), add_pairs(p[6], p[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

ALWAYS_INLINE void measure8(const row *r, size_t at, size_t group, const units *u, bool boosted, lanes *largest,
                            lanes sums[3])
{
    __m256 q2[TOGETHER], e2[TOGETHER], qv[TOGETHER];
    for (int g = 0; g < TOGETHER; g++, at += group) {
        const products a = compare(r, at, u, g, boosted, largest);
        q2[g] = a.q2;
        e2[g] = a.e2;
        qv[g] = a.qv;
        if (group == 16)
            continue;
        const products b = compare(r, at + 16, u, g, boosted, largest);
        q2[g] = _mm256_add_ps(q2[g], b.q2);
        e2[g] = _mm256_add_ps(e2[g], b.e2);
        qv[g] = _mm256_add_ps(qv[g], b.qv);
    }
    sums[0] = sums_of(q2);
    sums[1] = sums_of(e2);
    sums[2] = sums_of(qv);
}

/* Stores the first n lanes to `out`. */
ALWAYS_INLINE void store(lanes x, float *out, size_t n)
{
    float all[TOGETHER];
    _mm256_storeu_ps(n == TOGETHER ? out : all, x);
    if (n < TOGETHER)
        memcpy(out, all, n * sizeof *out);
}

void measure_groups(const row *r, size_t at, size_t group, const float *t, size_t g, size_t n, lanes *largest,
                    tsr_mx_error *error)
{
    units u;
    lanes sums[3];
    if (make_units(t, &u))
        measure8(r, at, group, &u, true, largest, sums);
    else
        measure8(r, at, group, &u, false, largest, sums);
    store(sums[0], error->q2 + g, n);
    store(sums[1], error->e2 + g, n);
    store(sums[2], error->qv + g, n);
}

lanes no_error(void)
{
    return _mm256_setzero_ps();
}

float largest_of(lanes x)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/* ---- counts ---- */

uint64_t count_codes(const uint8_t *codes, size_t bytes, bool e4m3)
{
    const uint8_t low = e4m3 ? 0x7F : 0x07, high = e4m3 ? 0 : 0x70;
    const __m256i lows = _mm256_set1_epi8((char)low), highs = _mm256_set1_epi8((char)high);
    const __m256i zero = _mm256_setzero_si256();
    uint64_t zeros = 0;
    size_t i = 0;
    for (; i + 32 <= bytes; i += 32) {
        const __m256i some = _mm256_loadu_si256((const __m256i *)(codes + i));
        const __m256i no_low = _mm256_cmpeq_epi8(_mm256_and_si256(some, lows), zero);
        const __m256i no_high = _mm256_cmpeq_epi8(_mm256_and_si256(some, highs), zero);
        zeros += (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(no_low)) +
                 (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(no_high));
    }
    uint64_t found = 2 * i - zeros;
    for (; i < bytes; i++)
        found += ((codes[i] & low) != 0) + ((codes[i] & high) != 0);
    return found;
}

uint64_t count_elements(const row *r, size_t n)
{
    const __m256i zero = _mm256_setzero_si256();
    uint64_t zero_bytes = 0;
    for (size_t i = 0; i < n; i += r->bf16 ? 16 : 8) {
        const char *const at = (const char *)r->x + i * (r->bf16 ? sizeof(uint16_t) : sizeof(float));
        const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)at);
        const __m256i none = r->bf16 ? _mm256_cmpeq_epi16(_mm256_add_epi16(x, x), zero)
                                     : _mm256_cmpeq_epi32(_mm256_add_epi32(x, x), zero);
        zero_bytes += (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(none));
    }
    return n - zero_bytes / (r->bf16 ? sizeof(uint16_t) : sizeof(float));
}
