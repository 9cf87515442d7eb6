/* Encodes 8 columns at a time by division, for AVX2 and NEON. Their files define, before they include it:
 *
 *   load8_fn, load8_bf16, load8_f32            8 columns from x; those beyond n are not read, and count as zeros
 *   divisor_of(scale)                          the scale in every lane
 *   codes8, divided_e4m3(x, divisor)           8 codes in 8 bytes, of finite quotients or infinities */

/* Divides n columns by one scale. Accesses no column beyond n. */
ALWAYS_INLINE void divide(const void *x, size_t x_bytes, size_t n, load8_fn *load, float scale, uint8_t *codes)
{
    for (size_t i = 0; i < n; i += 8) {
        const size_t count = n - i < 8 ? n - i : 8;
        const codes8 eight = divided_e4m3(load((const char *)x + i * x_bytes, count), divisor_of(scale));
        memcpy(codes + i, &eight, count);
    }
}

static __attribute__((noinline)) void encode_by_division(const uint16_t *x, size_t n, float scale, uint8_t *codes)
{
    divide(x, sizeof *x, n, load8_bf16, scale, codes);
}

void TSR_BLOCK_FP8(encode_e4m3_f32)(const float *x, size_t rows, size_t cols, size_t ld, size_t block_cols,
                                    const float *scales, uint8_t *codes, size_t ld_codes)
{
    for (size_t col = 0; col < cols; col += block_cols, scales++) {
        const size_t width = cols - col < block_cols ? cols - col : block_cols;
        for (size_t row = 0; row < rows; row++)
            divide(x + row * ld + col, sizeof *x, width, load8_f32, *scales, codes + row * ld_codes + col);
    }
}
