/* Entry points for E2M1 codes of all variants of mx_codes; they turn group and rounding into constants. The including
 * file defines TSR_MX_CODES(name), which adds the suffix of its variant, AT_A_TIME, the number of FP32 values per step,
 * and the functions that are declared here. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <stdbool.h>

/* `down`: `rounding` is TSR_E2M1_DOWN. Groups have 16 or 32 elements. */
ALWAYS_INLINE void encode_bf16(const uint16_t *x, size_t n, size_t group, const float *t, bool down,
                               tsr_e2m1_rounding rounding, uint8_t *packed);

/* Groups are multiples of AT_A_TIME. */
ALWAYS_INLINE void encode_f32(const float *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding,
                              uint8_t *packed);

void TSR_MX_CODES(encode_e2m1_bf16)(const uint16_t *x, size_t n, size_t group, const float *t,
                                    tsr_e2m1_rounding rounding, uint8_t *packed)
{
    const bool down = rounding == TSR_E2M1_DOWN;
    if (group == 32 && down)
        encode_bf16(x, n, 32, t, true, rounding, packed);
    else if (group == 32)
        encode_bf16(x, n, 32, t, false, rounding, packed);
    else if (group == 16 && down)
        encode_bf16(x, n, 16, t, true, rounding, packed);
    else if (group == 16)
        encode_bf16(x, n, 16, t, false, rounding, packed);
    else
        tsr_encode_e2m1_bf16_ref(x, n, group, t, rounding, packed);
}

void TSR_MX_CODES(encode_e2m1_f32)(const float *x, size_t n, size_t group, const float *t, tsr_e2m1_rounding rounding,
                                   uint8_t *packed)
{
    if (group % AT_A_TIME != 0)
        tsr_encode_e2m1_f32_ref(x, n, group, t, rounding, packed);
    else if (rounding == TSR_E2M1_DOWN)
        encode_f32(x, n, group, t, TSR_E2M1_DOWN, packed);
    else if (rounding == TSR_E2M1_EVEN)
        encode_f32(x, n, group, t, TSR_E2M1_EVEN, packed);
    else
        encode_f32(x, n, group, t, TSR_E2M1_EVEN_BF16, packed);
}
