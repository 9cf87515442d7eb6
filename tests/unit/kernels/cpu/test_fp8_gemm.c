/* Tests the model of FP8 tensor cores: cases with known results, and every form against the scalar one. */
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/fp8_product.h"
#include "verify/evidence/activations.h"

#include <criterion/criterion.h>
#include <math.h>

static float product(tsr_fp8_gemm_fn *gemm, const uint8_t *a, const uint8_t *w, size_t k)
{
    const float one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float d = NAN;
    const tsr_fp8_gemm_args args = fp8_product_of(fp8_product(1, 1, k), a, one, w, one, &d);
    gemm(&args);
    return d;
}

Test(fp8_gemm, cuts_off_what_lies_13_bits_below_the_largest)
{
    /* 256 * 32 = 2^13; small products: 2^-1 is below its last kept bit 2^0, 1.5 loses its half. */
    uint8_t a[256] = {0x78, 0x38, 0x3C}, w[256] = {0x60, 0x30, 0x38}; /* 256, 1, 1.5 times 32, 0.5, 1 */
    tsr_cpu_kernels ref, best;
    tsr_cpu_kernels_init(&ref, 0);
    tsr_cpu_kernels_init(&best, tsr_cpu_flags());
    cr_assert_eq(product(ref.fp8_gemm, a, w, 200), 8192 + 0.5f + 1.5f);
    cr_assert_eq(product(ref.fp8_gemm_tensor_core, a, w, 200), 8192 + 1);
    /* In the next step the accumulator is the largest addend; in the next tile it has been promoted. */
    a[40] = 0x3C, w[40] = 0x38;
    cr_assert_eq(product(ref.fp8_gemm_tensor_core, a, w, 200), 8192 + 2);
    a[130] = 0x3C, w[130] = 0x38;
    cr_assert_eq(product(ref.fp8_gemm_tensor_core, a, w, 200), 8192 + 3.5f);
    cr_assert_eq(product(ref.fp8_gemm_unpromoted, a, w, 200), 8192 + 3);
    cr_assert_eq(product(best.fp8_gemm_tensor_core, a, w, 200), 8192 + 3.5f);
}

Test(fp8_gemm, every_variant_gives_the_same_bits)
{
    enum { M = 17, COLS = 37, DEPTH = 333 };
    static uint8_t a[M * DEPTH], w[COLS * DEPTH];
    static float scale_a[3 * M], scale_w[3], d[2][M * COLS];
    for (size_t i = 0; i < sizeof a; i++)
        a[i] = (uint8_t)tsr_mix_bits(i) & 0xF7;
    for (size_t i = 0; i < sizeof w; i++)
        w[i] = (uint8_t)tsr_mix_bits(~i) & 0xF7;
    for (size_t i = 0; i < 3 * M; i++)
        scale_a[i] = (float)(tsr_mix_bits(i) % 1000) * 1e-4f;
    for (size_t i = 0; i < 3; i++)
        scale_w[i] = (float)(i + 1) * 0.3f;
    static const unsigned kSets[] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512};
    for (size_t s = 0; s < 2; s++) {
        tsr_cpu_kernels ref, fast;
        tsr_cpu_kernels_init(&ref, 0);
        tsr_cpu_kernels_init(&fast, tsr_cpu_flags() & kSets[s]);
        tsr_fp8_gemm_fn *const pairs[][2] = {{ref.fp8_gemm, fast.fp8_gemm},
                                             {ref.fp8_gemm_tensor_core, fast.fp8_gemm_tensor_core},
                                             {ref.fp8_gemm_unpromoted, fast.fp8_gemm_unpromoted}};
        for (size_t p = 0; p < 3; p++) {
            for (size_t which = 0; which < 2; which++) {
                const tsr_fp8_gemm_args args =
                    fp8_product_of(fp8_product(M, COLS, DEPTH), a, scale_a, w, scale_w, d[which]);
                pairs[p][which](&args);
            }
            cr_assert_arr_eq(d[0], d[1], sizeof d[0]);
        }
    }
}
