/* Error sums of microscaled codes with AVX-512, 16 groups at a time. Even and odd columns use separate registers, which
 * suits the halves of a BF16 pair and the nibbles of a byte. One transposition gives the sums of all groups. */
#include <immintrin.h>

enum { TOGETHER = 16, ACROSS = TOGETHER / 2 };
typedef __m512 lanes;

#define TSR_MX_ERROR(name) tsr_##name##_avx512
#include "kernels/cpu/x86/mx_error_body.h"

/* ---- 32 columns ---- */

typedef struct columns {
    __m512 even, odd;
} columns;

ALWAYS_INLINE columns load(const row *r, size_t i)
{
    if (r->bf16) {
        const __m512i x = _mm512_loadu_si512((const uint16_t *)r->x + i);
        return (columns){_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                         _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xFFFF0000u)))};
    }
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_or_si512(evens, _mm512_set1_epi32(1));
    const __m512 a = _mm512_loadu_ps((const float *)r->x + i), b = _mm512_loadu_ps((const float *)r->x + i + 16);
    return (columns){_mm512_permutex2var_ps(a, evens, b), _mm512_permutex2var_ps(a, odds, b)};
}

/* Returns the values of 16 E4M3 codes in the upper bytes of the lanes. The lower bytes are ignored. */
ALWAYS_INLINE __m512 e4m3_values(__m512i codes)
{
    const __m512i moved = _mm512_and_si512(_mm512_srai_epi32(codes, 4), _mm512_set1_epi32((int)0x87F00000u));
    return _mm512_mul_ps(_mm512_castsi512_ps(moved), _mm512_set1_ps(0x1p120f));
}

ALWAYS_INLINE columns values(const row *r, size_t i)
{
    if (r->e4m3) {
        const __m512i codes = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(r->codes + i)));
        return (columns){e4m3_values(_mm512_slli_epi32(codes, 24)), e4m3_values(_mm512_slli_epi32(codes, 16))};
    }
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(r->codes + i / 2)));
    return (columns){_mm512_permutexvar_ps(codes, table), _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table)};
}

/* ---- 16 groups ---- */

/* One lane for each of 16 groups. */
typedef struct units {
    __m512 unit, inverse, boost;
} units;

static inline units units_of(const float *t_of)
{
    const __m512 one = _mm512_set1_ps(1), t = _mm512_loadu_ps(t_of);
    const __mmask16 zero = _mm512_cmp_ps_mask(t, _mm512_setzero_ps(), _CMP_EQ_OQ);
    const __m512 unit = _mm512_mask_mov_ps(t, zero, _mm512_set1_ps(0x1p-149f));
    const __mmask16 tiny = _mm512_cmp_ps_mask(unit, _mm512_set1_ps(0x1p-100f), _CMP_LT_OQ);
    const __m512 boost = _mm512_mask_mov_ps(one, tiny, _mm512_set1_ps(0x1p64f));
    return (units){unit, _mm512_div_ps(one, _mm512_mul_ps(unit, boost)), boost};
}

typedef __m512i place; /* the group of each lane: 32 columns may belong to two */

#define unit_of(u, of)    _mm512_permutexvar_ps(of, (u)->unit)
#define inverse_of(u, of) _mm512_permutexvar_ps(of, (u)->inverse)
#define boost_of(u, of)   _mm512_permutexvar_ps(of, (u)->boost)
#define larger_size(a, b) _mm512_range_ps(a, b, 0xB)

#define OP(name) _mm512_##name
#include "kernels/cpu/x86/mx_error_compare.h"

/* Adds halves: the lanes of a and b, which hold 16 numbers of a group each, become 8 and 8. */
ALWAYS_INLINE __m512 halved(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(1, 0, 1, 0)),
                         _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 2, 3, 2)));
}

/* Returns the sums of 16 groups, two in each register. */
ALWAYS_INLINE __m512 sums_of(const __m512 p[ACROSS])
{
    const __m512 a = add_quads(add_pairs(p[0], p[1]), add_pairs(p[2], p[3]));
    const __m512 b = add_quads(add_pairs(p[4], p[5]), add_pairs(p[6], p[7]));
    const __m512 mixed = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(2, 0, 2, 0)),
                                       _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    return _mm512_permutexvar_ps(order, mixed);
}

ALWAYS_INLINE products measure16(const row *r, size_t at, size_t group, const units *u, bool boosted, __m512 *largest)
{
    __m512 q2[ACROSS], e2[ACROSS], qv[ACROSS];
    for (int i = 0; i < ACROSS; i++, at += 2 * group) {
        const __m512i lane = _mm512_set1_epi32(2 * i), next = _mm512_set1_epi32(2 * i + 1);
        if (group == 16) {
            const __m512i both = _mm512_mask_mov_epi32(lane, 0xFF00, next);
            const products p = compare(r, at, u, both, boosted, largest);
            q2[i] = p.q2;
            e2[i] = p.e2;
            qv[i] = p.qv;
            continue;
        }
        const products a = compare(r, at, u, lane, boosted, largest);
        const products b = compare(r, at + 32, u, next, boosted, largest);
        q2[i] = halved(a.q2, b.q2);
        e2[i] = halved(a.e2, b.e2);
        qv[i] = halved(a.qv, b.qv);
    }
    return (products){sums_of(q2), sums_of(e2), sums_of(qv)};
}

void measure_groups(const row *r, size_t at, size_t group, const float *t, size_t g, size_t n, lanes *largest,
                    tsr_mx_error *error)
{
    const units u = units_of(t);
    const __mmask16 live = (__mmask16)((1u << n) - 1);
    const bool boosted = _mm512_cmp_ps_mask(u.boost, _mm512_set1_ps(1), _CMP_NEQ_OQ) != 0;
    const products s =
        boosted ? measure16(r, at, group, &u, true, largest) : measure16(r, at, group, &u, false, largest);
    _mm512_mask_storeu_ps(error->q2 + g, live, s.q2);
    _mm512_mask_storeu_ps(error->e2 + g, live, s.e2);
    _mm512_mask_storeu_ps(error->qv + g, live, s.qv);
}

lanes no_error(void)
{
    return _mm512_setzero_ps();
}

float largest_of(lanes x)
{
    return _mm512_reduce_max_ps(x);
}

/* ---- counts ---- */

uint64_t count_codes(const uint8_t *codes, size_t bytes, bool e4m3)
{
    const __m512i low = _mm512_set1_epi8(e4m3 ? 0x7F : 0x07), high = _mm512_set1_epi8(e4m3 ? 0 : 0x70);
    uint64_t found = 0;
    for (size_t i = 0; i < bytes; i += 64) {
        const __mmask64 live = bytes - i >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (bytes - i)) - 1;
        const __m512i some = _mm512_maskz_loadu_epi8(live, codes + i);
        found += (uint64_t)__builtin_popcountll(_mm512_test_epi8_mask(some, low)) +
                 (uint64_t)__builtin_popcountll(_mm512_test_epi8_mask(some, high));
    }
    return found;
}

/* Processes 32 lanes at a time: gcc 12 may store a 16-bit mask as a word and count a dword. */
uint64_t count_elements(const row *r, size_t n)
{
    uint64_t found = 0;
    for (size_t i = 0; i < n; i += 32) {
        const __mmask32 live = n - i >= 32 ? ~(__mmask32)0 : ((__mmask32)1 << (n - i)) - 1;
        if (r->bf16) {
            const __m512i x = _mm512_maskz_loadu_epi16(live, (const uint16_t *)r->x + i);
            found += (uint64_t)__builtin_popcount(_mm512_test_epi16_mask(x, _mm512_set1_epi16(INT16_MAX)));
        } else {
            const __m512i some = _mm512_set1_epi32(INT32_MAX);
            const float *const at = (const float *)r->x + i;
            const __m512i low = _mm512_maskz_loadu_epi32((__mmask16)live, at);
            const __m512i high = _mm512_maskz_loadu_epi32((__mmask16)(live >> 16), at + 16);
            const __mmask32 both =
                _mm512_kunpackw(_mm512_test_epi32_mask(high, some), _mm512_test_epi32_mask(low, some));
            found += (uint64_t)__builtin_popcount(both);
        }
    }
    return found;
}
