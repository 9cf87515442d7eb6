/* Tests the decoders of the oracle against the definitions, and reading of weights with scales piece by piece. */
#include "common/float_bits.h"
#include "verify/values/weight_reader.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool same(double a, double b)
{
    return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0;
}

static double from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Tests every length around the vector width, from addresses of any alignment, and that nothing is written after the
 * end. */
static void expect_decoded(tsr_dtype dtype, const void *data, size_t count, const double *expected)
{
    const size_t width = tsr_dtype_bytes(dtype);
    unsigned char *const bytes = malloc(count * width + 1);
    double *const out = malloc((count + 1) * sizeof *out);
    memcpy(bytes + 1, data, count * width);
    for (size_t n = 0; n <= count; n = n < 20 ? n + 1 : n == count ? n + 1 : count) {
        out[n] = 12345;
        tsr_decode((unsigned char)dtype, bytes + 1, n, out);
        for (size_t i = 0; i < n; i++)
            cr_assert(same(out[i], expected[i]), "%s %zu of %zu: %a, not %a", tsr_dtype_name(dtype), i, n, out[i],
                      expected[i]);
        cr_assert_eq(out[n], 12345);
    }
    free(bytes);
    free(out);
}

Test(decode, every_e4m3_code)
{
    unsigned char codes[256];
    double expected[256];
    for (size_t i = 0; i < 256; i++) {
        codes[i] = (unsigned char)i;
        expected[i] = tsr_e4m3_to_f32((uint8_t)i);
    }
    expect_decoded(TSR_F8_E4M3, codes, 256, expected);
}

Test(decode, every_bf16_and_f16)
{
    static uint16_t bits[65536];
    static double expected[65536];
    for (size_t i = 0; i < 65536; i++) {
        bits[i] = (uint16_t)i;
        expected[i] = from_bits((uint32_t)i << 16);
    }
    expect_decoded(TSR_BF16, bits, 65536, expected);
    for (size_t i = 0; i < 65536; i++) {
        const double fraction = (double)(i & 0x3FF) / 1024;
        const int exponent = (int)(i >> 10 & 31);
        const double magnitude = exponent == 31  ? (fraction > 0 ? NAN : INFINITY)
                                 : exponent == 0 ? ldexp(fraction, -14)
                                                 : ldexp(1 + fraction, exponent - 15);
        expected[i] = i >> 15 ? -magnitude : magnitude;
    }
    expect_decoded(TSR_F16, bits, 65536, expected);
}

Test(decode, every_e8m0)
{
    unsigned char codes[256];
    double expected[256];
    for (int i = 0; i < 256; i++) {
        codes[i] = (unsigned char)i;
        expected[i] = i == 255 ? NAN : ldexp(1, i - 127);
    }
    expect_decoded(TSR_F8_E8M0, codes, 256, expected);
}

Test(decode, wide_floats_and_integers)
{
    const float f32[] = {0, -0.0f, 1.5f, 0x1p-149f, -0x1.fffffep127f, INFINITY, NAN, 3, 4, 5};
    const double as_double[] = {0, -0.0, 1.5, 0x1p-149, -0x1.fffffep127, INFINITY, NAN, 3, 4, 5};
    const int8_t i8[] = {-128, -1, 0, 127};
    const int64_t i64[] = {-((int64_t)1 << 53), 7};
    const uint32_t u32[] = {UINT32_MAX, 0};
    expect_decoded(TSR_F32, f32, 10, as_double);
    expect_decoded(TSR_F64, as_double, 10, as_double);
    expect_decoded(TSR_I8, i8, 4, (const double[]){-128, -1, 0, 127});
    expect_decoded(TSR_I64, i64, 2, (const double[]){-0x1p53, 7});
    expect_decoded(TSR_U32, u32, 2, (const double[]){4294967295.0, 0});
}

/* ---- pieces of a scaled stack ---- */

enum { MATRICES = 2, ROWS = 70, COLS = 50, BLOCK_ROWS = 16, BLOCK_COLS = 12, GRID_ROWS = 8, GRID_COLS = 5 };

/* Between two neighbouring codes, the lower one is right below the middle and the upper one above it. */
Test(reader, tells_which_codes_are_the_nearest)
{
    const double scale = 0x1.8p-5;
    const tsr_tensor data = {.dtype = TSR_F8_E4M3}, none = {.dtype = TSR_F32};
    const tsr_view view = {.weight = {.data = &data, .scale = &none, .coding = TSR_CODED_E4M3, .bits = 8},
                           .block.rows = 1,
                           .block.cols = 2};
    double scales[] = {scale}, zero_points[] = {0};
    const tsr_weight_reader reader = {
        .view = &view, .piece = {.rows = 1, .cols = 2}, .scales = scales, .zero_points = zero_points, .scale_cols = 1};
    for (unsigned code = 0; code < 0x7E; code++) {
        const double low = tsr_e4m3_to_f32((uint8_t)code) * scale, high = tsr_e4m3_to_f32((uint8_t)(code + 1)) * scale;
        const double y[] = {low, high};
        size_t first = 9;
        for (double share = 0; share <= 1; share += 0.0625) {
            const double x[] = {low + share * (high - low), low + share * (high - low)};
            const uint64_t wrong = tsr_weight_reader_misrounded(&reader, 0, 0, 2, x, y, &first);
            cr_assert_eq(wrong, share != 0.5, "code %u, share %g", code, share);
            cr_assert(wrong == 0 || first == (share < 0.5 ? 1 : 0), "code %u, share %g", code, share);
        }
    }
    /* For values beyond the largest code, that code is the nearest. */
    const double x[] = {1000 * scale, 1000 * scale}, y[] = {448 * scale, 416 * scale};
    size_t first;
    cr_expect_eq(tsr_weight_reader_misrounded(&reader, 0, 0, 2, x, y, &first), 1);
    cr_expect_eq(first, 1);
}

/* Tests all codes, scales of every kind of number, and a padded grid. Each piece is compared with single products. */
static void expect_pieces(tsr_dtype scale_dtype, const void *scales, const double *values)
{
    static unsigned char codes[MATRICES * ROWS * COLS];
    const size_t scale_bytes = MATRICES * GRID_ROWS * GRID_COLS * tsr_dtype_bytes(scale_dtype);
    char path[] = "/tmp/tessera-test-XXXXXX";
    tsr_file file = {.path = path, .fd = mkstemp(path)};
    cr_assert_geq(file.fd, 0);
    unlink(path);
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (unsigned char)(i * 37 + i / 256);
    cr_assert_eq(pwrite(file.fd, codes, sizeof codes, 3), (ssize_t)sizeof codes);
    cr_assert_eq(pwrite(file.fd, scales, scale_bytes, 3 + sizeof codes), (ssize_t)scale_bytes);
    const tsr_checkpoint checkpoint = {.files = &file, .n_files = 1};
    const tsr_tensor data = {
        .name = "w", .dtype = TSR_F8_E4M3, .rank = 3, .shape = {MATRICES, ROWS, COLS}, .offset = 3};
    const tsr_tensor scale = {.name = "s", .dtype = (uint8_t)scale_dtype, .offset = 3 + sizeof codes};
    const tsr_weight weight = {.data = &data,
                               .values = &data,
                               .coding = TSR_CODED_E4M3,
                               .bits = 8,
                               .scale = &scale,
                               .scale_dtype = (uint8_t)scale_dtype,
                               .matrices = MATRICES,
                               .rows = ROWS,
                               .cols = COLS,
                               .block.rows = BLOCK_ROWS,
                               .block.cols = BLOCK_COLS,
                               .grid_rows = GRID_ROWS,
                               .grid_cols = GRID_COLS};
    tsr_view view;
    tsr_weight_reader reader = {0};
    cr_assert_eq(tsr_view_init(&view, &checkpoint, &weight, NULL), TSR_OK);
    const tsr_piece pieces[] = {
        {0, 0, 0, ROWS, COLS}, {1, 0, 0, ROWS, COLS}, {1, 15, 11, 2, 2}, {0, 69, 0, 1, COLS}, {1, 17, 13, 50, 36}};
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        const tsr_piece *const p = &pieces[k];
        double out[COLS];
        cr_assert_eq(tsr_weight_reader_load(&reader, &view, p, NULL), TSR_OK);
        for (size_t r = 0; r < p->rows; r++) {
            tsr_weight_reader_row(&reader, r, 1, (size_t)p->cols - 1, out);
            for (size_t c = 1; c < p->cols; c++) {
                const size_t row = (size_t)p->row + r, col = (size_t)p->col + c;
                const double s = values[(p->matrix * GRID_ROWS + row / BLOCK_ROWS) * GRID_COLS + col / BLOCK_COLS];
                const double v = tsr_e4m3_to_f32(codes[(p->matrix * ROWS + row) * COLS + col]);
                cr_assert(same(out[c - 1], v * s), "piece %zu, row %zu, column %zu", k, row, col);
            }
        }
    }
    tsr_weight_reader_free(&reader);
    close(file.fd);
}

Test(reader, pieces_of_a_stack_with_scales_of_every_dtype)
{
    enum { N = MATRICES * GRID_ROWS * GRID_COLS };
    static float f32[N];
    static uint16_t bf16[N], f16[N];
    static unsigned char e8m0[N];
    static double values[N];
    for (size_t i = 0; i < N; i++) {
        f32[i] = ldexpf(1 + (float)i / 127, (int)i * 3 - 120);
        values[i] = f32[i];
    }
    expect_pieces(TSR_F32, f32, values);
    for (size_t i = 0; i < N; i++) {
        bf16[i] = (uint16_t)(i * 391 + 1);
        values[i] = from_bits((uint32_t)bf16[i] << 16);
    }
    expect_pieces(TSR_BF16, bf16, values);
    for (size_t i = 0; i < N; i++) {
        f16[i] = (uint16_t)(0x3C00 + i);
        values[i] = 1 + (double)i / 1024;
    }
    expect_pieces(TSR_F16, f16, values);
    for (size_t i = 0; i < N; i++) {
        e8m0[i] = (unsigned char)(255 - i * 3);
        values[i] = i == 0 ? NAN : ldexp(1, 128 - (int)i * 3);
    }
    expect_pieces(TSR_F8_E8M0, e8m0, values);
}
