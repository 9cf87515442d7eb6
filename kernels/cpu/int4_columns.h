/* Declares kernels that decode int4 codes stored by columns, with a group per column (act-order).
 *
 * The functions allocate nothing, cannot fail and are thread-safe; every variant gives the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Added to a 4-bit code before the product, so that all codes have the same exponent. */
#define TSR_INT4_RAISE 128.0f

/* Words to prefetch: rows of `cols` words from `asked` on. */
typedef struct tsr_words_ahead {
    const uint32_t *at;
    size_t rows, cols, ld;
    size_t asked; /* prefetched words of the first row */
} tsr_words_ahead;

/* The columns of some rows: word [c / 8, r] holds columns c .. c + 7 of row r, the first in its lowest bits. Column c
 * belongs to group[c], and group g has the scales and offsets of its rows from g * ld_groups on. Pitches count
 * elements. While words are read, the same number of words of `ahead` is prefetched, unless it is NULL: reads must not
 * wait for memory, but too many requests at once would block it. */
typedef struct tsr_int4_columns {
    const uint32_t *words;
    size_t rows, cols, ld_words;
    const uint32_t *group;
    const float *scale, *offset;
    size_t ld_groups;
    tsr_words_ahead *ahead;
} tsr_int4_columns;

/* y[r * ld + c] = (TSR_INT4_RAISE + code) * scale + offset, rounded to FP32 once and then to BF16, both to nearest
 * even. Scales and offsets are finite, and no result is NaN. */
typedef void tsr_decode_int4_columns_bf16_fn(const tsr_int4_columns *x, uint16_t *y, size_t ld);

/* Sets offset[i] = -(TSR_INT4_RAISE + zero[i]) * scale[i], for zeros that are integers of at most 5 bits. Returns true
 * if all scales are positive and have at most 16 significant bits (F16 and BF16 have fewer). Then no product is
 * rounded, and tsr_decode_int4_columns_bf16_fn gives the bits of (code - zero) * scale, including the signs of
 * zeros. */
typedef bool tsr_fold_zeros_fn(const float *scale, const float *zero, size_t n, float *offset);
