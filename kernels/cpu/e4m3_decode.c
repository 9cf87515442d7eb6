/* Defines the decoding of e4m3 in plain C. */
#include "kernels/cpu/e4m3_decode.h"

#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/block_fp8.h"
#include "kernels/cpu/variants.h"

#include <string.h>

static float value(uint8_t code, float scale)
{
    return tsr_e4m3_to_f32(code) * scale;
}

static bool is_nan(uint8_t code)
{
    return (code & 0x7F) == 0x7F;
}

/* Stores the value of a code, or a NaN with its sign, as element `at` of y. */
typedef void store_fn(void *y, size_t at, uint8_t code, float scale);

ALWAYS_INLINE void store_bf16(void *y, size_t at, uint8_t code, float scale)
{
    ((uint16_t *)y)[at] =
        is_nan(code) ? (uint16_t)((code & 0x80) << 8 | 0x7FC0) : tsr_bf16_from_f32(value(code, scale));
}

ALWAYS_INLINE void store_f16(void *y, size_t at, uint8_t code, float scale)
{
    ((uint16_t *)y)[at] = is_nan(code) ? (uint16_t)((code & 0x80) << 8 | 0x7E00) : tsr_f16_from_f32(value(code, scale));
}

ALWAYS_INLINE void store_f32(void *y, size_t at, uint8_t code, float scale)
{
    const uint32_t nan = (uint32_t)(code & 0x80) << 24 | 0x7FC00000;
    const float x = value(code, scale);
    memcpy((float *)y + at, is_nan(code) ? (const void *)&nan : &x, sizeof x);
}

ALWAYS_INLINE bool decode(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                          const float *scales, store_fn *store, void *y, size_t ld)
{
    bool found = false;
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            const uint8_t code = codes[r * ld_codes + c];
            found = found || is_nan(code);
            store(y, r * ld + c, code, scales[c / block_cols]);
        }
    }
    return found;
}

bool tsr_decode_e4m3_bf16_ref(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                              const float *scales, uint16_t *y, size_t ld)
{
    return decode(codes, rows, cols, ld_codes, block_cols, scales, store_bf16, y, ld);
}

bool tsr_decode_e4m3_f16_ref(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                             const float *scales, uint16_t *y, size_t ld)
{
    return decode(codes, rows, cols, ld_codes, block_cols, scales, store_f16, y, ld);
}

bool tsr_decode_e4m3_f32_ref(const uint8_t *codes, size_t rows, size_t cols, size_t ld_codes, size_t block_cols,
                             const float *scales, float *y, size_t ld)
{
    return decode(codes, rows, cols, ld_codes, block_cols, scales, store_f32, y, ld);
}
