/* Error sums of block FP8 codes (tsr_block_error) for AVX2, AVX-512 and NEON. The including file defines the integer
 * operations of e4m3_bands_body.h and these operations on floats:
 *
 *   vf, PARTS                        a register; PARTS of them hold the 16 lanes of a sum
 *   f_set1(x), f_load(p), f_mul      f_load needs no alignment
 *   f_fmadd(a, b, c), f_fnmadd       a * b + c, c - a * b
 *   f_larger(x, y), f_largest(x)     the larger of x and |y|, x where y is NaN; the largest lane
 *   f_some_above(a, b), f_some_equal(a, b)     true if any lane has a > b; |a| == b
 *   f_nonzero(lo, hi)                a bit for each lane of both that is not 0
 *   f_lo_of_words(w), f_hi_of_words(w)         STEP / 2 words of BF16 as floats: the lower and upper half of each 16
 *   bytes
 *   f_lo_of_floats(a, b), f_hi_of_floats(a, b) STEP / 2 floats, in the same two orders
 *   v_zip_lo(a, b), v_zip_hi(a, b)   bytes of a and b in turn, from the lower or upper half of each 16-byte lane
 *   v_where_below(x, limit, a, b)    bytes of a where those of x, below 0x80, are below the limit, else of b
 *
 * A pair has columns 0-3, 8-11, ... in lo and 4-7, 12-15, ... in hi, as unpacking inside of 16-byte lanes leaves them;
 * so both are added to the same lanes, lo first. Rare cases are tested once per segment. */
#pragma once

#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/block_fp8.h"
#include "kernels/cpu/error_unit.h"
#include "kernels/cpu/variants.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef struct pair {
    vf lo, hi;
} pair;

/* Known properties of some elements. */
typedef struct known {
    bool bf16;     /* their dtype; else FP32 */
    bool normal;   /* all codes are normal numbers */
    bool no_zero;  /* no x is 0 and, with `normal`, none was flushed */
    bool unscaled; /* k is 1 */
} known;

/* Running sums of one block. */
typedef struct measured {
    vf u2[PARTS], e2[PARTS], uv[PARTS];
    vf gate; /* larger |e| need a closer look: a new largest error, or x may have been clamped */
    float k, f, largest;
    size_t row, col; /* position of the segment with `largest` */
    uint32_t saturated, flushed, nonzero;
} measured;

static void begin_block(measured *m, float scale)
{
    const float k = tsr_error_boost(scale);
    *m = (measured){.gate = f_set1(0), .k = k, .f = scale * k};
    for (int part = 0; part < PARTS; part++)
        m->u2[part] = m->e2[part] = m->uv[part] = f_set1(0);
}

/* Decodes STEP codes, in packed order, to words of BF16: the first half, and the second. */
ALWAYS_INLINE void words_of(vec codes, bool normal, vec *first, vec *second)
{
    /* A normal code's words are code * 16 + 0x3C00, and the sign; those of 1 .. 7 are normal numbers in BF16, too. */
    static const uint8_t kHigh[16] = {0x3C, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x43,
                                      0xBC, 0xBD, 0xBE, 0xBF, 0xC0, 0xC1, 0xC2, 0xC3};
    static const uint8_t kTinyHigh[16] = {0, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C};
    static const uint8_t kTinyLow[16] = {0, 0, 0x80, 0xC0, 0, 0x20, 0x40, 0x60};
    vec high = v_shuffle(v_lanes(kHigh), v_and(v_right16(codes, 4), v_bytes(0x0F)));
    vec low = v_and(v_left16(codes, 4), v_bytes(0xF0));
    if (!normal) {
        const vec size = v_and(codes, v_bytes(0x7F)), index = v_and(codes, v_bytes(0x07));
        high = v_where_below(size, 8, v_with_signs(v_shuffle(v_lanes(kTinyHigh), index), codes), high);
        low = v_where_below(size, 8, v_shuffle(v_lanes(kTinyLow), index), low);
    }
    *first = v_zip_lo(low, high);
    *second = v_zip_hi(low, high);
}

ALWAYS_INLINE pair floats_of(vec words)
{
    return (pair){f_lo_of_words(words), f_hi_of_words(words)};
}

/* Loads STEP / 2 elements. */
ALWAYS_INLINE pair elements_at(const void *x, size_t i, known is)
{
    if (is.bf16)
        return floats_of(v_load((const uint16_t *)x + i));
    const vf a = f_load((const float *)x + i), b = f_load((const float *)x + i + STEP / 4);
    return (pair){f_lo_of_floats(a, b), f_hi_of_floats(a, b)};
}

ALWAYS_INLINE void add(measured *m, vf x, vf v, size_t part, known is, vf *largest)
{
    const vf u = is.unscaled ? x : f_mul(x, f_set1(m->k)), e = f_fnmadd(v, f_set1(m->f), u);
    m->u2[part] = f_fmadd(u, u, m->u2[part]);
    m->e2[part] = f_fmadd(e, e, m->e2[part]);
    m->uv[part] = f_fmadd(u, v, m->uv[part]);
    *largest = f_larger(*largest, e);
}

ALWAYS_INLINE void add_pair(measured *m, pair x, pair v, size_t part, known is, vf *largest)
{
    add(m, x.lo, v.lo, part, is, largest);
    add(m, x.hi, v.hi, part, is, largest);
    if (is.no_zero)
        return;
    const uint32_t nonzero = f_nonzero(x.lo, x.hi);
    m->nonzero += (uint32_t)__builtin_popcount(nonzero);
    if (!is.normal)
        m->flushed += (uint32_t)__builtin_popcount(nonzero & ~f_nonzero(v.lo, v.hi));
}

/* Examines a segment with an |e| above the gate. */
static __attribute__((noinline)) void look(measured *m, float largest, const void *x, size_t n, bool bf16, size_t row,
                                           size_t col)
{
    const float clamped = 16 * m->f; /* rounding alone never has a larger error */
    if (largest > m->largest) {
        m->largest = largest;
        m->row = row;
        m->col = col;
    }
    if (largest >= clamped) {
        for (size_t i = 0; i < n; i++) {
            const float value = bf16 ? tsr_f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
            m->saturated += fabsf(value * m->k) > 464.0f * m->f;
        }
    }
    m->gate = f_set1(fminf(m->largest, tsr_f32_from_bits(tsr_f32_bits(clamped) - 1)));
}

/* Adds n elements, whole STEPs of one segment, which begins at (row, col). */
ALWAYS_INLINE void measure_steps(measured *m, const void *x, const uint8_t *codes, size_t n, known is, size_t row,
                                 size_t col)
{
    measured sums = *m;
    vf largest = f_set1(0);
    for (size_t i = 0; i < n; i += STEP) {
        vec first, second;
        words_of(v_in_packed_order(v_load(codes + i)), is.normal, &first, &second);
        const size_t part = (col + i) / (STEP / 2); /* the lanes of 32 columns are those of PARTS registers */
        add_pair(&sums, elements_at(x, i, is), floats_of(first), part % PARTS, is, &largest);
        add_pair(&sums, elements_at(x, i + STEP / 2, is), floats_of(second), (part + 1) % PARTS, is, &largest);
    }
    for (int part = 0; part < PARTS; part++) {
        m->u2[part] = sums.u2[part];
        m->e2[part] = sums.e2[part];
        m->uv[part] = sums.uv[part];
    }
    m->nonzero = sums.nonzero + (is.no_zero ? (uint32_t)n : 0);
    m->flushed = sums.flushed;
    if (__builtin_expect(f_some_above(largest, m->gate), 0))
        look(m, f_largest(largest), x, n, is.bf16, row, col);
}

/* Like measure_steps, for any elements and codes other than NaN, at most one segment. */
ALWAYS_INLINE void measure_any(measured *m, const void *x, const uint8_t *codes, size_t n, bool bf16, size_t row,
                               size_t col)
{
    const known nothing = {.bf16 = bf16};
    const size_t whole = n - n % STEP, width = bf16 ? sizeof(uint16_t) : sizeof(float);
    if (whole > 0)
        measure_steps(m, x, codes, whole, nothing, row, col);
    if (whole == n)
        return;
    float padded[STEP] = {0}; /* or words */
    uint8_t padded_codes[STEP] = {0};
    memcpy(padded, (const char *)x + whole * width, (n - whole) * width);
    memcpy(padded_codes, codes + whole, n - whole);
    measure_steps(m, padded, padded_codes, STEP, nothing, row, col + whole);
}

static __attribute__((noinline)) void measure_any_bf16(measured *m, const uint16_t *x, const uint8_t *codes, size_t n,
                                                       size_t row, size_t col)
{
    measure_any(m, x, codes, n, true, row, col);
}

/* The arguments of the error functions: a block. */
typedef struct error_input {
    const void *x;
    size_t rows, cols, ld;
    const uint8_t *codes;
    size_t ld_codes;
} error_input;

static inline const void *x_at(const error_input *in, bool bf16, size_t row, size_t col)
{
    return (const char *)in->x + (row * in->ld + col) * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

/* Returns true if this column has the largest error of its row. */
static inline bool is_largest(const measured *m, const error_input *in, bool bf16, size_t col)
{
    const void *const x = x_at(in, bf16, m->row, col);
    const float value = bf16 ? tsr_f32_from_bf16(*(const uint16_t *)x) : *(const float *)x;
    const float v = tsr_e4m3_to_f32(in->codes[m->row * in->ld_codes + col]);
    return fabsf(fmaf(-v, m->f, value * m->k)) == m->largest;
}

ALWAYS_INLINE bool has_largest(const measured *m, pair x, pair v)
{
    const vf k = f_set1(m->k), f = f_set1(m->f), largest = f_set1(m->largest);
    return f_some_equal(f_fnmadd(v.lo, f, f_mul(x.lo, k)), largest) ||
           f_some_equal(f_fnmadd(v.hi, f, f_mul(x.hi, k)), largest);
}

/* Returns the first column with the largest error in the segment that contains it. */
ALWAYS_INLINE size_t locate(const measured *m, const error_input *in, bool bf16)
{
    size_t col = m->col;
    for (; col + STEP <= in->cols; col += STEP) {
        const void *const x = x_at(in, bf16, m->row, col);
        vec first, second;
        words_of(v_in_packed_order(v_load(in->codes + m->row * in->ld_codes + col)), false, &first, &second);
        if (has_largest(m, elements_at(x, 0, (known){.bf16 = bf16}), floats_of(first)))
            break;
        if (has_largest(m, elements_at(x, STEP / 2, (known){.bf16 = bf16}), floats_of(second))) {
            col += STEP / 2;
            break;
        }
    }
    while (col + 1 < in->cols && !is_largest(m, in, bf16, col))
        col++;
    return col;
}

static double sum_of_lanes(const vf sums[PARTS])
{
    float lanes[16];
    double total = 0;
    memcpy(lanes, sums, sizeof lanes);
    for (int i = 0; i < 16; i++)
        total += (double)lanes[i];
    return total;
}

ALWAYS_INLINE void finish_block(const measured *m, const error_input *in, bool bf16, tsr_block_error *error)
{
    const double f = (double)m->f;
    *error = (tsr_block_error){
        .sum_q2 = sum_of_lanes(m->u2) / (f * f),
        .sum_e2 = sum_of_lanes(m->e2) / (f * f),
        .sum_qv = sum_of_lanes(m->uv) / f,
        .max_e = m->largest / m->f,
        .saturated = m->saturated,
        .flushed = m->flushed,
        .nonzero = m->nonzero,
    };
    if (m->largest > 0) {
        error->max_row = (uint32_t)m->row;
        error->max_col = (uint32_t)locate(m, in, bf16);
    }
}

static bool has_nan(const uint8_t *codes, size_t n)
{
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        if (v_some_above8(v_and(v_load(codes + i), v_bytes(0x7F)), 0x7E))
            return true;
    }
    for (; i < n; i++) {
        if ((codes[i] & 0x7F) == 0x7F)
            return true;
    }
    return false;
}

/* Measures existing codes. Returns false if one is NaN, which the definition handles. */
ALWAYS_INLINE bool measure_block(const error_input *in, bool bf16, float scale, tsr_block_error *error)
{
    measured m;
    begin_block(&m, scale);
    for (size_t row = 0; row < in->rows; row++) {
        const uint8_t *const codes = in->codes + row * in->ld_codes;
        if (has_nan(codes, in->cols))
            return false;
        for (size_t col = 0; col < in->cols; col += SEGMENT)
            measure_any(&m, x_at(in, bf16, row, col), codes + col, block_width(in->cols, col, SEGMENT), bf16, row, col);
    }
    finish_block(&m, in, bf16, error);
    return true;
}
