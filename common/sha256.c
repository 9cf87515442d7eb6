/* Computes SHA-256 (FIPS 180-4), with the instructions of x86-64 where the processor has them. */
#include "common/sha256.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { BLOCK = 64, ROUNDS = 64 };

static const uint32_t kRound[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* Adds `n` blocks to the state. */
static void add_blocks(uint32_t state[8], const unsigned char *data, size_t n)
{
    for (; n > 0; n--, data += BLOCK) {
        uint32_t w[ROUNDS], s[8];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 | (uint32_t)data[4 * i + 2] << 8 |
                   data[4 * i + 3];
        for (int i = 16; i < ROUNDS; i++) {
            const uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
                   (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
        }
        memcpy(s, state, sizeof s);
#pragma GCC unroll 8
        for (unsigned i = 0; i < ROUNDS; i++) {
            /* Instead of moving the eight words, each round names them one further. */
#define WORD(k) s[((k)-i) % 8]
            const uint32_t e = WORD(4u), a = WORD(0u);
            const uint32_t t = WORD(7u) + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                               ((e & WORD(5u)) ^ (~e & WORD(6u))) + kRound[i] + w[i];
            const uint32_t u = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                               ((a & WORD(1u)) ^ (a & WORD(2u)) ^ (WORD(1u) & WORD(2u)));
            WORD(3u) += t;
            WORD(7u) = t + u;
#undef WORD
        }
        for (int i = 0; i < 8; i++)
            state[i] += s[i];
    }
}

#if defined(__x86_64__)
/* Does the same with SHA-NI. */
__attribute__((target("sha,sse4.1"))) static void add_blocks_sha(uint32_t state[8], const unsigned char *data, size_t n)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    const __m128i dcba = _mm_loadu_si128((const __m128i *)state), hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (; n > 0; n--, data += BLOCK) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), order);
#pragma GCC unroll 16
        for (int i = 0; i < ROUNDS / 4; i++) {
            const __m128i now = w[i % 4];
            __m128i sum = _mm_add_epi32(now, _mm_loadu_si128((const __m128i *)(kRound + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
            /* The words of round i + 16 replace those of round i. */
            const __m128i last = w[(i + 3) % 4];
            const __m128i part =
                _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) % 4]), _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
            w[i % 4] = _mm_sha256msg2_epu32(part, last);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool has_sha(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}
#endif

typedef void add_blocks_fn(uint32_t state[8], const unsigned char *data, size_t n);

static const char *digest(add_blocks_fn *add, const void *data, size_t size, char text[TSR_SHA256_TEXT])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char end[2 * BLOCK] = {0};
    const size_t rest = size % BLOCK, n = rest < BLOCK - 8 ? BLOCK : 2 * BLOCK;
    add(state, data, size / BLOCK);
    if (rest > 0)
        memcpy(end, (const unsigned char *)data + size - rest, rest);
    end[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        end[n - 1 - (size_t)i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
    add(state, end, n / BLOCK);
    for (int i = 0; i < 8; i++)
        snprintf(text + 8 * i, 9, "%08x", (unsigned)state[i]);
    return text;
}

const char *tsr_sha256_text_plain(const void *data, size_t size, char text[TSR_SHA256_TEXT])
{
    return digest(add_blocks, data, size, text);
}

const char *tsr_sha256_text(const void *data, size_t size, char text[TSR_SHA256_TEXT])
{
#if defined(__x86_64__)
    if (has_sha())
        return digest(add_blocks_sha, data, size, text);
#endif
    return tsr_sha256_text_plain(data, size, text);
}
