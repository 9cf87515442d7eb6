/* Tests the kernels of block FP8: every form against the scalar one, and the scalar one against the values of e4m3. */
#include "common/float_bits.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool finite_bf16(uint16_t x)
{
    return (x & 0x7F80) != 0x7F80;
}

/* Instruction sets to test: scalar, and each set added to the previous ones. */
static const unsigned kMasks[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
enum { MASKS = sizeof kMasks / sizeof *kMasks };

static void tables(tsr_cpu_kernels out[MASKS])
{
    for (int i = 0; i < MASKS; i++)
        tsr_cpu_kernels_init(&out[i], kMasks[i] & tsr_cpu_flags());
}

/* Returns a possible scale of a block: any positive finite float, often one at the limits. */
static float random_scale(void)
{
    static const float kCorners[] = {1.0f, 0x1p-149f, 0x1p-126f, 7.0e35f, 0x1p-100f, 0x1p-6f, 448.0f, 0x1.fffffep-127f};
    const uint64_t r = random_bits();
    if (r % 4 == 0)
        return kCorners[r / 4 % (sizeof kCorners / sizeof *kCorners)];
    if (r % 4 == 1)
        return ldexpf(1.0f, (int)(r / 4 % 250) - 125);
    const uint32_t bits = (uint32_t)(r >> 32) % 0x7F800000u;
    return tsr_f32_from_bits(bits == 0 ? 1 : bits);
}

Test(e4m3, decodes_every_code_from_first_principles)
{
    for (int code = 0; code < 256; code++) {
        const int sign = code >> 7, exponent = code >> 3 & 15, mantissa = code & 7;
        const float value = tsr_e4m3_to_f32((uint8_t)code);
        if (exponent == 15 && mantissa == 7) {
            cr_assert(isnan(value));
            continue;
        }
        const double expected = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
        cr_assert_eq(value, sign ? -expected : expected, "code %02x", code);
        cr_assert_eq(signbit(value) != 0, sign == 1);
    }
}

/* Returns the nearest value; of two equally near, the one with the even code. */
static uint8_t nearest_code(float x)
{
    uint8_t best = 0;
    for (uint8_t code = 0; code < 0x7F; code++) {
        const double d = fabs(fabs((double)x) - (double)tsr_e4m3_to_f32(code));
        const double b = fabs(fabs((double)x) - (double)tsr_e4m3_to_f32(best));
        if (d < b || (d == b && code % 2 == 0))
            best = code;
    }
    return signbit(x) ? best | 0x80 : best;
}

Test(e4m3, encodes_to_the_nearest_even_value)
{
    for (uint32_t i = 0; i < 0x10000; i++) {
        const float x = tsr_f32_from_bits(i << 16);
        if (!isnan(x))
            cr_assert_eq(tsr_e4m3_from_f32(x), nearest_code(x), "%a", (double)x);
    }
    for (int code = 0; code < 0x7E; code++) { /* around every tie */
        const float tie = (tsr_e4m3_to_f32((uint8_t)code) + tsr_e4m3_to_f32((uint8_t)(code + 1))) / 2;
        const float around[] = {nextafterf(tie, 0), tie, nextafterf(tie, INFINITY)};
        for (int i = 0; i < 3; i++)
            cr_assert_eq(tsr_e4m3_from_f32(around[i]), nearest_code(around[i]), "%a", (double)around[i]);
    }
}

Test(kernels, encode_the_whole_bf16_domain_alike)
{
    enum { SCALES = 300 };
    static uint16_t domain[0x10000];
    static uint8_t expected[0x10000], got[0x10000];
    tsr_cpu_kernels k[MASKS];
    tables(k);
    for (uint32_t i = 0; i < 0x10000; i++)
        domain[i] = finite_bf16((uint16_t)i) ? (uint16_t)i : 0;
    for (int s = 0; s < SCALES; s += sweep_step()) {
        const float scale = random_scale();
        tsr_encode_e4m3_bf16_ref(domain, 256, 256, 256, 256, &scale, expected, 256);
        for (int m = 1; m < MASKS; m++) {
            memset(got, 0xA5, sizeof got);
            k[m].encode_e4m3_bf16(domain, 256, 256, 256, 256, &scale, got, 256);
            for (int i = 0; i < 0x10000 && memcmp(got, expected, sizeof got) != 0; i++) /* says which */
                cr_assert_eq(got[i], expected[i], "mask %u scale %a x %04x: %02x, not %02x", kMasks[m], (double)scale,
                             i, got[i], expected[i]);
        }
    }
}

/* Returns a scale between 1 and 2: any, or one for which quotients of some BF16 numbers are ties or next to ties. */
static float scale_of_a_binade(int round)
{
    if (round % 2 == 0)
        return tsr_f32_from_bits(0x3F800000u | (uint32_t)(random_bits() >> 41));
    const float tie = (float)(128 + random_bits() % 128) / (float)(17 + random_bits() % 15);
    int e;
    const uint32_t bits = tsr_f32_bits(2 * frexpf(tie, &e));
    return tsr_f32_from_bits(bits + (uint32_t)(round / 2 % 3) - (bits > 0x3F800000u));
}

/* Tests the tables of the look-up forms: every mantissa in their binades and at both ends, for scales of all kinds. */
Test(kernels, look_up_every_mantissa_alike)
{
    enum { SCALES = 3000, FIRST = 127 - 8, BINADES = 20, N = BINADES * 128 };
    static uint16_t x[N];
    static uint8_t expected[N], got[N];
    tsr_cpu_kernels k[MASKS];
    tables(k);
    for (uint32_t i = 0; i < N; i++)
        x[i] = (uint16_t)((FIRST << 7) + i) | (i % 3 == 0 ? 0x8000 : 0);
    for (int s = 0; s < SCALES; s += sweep_step()) {
        const float scale = scale_of_a_binade(s);
        tsr_encode_e4m3_bf16_ref(x, BINADES, 128, 128, 128, &scale, expected, 128);
        for (int m = 1; m < MASKS; m++) {
            k[m].encode_e4m3_bf16(x, BINADES, 128, 128, 128, &scale, got, 128);
            for (int i = 0; i < N && memcmp(got, expected, sizeof got) != 0; i++) /* says which */
                cr_assert_eq(got[i], expected[i], "mask %u scale %a x %04x: %02x, not %02x", kMasks[m], (double)scale,
                             x[i], got[i], expected[i]);
        }
    }
}

/* The look-up form's fast path needs whole vectors without tiny values: values near the block's maximum. */
Test(kernels, encode_ordinary_blocks_alike)
{
    static uint16_t x[128 * 128];
    static uint8_t expected[128 * 128], got[128 * 128];
    tsr_cpu_kernels k[MASKS];
    tables(k);
    for (int round = 0; round < 200; round++) {
        const int exponent = (int)(random_bits() % 230) + 8;
        uint16_t amax = 0;
        for (int i = 0; i < 128 * 128; i++) {
            const uint64_t r = random_bits();
            x[i] = (uint16_t)((r & 0x8000) | (uint64_t)(exponent + (int)((r >> 20) % 12)) << 7 | (r & 0x7F));
            const uint16_t magnitude = x[i] & 0x7FFF;
            amax = magnitude > amax ? magnitude : amax;
        }
        const float scale = tsr_f32_from_bits((uint32_t)amax << 16) / 448.0f;
        tsr_encode_e4m3_bf16_ref(x, 128, 128, 128, 128, &scale, expected, 128);
        for (int m = 1; m < MASKS; m++) {
            k[m].encode_e4m3_bf16(x, 128, 128, 128, 128, &scale, got, 128);
            for (int i = 0; i < 128 * 128; i++)
                cr_assert_eq(got[i], expected[i], "mask %u scale %a x %04x: %02x, not %02x", kMasks[m], (double)scale,
                             x[i], got[i], expected[i]);
            uint32_t found;
            k[m].amax_bf16(x, 128, 128, 128, 128, &found);
            cr_assert_eq(found, (uint32_t)amax << 16);
        }
    }
}

static bool same_error(const tsr_block_error *a, const tsr_block_error *b)
{
    return memcmp(&a->sum_q2, &b->sum_q2, 3 * sizeof(double)) == 0 &&
           memcmp(&a->max_e, &b->max_e, sizeof(float)) == 0 && a->max_row == b->max_row && a->max_col == b->max_col &&
           a->saturated == b->saturated && a->flushed == b->flushed && a->nonzero == b->nonzero;
}

/* Raw random bits at every width, odd strides, unaligned; bytes around the outputs stay untouched. */
Test(kernels, agree_on_raw_bits_at_every_width)
{
    enum { ROWS = 3, MOST = 257, LD = MOST + 6 };
    static unsigned char room[ROWS * LD * 4 + 16];
    static uint8_t codes[2][ROWS * LD + 2];
    tsr_cpu_kernels k[MASKS];
    tables(k);
    for (size_t cols = 0; cols <= MOST; cols++) {
        const size_t ld = cols + 1 + cols % 5;
        for (size_t i = 0; i + 8 <= sizeof room; i += 8)
            memcpy(room + i, &(uint64_t){random_bits()}, 8);
        const uint16_t *const x16 = (const uint16_t *)(room + 2); /* not 4-aligned */
        const float *const x32 = (const float *)(room + 4);
        const size_t block_cols = cols % 3 == 0 ? 128 : cols % 3 == 1 ? 1 + cols % 40 : 64;
        float scales[MOST + 1];
        for (size_t i = 0; i <= MOST; i++)
            scales[i] = random_scale();
        const float scale = scales[0];
        for (int m = 1; m < MASKS; m++) {
            uint32_t amax[2][MOST + 1];
            memset(amax, 0x77, sizeof amax);
            tsr_amax_bf16_ref(x16, ROWS, cols, ld, block_cols, amax[0]);
            k[m].amax_bf16(x16, ROWS, cols, ld, block_cols, amax[1]);
            cr_assert(memcmp(amax[0], amax[1], sizeof amax[0]) == 0, "amax, %zu columns by %zu", cols, block_cols);
            tsr_amax_f32_ref(x32, ROWS, cols, ld, block_cols, amax[0]);
            k[m].amax_f32(x32, ROWS, cols, ld, block_cols, amax[1]);
            cr_assert(memcmp(amax[0], amax[1], sizeof amax[0]) == 0, "amax, %zu columns by %zu", cols, block_cols);
            float wide[2][MOST + 1];
            memset(wide, 0x5A, sizeof wide);
            tsr_widen_f16_ref(x16, cols, wide[0]);
            k[m].widen_f16(x16, cols, wide[1]);
            cr_assert(memcmp(wide[0], wide[1], sizeof wide[0]) == 0, "widen, mask %u, %zu columns", kMasks[m], cols);
        }
        uint16_t *const y16 = (uint16_t *)(room + 2);
        float *const y32 = (float *)(room + 4);
        for (int kind = 0; kind < 2; kind++) { /* encoding and measuring take finite numbers */
            for (size_t i = 0; i < ROWS * ld; i++) {
                if (kind == 0 && !finite_bf16(y16[i]))
                    y16[i] &= 0xBFFF;
                if (kind == 1 && !isfinite(y32[i]))
                    y32[i] = 1.5f;
            }
            for (int m = 1; m < MASKS; m++) {
                tsr_block_error error[2];
                memset(error, 0xEE, sizeof error);
                memset(codes, 0xA5, sizeof codes);
                if (kind == 0) {
                    tsr_encode_e4m3_bf16_ref(x16, ROWS, cols, ld, block_cols, scales, codes[0] + 1, ld);
                    k[m].encode_e4m3_bf16(x16, ROWS, cols, ld, block_cols, scales, codes[1] + 1, ld);
                    tsr_error_e4m3_bf16_ref(x16, ROWS, cols, ld, codes[0] + 1, ld, scale, &error[0]);
                    k[m].error_e4m3_bf16(x16, ROWS, cols, ld, codes[0] + 1, ld, scale, &error[1]);
                } else {
                    tsr_encode_e4m3_f32_ref(x32, ROWS, cols, ld, block_cols, scales, codes[0] + 1, ld);
                    k[m].encode_e4m3_f32(x32, ROWS, cols, ld, block_cols, scales, codes[1] + 1, ld);
                    tsr_error_e4m3_f32_ref(x32, ROWS, cols, ld, codes[0] + 1, ld, scale, &error[0]);
                    k[m].error_e4m3_f32(x32, ROWS, cols, ld, codes[0] + 1, ld, scale, &error[1]);
                }
                cr_assert(memcmp(codes[0], codes[1], sizeof codes[0]) == 0, "kind %d mask %u cols %zu scale %a", kind,
                          kMasks[m], cols, (double)scale);
                cr_assert(same_error(&error[0], &error[1]), "errors: kind %d mask %u cols %zu scale %a", kind,
                          kMasks[m], cols, (double)scale);
            }
        }
    }
}

/* One pass and three passes have the same amax, scales and codes, for bands of any width, partial blocks, zeros, and
 * blocks with NaN (for which only amax is defined). */
Test(kernels, quantize_bands_alike)
{
    enum { ROWS = 5, COLS = 128 * 11 + 77 };
    static uint16_t x[ROWS * COLS];
    static uint8_t codes[2][ROWS * COLS];
    static uint32_t amax[2][COLS];
    static float scales[2][COLS];
    static tsr_block_error errors[2][COLS];
    tsr_cpu_kernels k[MASKS];
    tables(k);
    for (int round = 0; round < 60; round++) {
        const size_t block_cols = round % 3 == 0 ? 128 : 1 + random_bits() % 200;
        const size_t cols = round % 5 == 0 ? 1 + random_bits() % 300 : COLS - random_bits() % 300;
        const uint16_t common = round % 2 == 0 ? 0 : (uint16_t)(0x3000 + random_bits() % 0x800);
        for (size_t i = 0; i < ROWS * cols; i++) {
            x[i] = (uint16_t)(common == 0 ? random_bits() : (random_bits() & 0x80FF) + common);
            x[i] = i % cols / block_cols == 2 ? 0 : finite_bf16(x[i]) ? x[i] : 0;
        }
        if (round % 7 == 0)
            x[cols - 1] = 0x7FC0;
        for (int power = 0; power < 2; power++) {
            tsr_quantize_e4m3_bf16_ref(x, ROWS, cols, cols, block_cols, power, amax[0], scales[0], codes[0], cols,
                                       errors[0]);
            for (int m = 1; m < MASKS; m++) {
                memset(codes[1], 0xA5, sizeof codes[1]);
                k[m].quantize_e4m3_bf16(x, ROWS, cols, cols, block_cols, power, amax[1], scales[1], codes[1], cols,
                                        round % 4 == 0 ? NULL : errors[1]);
                for (size_t col = 0; col < cols; col++) {
                    const size_t b = col / block_cols;
                    cr_assert_eq(amax[0][b], amax[1][b], "mask %u, block %zu of %zu", kMasks[m], b, block_cols);
                    if (amax[0][b] >= TSR_FP32_INF_BITS)
                        continue;
                    cr_assert(memcmp(&scales[0][b], &scales[1][b], sizeof(float)) == 0);
                    cr_assert(round % 4 == 0 || same_error(&errors[0][b], &errors[1][b]),
                              "mask %u, errors of block %zu of %zu", kMasks[m], b, block_cols);
                    for (size_t row = 0; row < ROWS; row++)
                        cr_assert_eq(codes[0][row * cols + col], codes[1][row * cols + col],
                                     "mask %u, %zu by %zu at %zu", kMasks[m], cols, block_cols, col);
                }
            }
        }
    }
}

/* Compares the sums with FP64: 512 additions per partial sum and a few ulp in q leave 1e-4 of the sum. */
Test(kernels, measure_what_double_measures)
{
    static uint16_t x[128 * 128];
    static uint8_t codes[128 * 128];
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (int i = 0; i < 128 * 128; i++) {
        double g = -6;
        for (int j = 0; j < 12; j++)
            g += (double)(random_bits() >> 11) * 0x1p-53;
        float f = (float)(0.02 * g);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        x[i] = i % 97 == 0 ? 0 : (uint16_t)(bits >> 16);
    }
    uint32_t amax;
    k.amax_bf16(x, 128, 128, 128, 128, &amax);
    const float scale = tsr_f32_from_bits(amax) / 448.0f;
    k.encode_e4m3_bf16(x, 128, 128, 128, 128, &scale, codes, 128);
    tsr_block_error error;
    k.error_e4m3_bf16(x, 128, 128, 128, codes, 128, scale, &error);
    double q2 = 0, e2 = 0, qv = 0, largest = 0;
    uint32_t nonzero = 0;
    for (int i = 0; i < 128 * 128; i++) {
        const double q = (double)tsr_f32_from_bits((uint32_t)x[i] << 16) / (double)scale;
        const double v = (double)tsr_e4m3_to_f32(codes[i]);
        q2 += q * q;
        e2 += (q - v) * (q - v);
        qv += q * v;
        largest = fmax(largest, fabs(q - v));
        nonzero += x[i] != 0;
    }
    cr_assert_float_eq(error.sum_q2 / q2, 1, 1e-4);
    cr_assert_float_eq(error.sum_e2 / e2, 1, 1e-4);
    cr_assert_float_eq(error.sum_qv / qv, 1, 1e-4);
    cr_assert_float_eq((double)error.max_e / largest, 1, 1e-4);
    cr_assert_eq(error.nonzero, nonzero);
    cr_assert_eq(error.saturated, 0);
}
