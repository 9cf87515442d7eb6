/* Which int4 codes a form decodes to 16 bits, group by group: what the forms of this folder share. Before it is included,
 * TSR_INT4(name) is the function to define, and decode() makes BF16 or F16 of codes in groups of any size. */
#include "kernels/cpu/always_inline.h"

#include <stdbool.h>

/* Groups of 32, as many releases have them: without a loop inside. */
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
