/* Declares the block of elements that share a scale.
 *
 * The kernels of kernels/cpu take only `block_cols`, because they get one row of blocks. tsr_fp8_block has two 32-bit
 * numbers beside its scale format, because they are never passed on as a pair. */
#pragma once

#include "common/text.h"

#include <stdbool.h>
#include <stdint.h>

/* 0 x 0 if none is stated. */
typedef struct tsr_block {
    uint64_t rows, cols;
} tsr_block;

static inline bool tsr_block_equal(tsr_block a, tsr_block b)
{
    return a.rows == b.rows && a.cols == b.cols;
}

/* Reads "128x128", two decimal numbers from 1 to `most`. Returns false and leaves *block unchanged for any other
 * text. */
static inline bool tsr_read_block(const char *text, uint64_t most, tsr_block *block)
{
    tsr_block read;
    if (!tsr_take_decimal(&text, &read.rows) || *text++ != 'x' || !tsr_parse_decimal(text, &read.cols) ||
        read.rows == 0 || read.cols == 0 || read.rows > most || read.cols > most)
        return false;
    *block = read;
    return true;
}

/* Returns the block of the transpose. */
static inline tsr_block tsr_block_transposed(tsr_block b)
{
    return (tsr_block){.rows = b.cols, .cols = b.rows};
}
