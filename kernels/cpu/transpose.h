/* Declares kernels that transpose matrices.
 *
 * The functions allocate nothing, cannot fail and are thread-safe; every variant gives the same bits. Source and
 * destination must not overlap. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* y[c * ld_y + r] = x[r * ld_x + c] for a matrix of rows x cols elements; the pitches count elements. */
typedef void tsr_transpose16_fn(const uint16_t *x, size_t rows, size_t cols, size_t ld_x, uint16_t *y, size_t ld_y);
typedef void tsr_transpose32_fn(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y, size_t ld_y);

/* Transposes nibbles in words of 8, nibble k in bits 4k and up, in blocks of 8 rows: nibble q of row r of a block
 * becomes nibble r of row q. `rows` is a multiple of 8. x has the pitch ld_x, and y has no gaps: [rows, cols]. */
typedef void tsr_transpose_nibbles_fn(const uint32_t *x, size_t rows, size_t cols, size_t ld_x, uint32_t *y);
