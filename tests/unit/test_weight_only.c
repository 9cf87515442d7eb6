/* Symmetric codes by column: the corners of the formula, and both orders of a matrix. The original's own results are in
 * tests/golden. */
#include "quantize/weight_only.h"

#include <criterion/criterion.h>
#include <string.h>

static const int kBits[] = {8, 4};

Test(weight_only, corners_of_the_formula)
{
    /* With amax = 8 the scale is 1 (int4) or 1/16 (int8). */
    static const float kColumn[] = {-8, 8, 0.5f, -0.5f, 1.5f, 2.5f, 0.25f, -0.0f, 0.03125f};
    static const int8_t kInt4[] = {-8, 7, 1, -1, 2, 3, 0, 0, 0};
    static const int8_t kInt8[] = {-128, 127, 8, -8, 24, 40, 4, 0, 1};
    enum { K = sizeof kColumn / sizeof *kColumn };
    const tsr_weight_only_matrix m = {.k = K, .n = 1, .step_k = 1, .step_n = K};
    int8_t codes[K];
    float scale;
    tsr_weight_only_quantize(&m, 4, kColumn, codes, &scale);
    cr_assert_eq(scale, 1.0f);
    cr_assert_arr_eq(codes, kInt4, K);
    tsr_weight_only_quantize(&m, 8, kColumn, codes, &scale);
    cr_assert_eq(scale, 0.0625f);
    cr_assert_arr_eq(codes, kInt8, K);
}

Test(weight_only, columns_without_a_scale)
{
    /* Zeros, and a column so small that amax / 128 is 0. */
    static const float kW[] = {0.0f, 0x1p-149f, -0.0f, -0x1p-149f};
    const tsr_weight_only_matrix m = {.k = 2, .n = 2, .step_k = 2, .step_n = 1};
    int8_t codes[4];
    float scales[2];
    for (int i = 0; i < 2; i++) {
        memset(codes, 0x55, sizeof codes);
        tsr_weight_only_quantize(&m, kBits[i], kW, codes, scales);
        for (int at = 0; at < 4; at++)
            cr_assert_eq(codes[at], 0);
        cr_assert(scales[0] == 0 && scales[1] == 0);
    }
}

Test(weight_only, orders_agree)
{
    enum { K = 37, N = 11 };
    float kn[K * N], nk[K * N], kn_scales[N], nk_scales[N];
    int8_t kn_codes[K * N], nk_codes[K * N];
    uint32_t state = 1;
    for (size_t k = 0; k < K; k++) {
        for (size_t n = 0; n < N; n++) {
            state = state * 1664525u + 1013904223u;
            kn[k * N + n] = nk[n * K + k] = (float)(int32_t)state * 1e-9f;
        }
    }
    for (int i = 0; i < 2; i++) {
        tsr_weight_only_quantize(&(tsr_weight_only_matrix){K, N, N, 1}, kBits[i], kn, kn_codes, kn_scales);
        tsr_weight_only_quantize(&(tsr_weight_only_matrix){K, N, 1, K}, kBits[i], nk, nk_codes, nk_scales);
        cr_assert_arr_eq(kn_scales, nk_scales, sizeof kn_scales);
        for (size_t k = 0; k < K; k++) {
            for (size_t n = 0; n < N; n++) {
                cr_assert_eq(kn_codes[k * N + n], nk_codes[n * K + k]);
                /* In steps; the division's own rounding is far below 1e-4 of one. */
                const double error = kn_codes[k * N + n] - (double)kn[k * N + n] / kn_scales[n];
                cr_assert(error >= -1.0001 && error <= 0.5001, "int%d (%zu, %zu): off by %g steps", kBits[i], k, n,
                          error);
            }
        }
    }
}
