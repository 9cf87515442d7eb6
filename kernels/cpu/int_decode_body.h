/* Implements integer decoding as TSR_INT(name), for each form to include and the compiler to vectorize. */
#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

void TSR_INT(decode_int_f32)(const int8_t *codes, size_t n, float zero_point, float scale, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = ((float)codes[i] - zero_point) * scale;
}

/* The product is not NaN, so a carry of the rounding into the exponent is right, up to infinity. */
void TSR_INT(decode_int_bf16)(const int8_t *codes, size_t n, float zero_point, float scale, uint16_t *y)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = tsr_f32_bits(((float)codes[i] - zero_point) * scale);
        y[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}

void TSR_INT(unpack_int4)(const uint8_t *words, size_t n, int8_t *codes)
{
    for (size_t i = 0; i < n / 2; i++) {
        codes[2 * i] = (int8_t)((words[i] & 15) - 8);
        codes[2 * i + 1] = (int8_t)((words[i] >> 4) - 8);
    }
    if (n % 2 != 0)
        codes[n - 1] = (int8_t)((words[n / 2] & 15) - 8);
}

void TSR_INT(unpack_int8)(const uint8_t *words, size_t n, int8_t *codes)
{
    for (size_t i = 0; i < n; i++)
        codes[i] = (int8_t)(words[i] ^ 0x80);
}

#ifndef TSR_PACKS_INT4 /* forms with TSR_PACKS_INT4 have their own */
void TSR_INT(pack_int4)(const int8_t *codes, size_t n, uint8_t *words)
{
    for (size_t i = 0; i < n / 2; i++)
        words[i] = (uint8_t)((codes[2 * i] + 8) | (codes[2 * i + 1] + 8) << 4);
}
#endif

void TSR_INT(pack_int8)(const int8_t *codes, size_t n, uint8_t *words)
{
    for (size_t i = 0; i < n; i++)
        words[i] = (uint8_t)codes[i] ^ 0x80;
}
