/* Unpacks 4-bit and 8-bit codes of AWQ, GPTQ and gpt-oss, which are packed along columns, to one code per byte. */
#include "verify/values/unpack.h"

#include <stdint.h>
#include <string.h>

enum { WORD_BITS = 32 };

static uint32_t word_at(const unsigned char *bytes, size_t index)
{
    uint32_t word;
    memcpy(&word, bytes + index * sizeof word, sizeof word);
    return word;
}

static void unpack_along(const tsr_lines *l, size_t rows, size_t cols, unsigned char *codes)
{
    const unsigned per_byte = 8 / l->bits, mask = (1u << l->bits) - 1;
    for (size_t c = 0; c < cols; c++) {
        const unsigned char *const line = l->bytes + (l->col + c) * l->pitch;
        for (size_t r = 0; r < rows; r++) {
            const size_t at = l->row + r;
            codes[r * cols + c] = (unsigned char)(line[at / per_byte] >> at % per_byte * l->bits & mask);
        }
    }
}

static void unpack_awq(const tsr_lines *l, size_t rows, size_t cols, unsigned char *codes)
{
    static const unsigned kNibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (size_t c = 0; c < cols; c++) {
        const unsigned char *const line = l->bytes + (l->col + c) * l->pitch;
        for (size_t r = 0; r < rows; r++) {
            const size_t at = l->row + r;
            codes[r * cols + c] = (unsigned char)(word_at(line, at / 8) >> 4 * kNibbles[at % 8] & 15);
        }
    }
}

static void unpack_gptq(const tsr_lines *l, size_t rows, size_t cols, unsigned char *codes)
{
    const size_t per_word = WORD_BITS / l->bits;
    const uint32_t mask = (1u << l->bits) - 1;
    for (size_t c = 0; c < cols; c++) {
        const size_t at = l->col + c;
        const unsigned char *const line = l->bytes + at / per_word * l->pitch;
        for (size_t r = 0; r < rows; r++)
            codes[r * cols + c] = (unsigned char)(word_at(line, l->row + r) >> at % per_word * l->bits & mask);
    }
}

void tsr_unpack(const tsr_lines *lines, size_t rows, size_t cols, unsigned char *codes)
{
    switch (lines->order) {
    case TSR_ORDER_AWQ:
        unpack_awq(lines, rows, cols, codes);
        break;
    case TSR_ORDER_GPTQ:
        unpack_gptq(lines, rows, cols, codes);
        break;
    default:
        unpack_along(lines, rows, cols, codes);
    }
}
