/* Divides int4 codes into groups that a variant decodes to 16 bits, for AVX2 and AVX-512. The including file first
 * defines TSR_INT4(name), the name of the function to define, and decode(), which decodes codes in groups of any size
 * to BF16 or F16. */
#include "kernels/cpu/always_inline.h"

#include <stdbool.h>

/* Groups of 32, which are frequent, have no inner loop. */
ALWAYS_INLINE void decode_any(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                              bool f16, uint16_t *y)
{
    if (group == 32 && n % 32 == 0 && zero == NULL)
        decode(packed, n, 32, scale, NULL, f16, y);
    else
        decode(packed, n, group, scale, zero, f16, y);
}

void TSR_INT4(decode_int4_bf16)(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                                uint16_t *y)
{
    decode_any(packed, n, group, scale, zero, false, y);
}

void TSR_INT4(decode_int4_f16)(const uint8_t *packed, size_t n, size_t group, const float *scale, const float *zero,
                               uint16_t *y)
{
    decode_any(packed, n, group, scale, zero, true, y);
}
