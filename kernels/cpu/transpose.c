/* Defines the transposition of matrices. */
#include "kernels/cpu/transpose.h"

#include "kernels/cpu/variants.h"

void tsr_transpose16_ref(const uint16_t *x, size_t rows, size_t cols, size_t ld_x, uint16_t *y, size_t ld_y)
{
    for (size_t c = 0; c < cols; c++) {
        for (size_t r = 0; r < rows; r++)
            y[c * ld_y + r] = x[r * ld_x + c];
    }
}

void tsr_transpose32_ref(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y, size_t ld_y)
{
    for (size_t c = 0; c < cols; c++) {
        for (size_t r = 0; r < rows; r++)
            y[c * ld_y + r] = x[r * ld_x + c];
    }
}

void tsr_transpose_nibbles_ref(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y)
{
    for (size_t row = 0; row < rows; row++) {
        const size_t block = row / 8 * 8, q = row % 8;
        for (size_t c = 0; c < cols; c++) {
            uint32_t word = 0;
            for (size_t r = 0; r < 8; r++)
                word |= (x[(block + r) * ld_x + c] >> 4 * q & 15) << 4 * r;
            y[row * cols + c] = word;
        }
    }
}
