/* Entry points of block FP8 that AVX2, AVX-512 and NEON share. Their files include it after e4m3_bands_body.h. */

void TSR_BLOCK_FP8(amax_bf16)(const uint16_t *x, size_t rows, size_t cols, size_t ld, size_t block_cols, uint32_t *amax)
{
    amax_band(x, rows, cols, ld, block_cols, amax);
}

void TSR_BLOCK_FP8(error_e4m3_bf16)(const uint16_t *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                                    size_t ld_codes, float scale, tsr_block_error *error)
{
    const error_input in = {x, rows, cols, ld, codes, ld_codes};
    if (!measure_block(&in, true, scale, error))
        tsr_error_e4m3_bf16_ref(x, rows, cols, ld, codes, ld_codes, scale, error);
}

void TSR_BLOCK_FP8(error_e4m3_f32)(const float *x, size_t rows, size_t cols, size_t ld, const uint8_t *codes,
                                   size_t ld_codes, float scale, tsr_block_error *error)
{
    const error_input in = {x, rows, cols, ld, codes, ld_codes};
    if (!measure_block(&in, false, scale, error))
        tsr_error_e4m3_f32_ref(x, rows, cols, ld, codes, ld_codes, scale, error);
}
