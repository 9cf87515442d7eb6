/* Owns block FP8 in AVX-512: BF16 as e4m3_bands.h explains, FP32 and what that form does not serve by division, 32 columns at
 * a time, the last ones under a mask. */
#include "kernels/cpu/block_fp8.h"

#include "kernels/cpu/variants.h"
#include "kernels/cpu/x86/e4m3_avx512.h"
#include "kernels/cpu/x86/e4m3_words_avx512.h"

ALWAYS_INLINE void encode_row_by_division(const char *x, size_t cols, size_t x_bytes, load32_fn *load, float scale,
                                          uint8_t *codes)
{
    const __m512 divisor = _mm512_set1_ps(scale);
    size_t col = 0;
    for (; col + 32 <= cols; col += 32)
        _mm256_storeu_si256((void *)(codes + col), encode32(load(x + col * x_bytes, ~0u), divisor));
    if (col < cols) {
        const __mmask32 tail = first_lanes(cols - col);
        _mm256_mask_storeu_epi8(codes + col, tail, encode32(load(x + col * x_bytes, tail), divisor));
    }
}

static __attribute__((noinline)) void encode_by_division(const uint16_t *x, size_t n, float scale, uint8_t *codes)
{
    encode_row_by_division((const char *)x, n, sizeof *x, load32_bf16, scale, codes);
}

#include "kernels/cpu/x86/e4m3_look_up.h"
/* with the words, the table and the long way */
#include "kernels/cpu/x86/e4m3_bands.h"

ALWAYS_INLINE __m512i amax_row_f32(__m512i amax, const void *row, size_t cols)
{
    const float *x = row;
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (; cols >= 16; cols -= 16, x += 16)
        amax = _mm512_max_epu32(amax, _mm512_and_si512(magnitude, _mm512_loadu_si512(x)));
    const __mmask16 tail = (__mmask16)first_lanes(cols);
    return _mm512_max_epu32(amax, _mm512_and_si512(magnitude, _mm512_maskz_loadu_epi32(tail, x)));
}

void tsr_amax_bf16_avx512(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    amax_band(x, rows, cols, ld, block_cols, amax);
}

void tsr_amax_f32_avx512(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    for (size_t first = 0; first < cols; first += block_cols) {
        const size_t width = block_width(cols, first, block_cols);
        __m512i largest = _mm512_setzero_si512();
        for (size_t row = 0; row < rows; row++)
            largest = amax_row_f32(largest, x + row * ld + first, width);
        *amax++ = _mm512_reduce_max_epu32(largest);
    }
}

void tsr_encode_e4m3_bf16_avx512(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                 const float *scales, uint8_t *codes, size_t ld_codes)
{
    encode_band(x, rows, cols, ld, block_cols, scales, codes, ld_codes);
}

void tsr_encode_e4m3_f32_avx512(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                const float *scales, uint8_t *codes, size_t ld_codes)
{
    for (size_t row = 0; row < rows; row++, x += ld, codes += ld_codes) {
        for (size_t col = 0, i = 0; col < cols; col += block_cols, i++)
            encode_row_by_division((const char *)(x + col), block_width(cols, col, block_cols), sizeof *x, load32_f32,
                                   scales[i], codes + col);
    }
}

void tsr_quantize_e4m3_bf16_avx512(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                   bool power_of_two, uint32_t *amax, float *scales, uint8_t *codes, size_t ld_codes)
{
    const band b = {x, rows, cols, ld, power_of_two, codes, ld_codes};
    quantize_band(&b, block_cols, amax, scales);
}

void tsr_widen_f16_avx512(const uint16_t *x, size_t n, float *out)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(x + i))));
    }
    if (i < n) {
        const __mmask16 tail = (__mmask16)first_lanes(n - i);
        _mm512_mask_storeu_ps(out + i, tail, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tail, x + i)));
    }
}

/* 32 codes as floats. Shifted to where BF16 has its exponent, they read 2^120 too small; that holds for subnormals,
 * too. */
ALWAYS_INLINE f32x32 values_of(__m256i codes)
{
    const __m512i words = _mm512_srai_epi16(_mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8), 4);
    const f32x32 small = unpack_bf16(_mm512_and_si512(words, _mm512_set1_epi16((short)0x87F0)));
    const __m512 up = _mm512_set1_ps(0x1p120f);
    return (f32x32){_mm512_mul_ps(small.lo, up), _mm512_mul_ps(small.hi, up)};
}

typedef struct error_sums {
    __m512 k, reciprocal;
    f32x32 q2, e2, qv;
    uint64_t saturated, flushed, nonzero;
} error_sums;

typedef struct errors32 {
    f32x32 x, q, v, e;
} errors32;

ALWAYS_INLINE errors32 errors_of(const error_sums *sums, f32x32 x, f32x32 v)
{
    const f32x32 q = {_mm512_mul_ps(_mm512_mul_ps(x.lo, sums->k), sums->reciprocal),
                      _mm512_mul_ps(_mm512_mul_ps(x.hi, sums->k), sums->reciprocal)};
    return (errors32){x, q, v, {_mm512_sub_ps(q.lo, v.lo), _mm512_sub_ps(q.hi, v.hi)}};
}

ALWAYS_INLINE void add_products(f32x32 *sum, f32x32 a, f32x32 b)
{
    sum->lo = _mm512_add_ps(sum->lo, _mm512_mul_ps(a.lo, b.lo));
    sum->hi = _mm512_add_ps(sum->hi, _mm512_mul_ps(a.hi, b.hi));
}

ALWAYS_INLINE unsigned both(__mmask16 lo, __mmask16 hi)
{
    return _mm512_kunpackw(hi, lo);
}

/* The lane-wise maximum of largest and |e|. max_ps gives its second operand when one is NaN: a NaN is passed over. */
ALWAYS_INLINE __m512 larger(__m512 largest, f32x32 e)
{
    return _mm512_max_ps(_mm512_abs_ps(e.hi), _mm512_max_ps(_mm512_abs_ps(e.lo), largest));
}

ALWAYS_INLINE void count(error_sums *sums, const errors32 *at)
{
    const __m512 zero = _mm512_setzero_ps(), limit = _mm512_set1_ps(464.0f);
    const unsigned saturated = both(_mm512_cmp_ps_mask(_mm512_abs_ps(at->q.lo), limit, _CMP_GT_OQ),
                                    _mm512_cmp_ps_mask(_mm512_abs_ps(at->q.hi), limit, _CMP_GT_OQ));
    const unsigned nonzero =
        both(_mm512_cmp_ps_mask(at->x.lo, zero, _CMP_NEQ_UQ), _mm512_cmp_ps_mask(at->x.hi, zero, _CMP_NEQ_UQ));
    const unsigned zero_code =
        both(_mm512_cmp_ps_mask(at->v.lo, zero, _CMP_EQ_OQ), _mm512_cmp_ps_mask(at->v.hi, zero, _CMP_EQ_OQ));
    sums->saturated += (unsigned)_mm_popcnt_u32(saturated);
    sums->nonzero += (unsigned)_mm_popcnt_u32(nonzero);
    sums->flushed += (unsigned)_mm_popcnt_u32(nonzero & zero_code);
}

/* Lane sums in column order, added in FP64 as the reference does. */
static double add_lanes(f32x32 sums)
{
    float lo[16], hi[16];
    double total = 0;
    _mm512_storeu_ps(lo, sums.lo);
    _mm512_storeu_ps(hi, sums.hi);
    for (int column = 0; column < 32; column++) {
        const int lane = column / 8 * 4 + column % 4;
        total += (double)(column % 8 < 4 ? lo : hi)[lane];
    }
    return total;
}

/* The columns, of 32 in their order, whose bits are set in the masks of lo and hi. */
ALWAYS_INLINE uint32_t in_column_order(__mmask16 lo, __mmask16 hi)
{
    return _pdep_u32(lo, 0x0F0F0F0Fu) | _pdep_u32(hi, 0xF0F0F0F0u);
}

/* A block of elements of x_bytes, as the error functions see it. */
typedef struct error_input {
    const char *x;
    const uint8_t *codes;
    size_t rows, cols, ld_bytes, x_bytes, ld_codes;
} error_input;

ALWAYS_INLINE errors32 errors_at(const error_sums *sums, const error_input *in, load32_fn *load, size_t row, size_t col)
{
    const __mmask32 lanes = first_lanes(in->cols - col);
    return errors_of(sums, load(in->x + row * in->ld_bytes + col * in->x_bytes, lanes),
                     values_of(_mm256_maskz_loadu_epi8(lanes, in->codes + row * in->ld_codes + col)));
}

/* Finds the first |e| that equals the largest. */
ALWAYS_INLINE void locate(const error_sums *sums, const error_input *in, load32_fn *load, tsr_block_error *error)
{
    const __m512 largest = _mm512_set1_ps(error->max_e);
    for (size_t row = 0; row < in->rows; row++) {
        for (size_t col = 0; col < in->cols; col += 32) {
            const f32x32 e = errors_at(sums, in, load, row, col).e;
            const uint32_t found = in_column_order(_mm512_cmp_ps_mask(_mm512_abs_ps(e.lo), largest, _CMP_EQ_OQ),
                                                   _mm512_cmp_ps_mask(_mm512_abs_ps(e.hi), largest, _CMP_EQ_OQ));
            if (found != 0) {
                error->max_row = (uint32_t)row;
                error->max_col = (uint32_t)(col + (size_t)__builtin_ctz(found));
                return;
            }
        }
    }
}

ALWAYS_INLINE void measure(const error_input *in, load32_fn *load, float scale, tsr_block_error *error)
{
    const float k = scale < 0x1p-100f ? 0x1p64f : 1.0f;
    error_sums sums = {.k = _mm512_set1_ps(k), .reciprocal = _mm512_set1_ps(1.0f / (scale * k))};
    __m512 largest = _mm512_setzero_ps();
    for (size_t row = 0; row < in->rows; row++) {
        for (size_t col = 0; col < in->cols; col += 32) {
            const errors32 at = errors_at(&sums, in, load, row, col);
            add_products(&sums.q2, at.q, at.q);
            add_products(&sums.e2, at.e, at.e);
            add_products(&sums.qv, at.q, at.v);
            largest = larger(largest, at.e);
            count(&sums, &at);
        }
    }
    *error = (tsr_block_error){
        .sum_q2 = add_lanes(sums.q2),
        .sum_e2 = add_lanes(sums.e2),
        .sum_qv = add_lanes(sums.qv),
        .max_e = _mm512_reduce_max_ps(largest),
        .saturated = (uint32_t)sums.saturated,
        .flushed = (uint32_t)sums.flushed,
        .nonzero = (uint32_t)sums.nonzero,
    };
    if (error->max_e > 0) {
        locate(&sums, in, load, error);
    }
}

void tsr_error_e4m3_bf16_avx512(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                                size_t ld_codes, float scale, tsr_block_error *error)
{
    const error_input in = {(const char *)x, codes, rows, cols, ld * sizeof *x, sizeof *x, ld_codes};
    measure(&in, load32_bf16, scale, error);
}

void tsr_error_e4m3_f32_avx512(const float *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                               size_t ld_codes, float scale, tsr_block_error *error)
{
    const error_input in = {(const char *)x, codes, rows, cols, ld * sizeof *x, sizeof *x, ld_codes};
    measure(&in, load32_f32, scale, error);
}
