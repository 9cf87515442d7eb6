/* Tests the quantization of activations per token, with a case computed by hand. */
#include "kernels/cpu/quantize_tokens.h"

#include <criterion/criterion.h>

Test(quantize_tokens, int8_as_the_formula_has_it)
{
    /* 2, -1, 0.5, 0 in BF16. */
    const uint16_t x[4] = {0x4000, 0xBF80, 0x3F00, 0};
    int8_t codes[4];
    float scale;
    int32_t azp;
    tsr_quantize_tokens_int8(x, 1, 4, false, true, codes, &scale, &azp);
    cr_assert_eq(scale, 2.0f / 127);
    cr_assert_eq(azp, 0);
    cr_assert_eq(codes[0], 127);
    cr_assert_eq(codes[1], -64); /* -63.5 to even */
    tsr_quantize_tokens_int8(x, 1, 4, true, false, codes, &scale, &azp);
    cr_assert_float_eq(scale, 3.0f / 255, 1e-8);
    cr_assert_eq(azp, -43);
    cr_assert_eq(codes[0], 127);
    cr_assert_eq(codes[3], -43);
}
