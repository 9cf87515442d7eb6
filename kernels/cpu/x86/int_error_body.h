/* Error sums of integer codes (tsr_int_error) for AVX2 and AVX-512. The including file defines TSR_INT(name), which
 * adds the suffix of its variant, the operations of e4m3_bands_body.h and e4m3_error_body.h, and these:
 *
 *   v_load_codes(p)                  STEP / 2 signed bytes as words
 *   v_add16, v_max16s                words; the larger of signed ones
 *   f_of_zipped_lo(a, b), f_of_zipped_hi(a, b)    words of a and b in turn, as floats
 *   f_sub, f_max, f_min
 *   w_nonzero(x), w_equal(a, b)      W_BITS bits for each word with (x & 0x7FFF) != 0; with a == b
 *   f_tree(sums)                     the 16 lanes of a sum, in FP64: l and l + 8, then l + 4, l + 2, l + 1
 *
 * Registers hold columns in the order of e4m3_error_body.h. */
#include "kernels/cpu/int_quant.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { HALF = STEP / 2, ERROR_CHUNK = 4096 };

typedef struct int_sums {
    vf u2[PARTS], e2[PARTS], uv[PARTS], largest;
    vec most, least;    /* for BF16: the largest bit pattern as a signed number and, as an unsigned one, the most
                         * negative number */
    vf f_most, f_least; /* for FP32: the largest and the smallest value */
    uint64_t nonzero, flushed;
} int_sums;

/* Constants of a group. */
typedef struct int_unit {
    bool usual; /* k is 1 */
    float k, f, zero, low, high;
} int_unit;

ALWAYS_INLINE void add_codes(int_sums *s, vf u, vf v, vf f, size_t part)
{
    const vf e = f_fnmadd(v, f, u);
    s->u2[part] = f_fmadd(u, u, s->u2[part]);
    s->e2[part] = f_fmadd(e, e, s->e2[part]);
    s->uv[part] = f_fmadd(u, v, s->uv[part]);
    s->largest = f_larger(s->largest, e);
}

/* HALF elements. */
ALWAYS_INLINE void add_half(int_sums *s, const int_unit *unit, const void *x, const int8_t *codes, bool bf16,
                            size_t part)
{
    /* A word in the mantissa of 2^23, minus 2^23 and its own bias. */
    const vec word = v_load_codes(codes), biased = v_add16(word, v_words(0x80)), bias = v_words(0x4B00);
    const vf offset = f_set1(0x1p23f + 128 + unit->zero), k = f_set1(unit->k), f = f_set1(unit->f);
    const vf v_lo = f_sub(f_of_zipped_lo(biased, bias), offset), v_hi = f_sub(f_of_zipped_hi(biased, bias), offset);
    vf lo, hi;
    if (bf16) {
        const vec w = v_load(x);
        const uint64_t nonzero = w_nonzero(w), zero = w_equal(word, v_words((int)unit->zero));
        s->nonzero += (uint64_t)__builtin_popcountll(nonzero) / W_BITS;
        s->flushed += (uint64_t)__builtin_popcountll(nonzero & zero) / W_BITS;
        s->most = v_max16s(s->most, w);
        s->least = v_max16(s->least, w);
        lo = f_lo_of_words(w);
        hi = f_hi_of_words(w);
    } else {
        const vf a = f_load(x), b = f_load((const float *)x + HALF / 2);
        lo = f_lo_of_floats(a, b);
        hi = f_hi_of_floats(a, b);
        const uint32_t nonzero = f_nonzero(lo, hi);
        s->nonzero += (uint64_t)__builtin_popcount(nonzero);
        s->flushed += (uint64_t)__builtin_popcount(nonzero & ~f_nonzero(v_lo, v_hi));
        s->f_most = f_max(a, f_max(b, s->f_most));
        s->f_least = f_min(a, f_min(b, s->f_least));
    }
    add_codes(s, unit->usual ? lo : f_mul(lo, k), v_lo, f, part);
    add_codes(s, unit->usual ? hi : f_mul(hi, k), v_hi, f, part);
}

/* Adds the last n elements, fewer than HALF, padded with zeros, which have no effect. */
static __attribute__((noinline)) void add_last(int_sums *s, const int_unit *unit, const void *x, const int8_t *codes,
                                               size_t n, bool bf16, size_t part)
{
    float padded[HALF] = {0}; /* or words */
    int8_t padded_codes[HALF];
    memcpy(padded, x, n * (bf16 ? sizeof(uint16_t) : sizeof(float)));
    memset(padded_codes, (int8_t)unit->zero, HALF);
    memcpy(padded_codes, codes, n);
    if (bf16)
        add_half(s, unit, padded, padded_codes, true, part);
    else
        add_half(s, unit, padded, padded_codes, false, part);
}

/* Adds n elements of a group, at most one chunk. */
ALWAYS_INLINE void add_elements(int_sums *s, const int_unit *unit, const char *x, const int8_t *codes, size_t n,
                                bool bf16)
{
    const size_t width = bf16 ? sizeof(uint16_t) : sizeof(float);
    size_t i = 0, part = 0;
    for (; i + STEP <= n; i += STEP) {
        add_half(s, unit, x + i * width, codes + i, bf16, 0);
        add_half(s, unit, x + (i + HALF) * width, codes + i + HALF, bf16, PARTS - 1);
    }
    if (i + HALF <= n) {
        add_half(s, unit, x + i * width, codes + i, bf16, 0);
        i += HALF;
        part = PARTS - 1;
    }
    if (i == n)
        return;
    int_sums last = *s; /* a copy, because its address is taken */
    add_last(&last, unit, x + i * width, codes + i, n - i, bf16, part);
    *s = last;
}

ALWAYS_INLINE bool is_clamped(const int_unit *unit, float x, float inverse)
{
    const float t = x * unit->k * inverse + unit->zero;
    return t > unit->high + 0.5f || t < unit->low - 0.5f;
}

/* Tests each element of one sign, without branches so that compilers vectorize it. Least-error scales clamp some
 * elements of most groups. */
ALWAYS_INLINE uint64_t count_each(const int_unit *unit, const void *x, size_t n, bool bf16, bool negative,
                                  float inverse)
{
    const float k = unit->k, zero = unit->zero, high = unit->high + 0.5f, low = unit->low - 0.5f;
    uint32_t clamped = 0;
    for (size_t i = 0; i < n; i++) {
        const float value = bf16 ? tsr_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
        const float t = value * k * inverse + zero;
        clamped += (uint32_t)(((value < 0) == negative) & ((t > high) | (t < low)));
    }
    return clamped;
}

/* Counts how many of n elements were clamped, given that `end`, the largest or the smallest, was. */
static __attribute__((noinline)) uint64_t count_clamped(const int_unit *unit, const void *x, size_t n, bool bf16,
                                                        float end, float inverse)
{
    if (!bf16)
        return count_each(unit, x, n, false, end < 0, inverse);
    const uint16_t *const words = x, word = (uint16_t)(tsr_f32_bits(end) >> 16);
    uint64_t clamped = 0;
    size_t i = 0;
    if (!is_clamped(unit, tsr_f32_from_bf16((uint16_t)(word - 1)), inverse)) { /* nothing else was */
        for (; i + HALF <= n; i += HALF)
            clamped += (uint64_t)__builtin_popcountll(w_equal(v_load(words + i), v_words(word))) / W_BITS;
    }
    return clamped + count_each(unit, words + i, n - i, true, end < 0, inverse);
}

/* Measures one group of n elements. */
ALWAYS_INLINE void measure_group(const void *x, size_t n, bool bf16, const int_unit *unit, const int8_t *codes,
                                 tsr_int_error *error)
{
    const size_t width = bf16 ? sizeof(uint16_t) : sizeof(float);
    int_sums s;
    double u2 = 0, e2 = 0, uv = 0;
    s.largest = s.f_most = s.f_least = f_set1(0);
    s.most = v_zero();
    s.least = v_words(0x8000);
    s.nonzero = s.flushed = 0;
    for (size_t first = 0; first < n; first += ERROR_CHUNK) {
        for (size_t part = 0; part < PARTS; part++)
            s.u2[part] = s.e2[part] = s.uv[part] = f_set1(0);
        add_elements(&s, unit, (const char *)x + first * width, codes + first,
                     n - first < ERROR_CHUNK ? n - first : ERROR_CHUNK, bf16);
        u2 += f_tree(s.u2);
        e2 += f_tree(s.e2);
        uv += f_tree(s.uv);
    }
    const double f = (double)unit->f;
    const float most = bf16 ? tsr_f32_from_bf16((uint16_t)v_largest16(s.most)) : f_largest(s.f_most);
    const float least =
        bf16 ? tsr_f32_from_bf16((uint16_t)v_largest16(s.least)) : -f_largest(f_sub(f_set1(0), s.f_least));
    error->sum_q2 = u2 / (f * f);
    error->sum_e2 = e2 / (f * f);
    error->sum_qv = uv / f;
    error->max_e = f_largest(s.largest) / unit->f;
    error->nonzero = s.nonzero;
    error->flushed = s.flushed;
    error->saturated = 0;
    const float inverse = 1 / unit->f;
    if (is_clamped(unit, most, inverse))
        error->saturated += count_clamped(unit, x, n, bf16, most, inverse);
    if (is_clamped(unit, least, inverse))
        error->saturated += count_clamped(unit, x, n, bf16, least, inverse);
}

/* `group` is a constant for common widths. */
ALWAYS_INLINE void measure_groups(const void *x, size_t cols, size_t group, bool bf16, const tsr_int_row *row,
                                  const int8_t *codes, tsr_int_error *errors)
{
    const size_t width = bf16 ? sizeof(uint16_t) : sizeof(float);
    for (size_t first = 0, g = 0; first < cols; first += group, g++) {
        const float k = tsr_error_boost(row->scale[g]);
        const float zero = row->zero == NULL ? 0 : row->zero[g];
        const char *const from = (const char *)x + first * width;
        if (k == 1 && cols - first >= group) {
            const int_unit unit = {true, 1, row->scale[g], zero, row->low, row->high};
            measure_group(from, group, bf16, &unit, codes + first, &errors[g]);
        } else {
            const int_unit unit = {false, k, row->scale[g] * k, zero, row->low, row->high};
            measure_group(from, cols - first < group ? cols - first : group, bf16, &unit, codes + first, &errors[g]);
        }
    }
}

void TSR_INT(error_int_bf16)(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, const int8_t *codes,
                             tsr_int_error *errors)
{
    if (group == 128)
        measure_groups(x, cols, 128, true, row, codes, errors);
    else if (group == 32)
        measure_groups(x, cols, 32, true, row, codes, errors);
    else
        measure_groups(x, cols, group, true, row, codes, errors);
}

void TSR_INT(error_int_f32)(const float *x, size_t cols, size_t group, const tsr_int_row *row, const int8_t *codes,
                            tsr_int_error *errors)
{
    measure_groups(x, cols, group, false, row, codes, errors);
}
