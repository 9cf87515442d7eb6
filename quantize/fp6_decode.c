/* Unpacks each row of 6-bit codes to e4m3, in which every value of both elements is exact, and decodes it as MXFP8. */
#include "quantize/fp6_decode.h"

/* The e4m3 codes of the non-negative codes of each element. The sign moves from bit 5 to bit 7. */
static const uint8_t kE2m3[32] = {
    0x00, 0x20, 0x28, 0x2C, 0x30, 0x32, 0x34, 0x36, 0x38, 0x39, 0x3A, 0x3B, 0x3C, 0x3D, 0x3E, 0x3F,
    0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4A, 0x4B, 0x4C, 0x4D, 0x4E, 0x4F,
};
static const uint8_t kE3m2[32] = {
    0x00, 0x18, 0x20, 0x24, 0x28, 0x2A, 0x2C, 0x2E, 0x30, 0x32, 0x34, 0x36, 0x38, 0x3A, 0x3C, 0x3E,
    0x40, 0x42, 0x44, 0x46, 0x48, 0x4A, 0x4C, 0x4E, 0x50, 0x52, 0x54, 0x56, 0x58, 0x5A, 0x5C, 0x5E,
};

static void unpack(const uint8_t *codes, uint64_t cols, const uint8_t table[32], uint8_t *e4m3)
{
    for (uint64_t col = 0; col < cols; col += 4, codes += 3, e4m3 += 4) {
        const uint32_t word = codes[0] | (uint32_t)codes[1] << 8 | (uint32_t)codes[2] << 16;
        for (unsigned i = 0; i < 4; i++) {
            const uint32_t code = word >> 6 * i;
            e4m3[i] = (uint8_t)(table[code & 31] | (code & 32) << 2);
        }
    }
}

size_t tsr_fp6_decode_scratch(uint64_t cols)
{
    return tsr_mx_decode_scratch(cols) + cols;
}

tsr_status tsr_fp6_decode(const tsr_cpu_kernels *kernels, const tsr_mx_span *span, bool e3m2, tsr_dtype dtype,
                          void *out, void *scratch, tsr_err *err)
{
    const uint64_t cols = span->cols;
    uint8_t *const e4m3 = (uint8_t *)scratch + tsr_mx_decode_scratch(cols);
    tsr_mx_span row = *span;
    row.element = TSR_MX_E4M3;
    row.codes = e4m3;
    row.rows = 1;
    if (cols % 4 != 0)
        return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_SHAPE, span->codes_of->name,
                               "its rows are not whole words of four codes");
    for (uint64_t i = 0; i < span->rows; i++) {
        unpack(span->codes + i * (cols / 4 * 3), cols, e3m2 ? kE3m2 : kE2m3, e4m3);
        TSR_TRY(tsr_mx_decode(kernels, &row, dtype, (char *)out + i * cols * tsr_dtype_bytes(dtype), scratch, err));
        row.row++;
        row.scales += cols / row.group;
    }
    return TSR_OK;
}
