/* Decodes e4m3 with AVX2 and F16C: to BF16 by table, to F16 and F32 by arithmetic. */
#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/e4m3_bf16.h"

/* ---- BF16 ---- */

ALWAYS_INLINE bool look_up(const uint8_t *codes, size_t n, const table *t, uint16_t *y)
{
    bool nan = false;
    size_t c = 0;
    for (; c + 32 <= n; c += 32)
        nan |= look_up_32(codes + c, t, y + c);
    return c < n ? compute(codes + c, n - c, t->scale, y + c) || nan : nan;
}

bool tsr_decode_e4m3_bf16_avx2(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                               const float *scales, uint16_t *y, size_t ld)
{
    return decode_band(look_up, codes, rows, cols, ld_codes, block_cols, scales, y, ld);
}

/* ---- F16, F32 ---- */

static inline void store_f16(void *y, __m256 x)
{
    _mm_storeu_si128(y, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline void store_f32(void *y, __m256 x)
{
    _mm256_storeu_ps(y, x);
}

/* Tails go through a buffer of one vector. */
#define DECODE(name, type, store)                                                                       \
    bool tsr_decode_e4m3_##name##_avx2(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, \
                                       size_t block_cols, const float *scales, type *y, size_t ld)      \
    {                                                                                                   \
        __m256 nan = _mm256_setzero_ps();                                                               \
        for (size_t r = 0; r < rows; r++, codes += ld_codes, y += ld) {                                 \
            for (size_t first = 0, b = 0; first < cols; first += block_cols, b++) {                     \
                const __m256 scale = _mm256_set1_ps(scales[b]);                                         \
                const size_t end = cols - first < block_cols ? cols : first + block_cols;               \
                size_t c = first;                                                                       \
                for (; c + 8 <= end; c += 8) {                                                          \
                    const eight e = load_eight(codes + c);                                              \
                    nan = _mm256_or_ps(nan, e.nan);                                                     \
                    store(y + c, scaled(e, scale));                                                     \
                }                                                                                       \
                if (c < end) {                                                                          \
                    uint8_t in[8] = {0};                                                                \
                    type out[8];                                                                        \
                    memcpy(in, codes + c, end - c);                                                     \
                    const eight e = load_eight(in);                                                     \
                    nan = _mm256_or_ps(nan, e.nan);                                                     \
                    store(out, scaled(e, scale));                                                       \
                    memcpy(y + c, out, (end - c) * sizeof *out);                                        \
                }                                                                                       \
            }                                                                                           \
        }                                                                                               \
        return _mm256_movemask_ps(nan) != 0;                                                            \
    }

DECODE(f16, uint16_t, store_f16)
DECODE(f32, float, store_f32)
