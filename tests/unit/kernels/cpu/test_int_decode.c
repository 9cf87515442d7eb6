/* Tests decoding of integers: the scalar form against double over all codes, every form against the scalar one. */
#include "common/float_bits.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"

#include <criterion/criterion.h>
#include <stdint.h>

enum { N = 777 }; /* no multiple of any vector */

static const float kScales[] = {1, 0x1.8p-5f, 0x1.234568p-100f, 0x1p-140f, 0x1.fffffep119f, 0};

static void fill(int8_t *codes)
{
    for (int i = 0; i < N; i++)
        codes[i] = (int8_t)(i * 37);
}

Test(int_decode, reference_is_one_product_and_one_rounding)
{
    int8_t codes[N];
    float y[N];
    uint16_t narrow[N];
    fill(codes);
    for (size_t s = 0; s < sizeof kScales / sizeof *kScales; s++) {
        for (float zero = -128; zero < 128; zero += 51) {
            tsr_decode_int_f32_ref(codes, N, zero, kScales[s], y);
            tsr_decode_int_bf16_ref(codes, N, zero, kScales[s], narrow);
            for (int i = 0; i < N; i++) {
                const double exact = ((double)codes[i] - (double)zero) * (double)kScales[s];
                cr_assert_eq(y[i], (float)exact);
                cr_assert_eq(narrow[i], tsr_bf16_from_f32(y[i]));
            }
        }
    }
}

Test(int_decode, unpacking_takes_the_lowest_bits_first)
{
    const uint8_t words[] = {0x10, 0x32, 0xF8, 0x7F};
    const int8_t int4[] = {-8, -7, -6, -5, 0, 7, 7}, int8[] = {-112, -78, 120, -1};
    int8_t codes[8];
    tsr_unpack_int4_ref(words, 7, codes);
    cr_assert_arr_eq(codes, int4, sizeof int4);
    tsr_unpack_int8_ref(words, 4, codes);
    cr_assert_arr_eq(codes, int8, sizeof int8);
}

Test(int_decode, variants_equal_the_reference)
{
    int8_t codes[N], int4[N], unpacked[2][N];
    float y[2][N];
    uint16_t narrow[2][N];
    fill(codes);
    for (int i = 0; i < N; i++)
        int4[i] = (int8_t)((codes[i] & 15) - 8);
    for (unsigned flags = 0; flags <= TSR_CPU_ALL; flags++) {
        tsr_cpu_kernels k;
        if ((flags & tsr_cpu_flags()) != flags)
            continue;
        tsr_cpu_kernels_init(&k, flags);
        for (size_t n = 0; n <= N; n += n < 70 ? 1 : 101) {
            for (size_t s = 0; s < sizeof kScales / sizeof *kScales; s++) {
                tsr_decode_int_f32_ref(codes, n, -3, kScales[s], y[0]);
                k.decode_int_f32(codes, n, -3, kScales[s], y[1]);
                cr_assert_arr_eq(y[0], y[1], n * sizeof **y);
                tsr_decode_int_bf16_ref(codes, n, 5, kScales[s], narrow[0]);
                k.decode_int_bf16(codes, n, 5, kScales[s], narrow[1]);
                cr_assert_arr_eq(narrow[0], narrow[1], n * sizeof **narrow);
            }
            tsr_unpack_int4_ref((const uint8_t *)codes, n, unpacked[0]);
            k.unpack_int4((const uint8_t *)codes, n, unpacked[1]);
            cr_assert_arr_eq(unpacked[0], unpacked[1], n);
            uint8_t words[2][N];
            tsr_pack_int4_ref(int4, n / 2 * 2, words[0]);
            k.pack_int4(int4, n / 2 * 2, words[1]);
            cr_assert_arr_eq(words[0], words[1], n / 2);
            tsr_pack_int8_ref(codes, n, words[0]);
            k.pack_int8(codes, n, words[1]);
            cr_assert_arr_eq(words[0], words[1], n);
            tsr_unpack_int8_ref((const uint8_t *)codes, n, unpacked[0]);
            k.unpack_int8((const uint8_t *)codes, n, unpacked[1]);
            cr_assert_arr_eq(unpacked[0], unpacked[1], n);
        }
    }
}
