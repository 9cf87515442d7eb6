/* Splits elements into byte planes and joins them: 16 elements at a time with SSE2, the rest one by one. */
#include "formats/checkpoint/byte_planes.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

static inline __m128i load(const uint8_t *from)
{
    return _mm_loadu_si128((const __m128i *)from);
}

static inline void store(uint8_t *to, __m128i x)
{
    _mm_storeu_si128((__m128i *)to, x);
}

/* Returns the even bytes of 32 bytes; the next function returns the odd ones. */
static inline __m128i even_bytes(__m128i a, __m128i b)
{
    const __m128i low = _mm_set1_epi16(0xFF);
    return _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
}

static inline __m128i odd_bytes(__m128i a, __m128i b)
{
    return _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
}

static size_t split_2(const uint8_t *from, size_t n, uint8_t *to)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i a = load(from + 2 * i), b = load(from + 2 * i + 16);
        store(to + i, even_bytes(a, b));
        store(to + n + i, odd_bytes(a, b));
    }
    return i;
}

static size_t split_4(const uint8_t *from, size_t n, uint8_t *to)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i a = load(from + 4 * i), b = load(from + 4 * i + 16);
        const __m128i c = load(from + 4 * i + 32), d = load(from + 4 * i + 48);
        const __m128i even_ab = even_bytes(a, b), even_cd = even_bytes(c, d);
        const __m128i odd_ab = odd_bytes(a, b), odd_cd = odd_bytes(c, d);
        store(to + i, even_bytes(even_ab, even_cd));
        store(to + n + i, even_bytes(odd_ab, odd_cd));
        store(to + 2 * n + i, odd_bytes(even_ab, even_cd));
        store(to + 3 * n + i, odd_bytes(odd_ab, odd_cd));
    }
    return i;
}

static size_t join_2(const uint8_t *from, size_t n, uint8_t *to)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i low = load(from + i), high = load(from + n + i);
        store(to + 2 * i, _mm_unpacklo_epi8(low, high));
        store(to + 2 * i + 16, _mm_unpackhi_epi8(low, high));
    }
    return i;
}

static size_t join_4(const uint8_t *from, size_t n, uint8_t *to)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i p0 = load(from + i), p1 = load(from + n + i);
        const __m128i p2 = load(from + 2 * n + i), p3 = load(from + 3 * n + i);
        const __m128i low_a = _mm_unpacklo_epi8(p0, p1), low_b = _mm_unpackhi_epi8(p0, p1);
        const __m128i high_a = _mm_unpacklo_epi8(p2, p3), high_b = _mm_unpackhi_epi8(p2, p3);
        store(to + 4 * i, _mm_unpacklo_epi16(low_a, high_a));
        store(to + 4 * i + 16, _mm_unpackhi_epi16(low_a, high_a));
        store(to + 4 * i + 32, _mm_unpacklo_epi16(low_b, high_b));
        store(to + 4 * i + 48, _mm_unpackhi_epi16(low_b, high_b));
    }
    return i;
}

#else
static size_t none(const uint8_t *from, size_t n, uint8_t *to)
{
    (void)from, (void)n, (void)to;
    return 0;
}
#define split_2 none
#define split_4 none
#define join_2  none
#define join_4  none
#endif

void tsr_byte_planes_split(const uint8_t *from, size_t size, unsigned width, uint8_t *to)
{
    const size_t n = size / width;
    for (size_t i = width == 2 ? split_2(from, n, to) : width == 4 ? split_4(from, n, to) : 0; i < n; i++) {
        for (size_t p = 0; p < width; p++)
            to[p * n + i] = from[i * width + p];
    }
    memcpy(to + n * width, from + n * width, size - n * width);
}

void tsr_byte_planes_join(const uint8_t *from, size_t size, unsigned width, uint8_t *to)
{
    const size_t n = size / width;
    for (size_t i = width == 2 ? join_2(from, n, to) : width == 4 ? join_4(from, n, to) : 0; i < n; i++) {
        for (size_t p = 0; p < width; p++)
            to[i * width + p] = from[p * n + i];
    }
    memcpy(to + n * width, from + n * width, size - n * width);
}
