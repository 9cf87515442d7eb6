/* Tests 4-bit and 6-bit codes against their formulas: values, storage orders, the nearest code, and the scale. */
#include "verify/values/decode.h"
#include "verify/values/group_scale.h"
#include "verify/values/unpack.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double kE2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

static bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Any bytes, by a plain generator. */
static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

Test(e2m1, pieces_begin_and_end_anywhere)
{
    enum { BYTES = 40 };
    const double scales[] = {1, 0x1p-127, 0x1p127, (double)(float)0.0123};
    uint32_t state = 1;
    for (uint64_t at = 0; at < 20; at++) {
        for (size_t n = 0; at + n <= 2 * BYTES; n++) {
            /* Allocates exactly these bytes, so that ASan and valgrind find one that is read beyond them. */
            const size_t size = (size_t)(at + n + 1) / 2;
            unsigned char *const bytes = malloc(size + (size == 0));
            double out[2 * BYTES + 1];
            const double scale = scales[n % 4];
            for (size_t i = 0; i < size; i++)
                bytes[i] = (unsigned char)next(&state);
            out[n] = 12345;
            tsr_decode_e2m1(bytes, at, n, scale, out);
            for (size_t i = 0; i < n; i++) {
                const unsigned code = bytes[(at + i) / 2] >> ((at + i) % 2 == 0 ? 0 : 4) & 15;
                cr_assert(same(out[i], kE2m1[code] * scale), "element %zu of %zu from %llu on", i, n,
                          (unsigned long long)at);
            }
            cr_assert_eq(out[n], 12345);
            free(bytes);
        }
    }
}

Test(e2m1, a_code_a_byte)
{
    unsigned char codes[50];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (unsigned char)(i * 7 % 16);
    for (size_t n = 0; n <= sizeof codes; n++) {
        double out[sizeof codes + 1];
        out[n] = 12345;
        tsr_decode_e2m1_codes(codes, n, 0.375, out);
        for (size_t i = 0; i < n; i++)
            cr_assert(same(out[i], kE2m1[codes[i]] * 0.375), "element %zu of %zu", i, n);
        cr_assert_eq(out[n], 12345);
    }
}

/* ---- MXFP6 ---- */

static double six_bits_of(unsigned code, bool e3m2)
{
    const unsigned mantissa = e3m2 ? 2 : 3, field = (code & 31) >> mantissa, fraction = code & ((1u << mantissa) - 1);
    const int unit = (field == 0 ? 1 : (int)field) - (e3m2 ? 3 : 1) - (int)mantissa;
    return (code & 32 ? -1.0 : 1.0) * ldexp(fraction + (field == 0 ? 0 : 1u << mantissa), unit);
}

Test(six_bits, pieces_begin_and_end_anywhere)
{
    enum { CODES = 200 };
    const double scales[] = {1, 0x1p-127, 0x1p127};
    uint32_t state = 1;
    for (uint64_t at = 0; at < 9; at++) {
        for (size_t n = 0; at + n <= CODES; n++) {
            const size_t size = (size_t)(at + n + 3) / 4 * 3; /* as the reader loads: whole words */
            unsigned char *const bytes = malloc(size + (size == 0));
            double out[CODES + 1];
            const bool e3m2 = n % 2 == 1;
            for (size_t i = 0; i < size; i++)
                bytes[i] = (unsigned char)next(&state);
            out[n] = 12345;
            tsr_decode_six_bits(bytes, at, n, e3m2, scales[n % 3], out);
            for (size_t i = 0; i < n; i++) {
                unsigned code = 0;
                for (size_t b = 0; b < 6; b++)
                    code |= (bytes[(6 * (at + i) + b) / 8] >> (6 * (at + i) + b) % 8 & 1u) << b;
                cr_assert(same(out[i], six_bits_of(code, e3m2) * scales[n % 3]), "element %zu of %zu from %llu on", i,
                          n, (unsigned long long)at);
            }
            cr_assert_eq(out[n], 12345);
            free(bytes);
        }
    }
}

/* Every value of each element is its own nearest. Half a step on either side is accepted, more is not. */
Test(six_bits, nearest_codes)
{
    for (int e3m2 = 0; e3m2 < 2; e3m2++) {
        const tsr_rounding rounding = {.kind = e3m2 ? TSR_CODES_E3M2 : TSR_CODES_E2M3, .scale = 0x1p-5};
        for (unsigned code = 0; code < 31; code++) {
            const double y = six_bits_of(code, e3m2 != 0) * rounding.scale,
                         above = six_bits_of(code + 1, e3m2 != 0) * rounding.scale, near = y + (above - y) * 0.49,
                         far = y + (above - y) * 0.6, error = (near - y) * (near - y);
            cr_assert_eq(tsr_count_misrounded(&rounding, &near, &y, 1), 0, "code %u", code);
            cr_assert_eq(tsr_count_misrounded(&rounding, &far, &y, 1), 1, "code %u", code);
            cr_assert_float_eq(tsr_rounding_error2(&rounding, &near, 1, 1), error, error * 1e-12);
        }
        const double largest = six_bits_of(31, e3m2 != 0) * rounding.scale, beyond = 3 * largest;
        cr_assert_eq(tsr_count_misrounded(&rounding, &beyond, &largest, 1), 0);
    }
}

/* ---- orders ---- */

enum { ROWS = 40, COLS = 64 };

static unsigned char matrix[ROWS][COLS];

static void fill(unsigned bits)
{
    uint32_t state = 2 + bits;
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t c = 0; c < COLS; c++)
            matrix[r][c] = (unsigned char)(next(&state) & ((1u << bits) - 1));
    }
}

/* `lines` have the whole matrix. Any piece of it must be equal. */
static void expect_pieces(tsr_order order, unsigned bits, const unsigned char *lines, size_t pitch, size_t row_unit,
                          size_t col_unit)
{
    const struct {
        size_t row, col, rows, cols;
    } pieces[] = {{0, 0, ROWS, COLS}, {1, 0, 1, 1}, {7, 3, 9, 13}, {8, 8, 8, 8}, {39, 63, 1, 1}, {13, 31, 27, 33}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const size_t row = pieces[i].row, col = pieces[i].col, rows = pieces[i].rows, cols = pieces[i].cols;
        unsigned char codes[ROWS * COLS];
        const size_t unit_bytes = order == TSR_ORDER_GPTQ ? 4 : order == TSR_ORDER_AWQ ? 4 : 1;
        const tsr_lines piece = {.order = order,
                                 .bits = bits,
                                 .bytes = lines + col / col_unit * pitch + row / row_unit * unit_bytes,
                                 .pitch = pitch,
                                 .row = row % row_unit,
                                 .col = col % col_unit};
        tsr_unpack(&piece, rows, cols, codes);
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < cols; c++)
                cr_assert_eq(codes[r * cols + c], matrix[row + r][col + c], "piece %zu, row %zu, column %zu", i, r, c);
        }
    }
}

Test(order, awq)
{
    /* Nibble k of word j is output column 8j + (0, 2, 4, 6, 1, 3, 5, 7)[k], which is a row of the matrix. */
    static const unsigned kColumns[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    static uint32_t words[COLS][ROWS / 8];
    fill(4);
    for (size_t input = 0; input < COLS; input++) {
        for (size_t j = 0; j < ROWS / 8; j++) {
            for (unsigned k = 0; k < 8; k++)
                words[input][j] |= (uint32_t)matrix[8 * j + kColumns[k]][input] << 4 * k;
        }
    }
    expect_pieces(TSR_ORDER_AWQ, 4, (const unsigned char *)words, sizeof *words, 8, 1);
    /* Tests an example that can be checked by hand. */
    const uint32_t word = 0x76543210;
    unsigned char codes[8];
    const tsr_lines one = {.order = TSR_ORDER_AWQ, .bits = 4, .bytes = (const unsigned char *)&word, .pitch = 4};
    tsr_unpack(&one, 8, 1, codes);
    cr_expect_arr_eq(codes, ((unsigned char[]){0, 4, 1, 5, 2, 6, 3, 7}), 8);
}

static void expect_gptq(unsigned bits)
{
    const size_t per_word = 32 / bits;
    uint32_t *const words = calloc(COLS / per_word * ROWS, sizeof *words);
    fill(bits);
    for (size_t c = 0; c < COLS; c++) {
        for (size_t r = 0; r < ROWS; r++)
            words[c / per_word * ROWS + r] |= (uint32_t)matrix[r][c] << c % per_word * bits;
    }
    expect_pieces(TSR_ORDER_GPTQ, bits, (const unsigned char *)words, ROWS * sizeof *words, 1, per_word);
    free(words);
}

Test(order, gptq)
{
    expect_gptq(4);
    expect_gptq(8);
}

static void expect_along(unsigned bits)
{
    static unsigned char bytes[COLS][ROWS];
    const size_t per_byte = 8 / bits;
    fill(bits);
    memset(bytes, 0, sizeof bytes);
    for (size_t c = 0; c < COLS; c++) {
        for (size_t r = 0; r < ROWS; r++)
            bytes[c][r / per_byte] |= (unsigned char)(matrix[r][c] << r % per_byte * bits);
    }
    expect_pieces(TSR_ORDER_ALONG, bits, bytes[0], sizeof *bytes, per_byte, 1);
}

Test(order, along)
{
    expect_along(4);
    expect_along(8);
}

/* ---- rounding ---- */

/* Between two neighbouring codes, the lower one is right below the middle and the upper one above it. */
Test(rounding, tells_which_e2m1_codes_are_the_nearest)
{
    const double scale = 0x1.8p-5;
    const tsr_rounding rounding = {.kind = TSR_CODES_E2M1, .scale = scale};
    for (unsigned code = 0; code < 7; code++) {
        const double low = kE2m1[code] * scale, high = kE2m1[code + 1] * scale;
        for (double share = 0; share <= 1; share += 0.0625) {
            const double x = low + share * (high - low), minus_x = -x, minus_low = -low;
            cr_assert_eq(tsr_count_misrounded(&rounding, &x, &low, 1), share > 0.5, "code %u, share %g", code, share);
            cr_assert_eq(tsr_count_misrounded(&rounding, &minus_x, &minus_low, 1), share > 0.5);
            cr_assert_eq(tsr_count_misrounded(&rounding, &x, &high, 1), share < 0.5, "code %u, share %g", code, share);
        }
    }
    const double x[] = {7.9 * scale, 100 * scale, 7.9 * scale, 100 * scale, 0},
                 y[] = {6 * scale, 6 * scale, 4 * scale, -6 * scale, 0.5 * scale};
    cr_expect_eq(tsr_count_misrounded(&rounding, x, y, 2), 0, "beyond the largest code nothing is nearer than it");
    cr_expect_eq(tsr_count_misrounded(&rounding, x + 2, y + 2, 3), 2, "a code far from it, and one for a zero");
}

/* Rounds a quotient or a sum of BF16 as PyTorch does: to FP32 first. */
static double in_bf16(double value)
{
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    float rounded;
    memcpy(&rounded, &bits, sizeof rounded);
    return rounded;
}

/* compressed-tensors divides in the dtype of the weights, and adds the zero point in it. */
Test(rounding, takes_what_tools_make_that_compute_in_bf16)
{
    uint64_t otherwise = 0;
    for (unsigned i = 0; i < 128 * 127; i++) {
        const double scale = in_bf16((1 + i % 127 / 128.0) * 0x1p-7), x = in_bf16((i / 127.0 - 64) * 2 * scale),
                     q = in_bf16(x / scale);
        for (int zero = -128; zero <= 127; zero += 32) {
            const double sum = zero == 0 ? q : in_bf16(q + zero);
            const double code = fmin(fmax(nearbyint(sum), -128), 127) - zero, y = code * scale,
                         off = (code + (x < y ? 5 : -5)) * scale;
            const tsr_rounding rounding = {.kind = TSR_CODES_INTEGERS,
                                           .scale = scale,
                                           .lowest = (-128 - zero) * scale,
                                           .highest = (127 - zero) * scale};
            otherwise += zero == 0 && fabs(code - x / scale) > 0.5 + fabs(x / scale) * 0x1p-9;
            cr_assert_eq(tsr_count_misrounded(&rounding, &x, &y, 1), 0, "zero point %d: %g / %g", zero, x, scale);
            cr_assert_eq(tsr_count_misrounded(&rounding, &x, &off, 1), 1, "zero point %d: %g / %g", zero, x, scale);
        }
        const tsr_rounding rounding = {.kind = TSR_CODES_E4M3, .scale = scale};
        const double y = copysign(tsr_nearest_e4m3(fabs(q)) * scale, x), off = y * 1.25;
        cr_assert_eq(tsr_count_misrounded(&rounding, &x, &y, 1), 0, "%g / %g", x, scale);
        cr_assert(x == 0 || tsr_count_misrounded(&rounding, &x, &off, 1) == 1, "%g / %g", x, scale);
    }
    cr_assert_gt(otherwise, 100, "%llu codes that are not the nearest to the quotient itself",
                 (unsigned long long)otherwise);
}

Test(rounding, errors_are_those_of_the_nearest_codes)
{
    for (double q = 0; q < 9; q += 0.03125) {
        const tsr_rounding rounding = {.kind = TSR_CODES_E2M1, .scale = 0x1p-9};
        const double x[] = {q * 0x1p-9, 0, -q * 0x1p-9};
        double best = INFINITY;
        for (unsigned code = 0; code < 8; code++)
            best = fmin(best, fabs(q - kE2m1[code]) * 0x1p-9);
        cr_assert(same(tsr_rounding_error2(&rounding, x, 2, 2), 2 * best * best), "q = %g", q);
    }
}

/* ---- scales ---- */

enum { GROUP = 32 };

/* A group whose largest value is amax, and the codes that are the nearest under a scale. */
static void make_group(double amax, double scale, double *x, double *y, size_t n)
{
    uint32_t state = 3;
    for (size_t i = 0; i < n; i++) {
        x[i] = i == n / 2 ? -amax : amax * ((double)(next(&state) % 2000) / 1000 - 1) * 0.999;
        double best = 0;
        for (unsigned code = 0; code < 16; code++)
            best = fabs(x[i] / scale - kE2m1[code]) < fabs(x[i] / scale - best) ? kE2m1[code] : best;
        y[i] = best * scale;
    }
}

static bool is_misscaled(const tsr_group_rule *rule, double amax, double scale, size_t n)
{
    double x[GROUP], y[GROUP];
    make_group(amax, scale, x, y, n);
    const tsr_group group = {.x = x, .y = y, .n = n, .stride = 1, .scale = scale};
    return tsr_group_is_misscaled(rule, &group, NULL);
}

Test(scales, every_rule_of_powers_of_two_passes_and_one_binade_more_does_not)
{
    const tsr_group_rule rule = {.kind = TSR_CODES_E2M1};
    for (double mantissa = 1; mantissa < 2; mantissa += 0.03125) {
        const double amax = mantissa * 0x1p-7;
        /* The exponents of floor, even, rceil and ceil. */
        const int rules[] = {-7 - 2, -7 - 2 + (mantissa >= 1.75), -7 - 2 + (mantissa > 1.5), -7 - 2 + (mantissa > 1)};
        for (size_t i = 0; i < 4; i++)
            cr_assert(!is_misscaled(&rule, amax, ldexp(1, rules[i]), GROUP), "mantissa %g, rule %zu", mantissa, i);
        cr_assert(is_misscaled(&rule, amax, ldexp(1, -7 - 4), GROUP), "mantissa %g", mantissa);
        if (mantissa > 1)
            cr_assert(is_misscaled(&rule, amax, ldexp(1, -7), GROUP), "mantissa %g", mantissa);
    }
    cr_expect(!is_misscaled(&rule, 0x1p-127, 0x1p-127, GROUP), "beneath the smallest scale there is no better one");
}

Test(scales, those_of_e4m3_are_the_nearest_to_what_amax_asks_for)
{
    const double global = (double)(float)(1 / 448.0);
    const tsr_group_rule rule = {.kind = TSR_CODES_E2M1, .global = global};
    for (double amax = 0x1p-4; amax < 2.3; amax *= 1.013) {
        const double wanted = amax / 6 / global, stored = tsr_nearest_e4m3(wanted);
        cr_assert(!is_misscaled(&rule, amax, stored * global, 16), "amax %g", amax);
        cr_assert(is_misscaled(&rule, amax, tsr_nearest_e4m3(stored * 2.5) * global, 16), "amax %g", amax);
        cr_assert(is_misscaled(&rule, amax, tsr_nearest_e4m3(stored * 0.4) * global, 16), "amax %g", amax);
    }
    cr_expect(!is_misscaled(&rule, 0x1p-11 * 6 * global, 0.125 * global, 16),
              "compressed-tensors' scale of what underflows");
    cr_expect(!is_misscaled(&rule, 0x1p-11 * 6 * global, 0x1p-9 * global, 16), "ModelOpt's");
}

Test(scales, a_search_may_choose_what_costs_less)
{
    /* Makes fifteen values that are exact with a smaller scale, and one that it clips a little. */
    double x[16], y[16];
    for (size_t i = 0; i < 16; i++) {
        x[i] = i == 0 ? 6.5 : 5.0 + 1.0 * (i % 2);
        y[i] = i == 0 ? 6 : 6 * (double)(i % 2) + 4 * (double)(1 - i % 2);
    }
    const tsr_group_rule rule = {.kind = TSR_CODES_E2M1, .global = 0x1p-3};
    for (size_t i = 1; i < 16; i++)
        x[i] = y[i];
    tsr_group group = {.x = x, .y = y, .n = 16, .stride = 1, .scale = 1};
    x[0] = 7.5; /* needs 1.25, unlike all others */
    y[0] = 6;
    tsr_group_verdict verdict;
    cr_expect(!tsr_group_is_misscaled(&rule, &group, &verdict));
    x[0] = 60; /* clipped to a tenth */
    cr_expect(tsr_group_is_misscaled(&rule, &group, &verdict));
    cr_expect_eq(verdict.amax, 60);
    cr_expect_eq(verdict.ruled, 10);
    cr_expect_float_eq(verdict.error2, 54 * 54, 1e-9);
}
