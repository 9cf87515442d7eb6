/* Declares kernels that convert int8 and int4 codes to the layouts of kernels/cpu/ft_layout.h and back, in one pass.
 *
 * Codes are two's complement, in one of two orders, row-major:
 *   NK  [N, K], a checkpoint's [out, in]: column n of the layout is row n here
 *   KN  [K, N], what FasterTransformer preprocesses
 * and in one of two sizes: a byte each, or (int4 only) packed two to a byte, the even element in the low nibble. If an
 * int4 code has a byte of its own, its upper four bits are ignored on reading, and copy its sign on writing.
 *
 * Bands. The whole matrix need not be in memory. A band of it is laid out like a separate matrix, and the concatenated
 * bytes of the bands are those of the whole matrix:
 *   T, H, P, CM, *_AFP8   a band of n: a multiple of format->columns of columns, all of K
 *   R                     a band of k: rows whose weights fill whole words (rows * N * bits % 32 == 0)
 * Pass the band's own k and n, the codes of its first row or column, and ld of the whole matrix. The smallest band of T
 * has 2 columns of int8 or 4 of int4. Bands of 64 columns suit the vectors (1.2 MB of int8 at K = 18432), and packed
 * codes in KN order work best with 128. A band in KN order is read fast if its rows are half a kilobyte or longer,
 * because narrower strips of distant rows are slow to read.
 *
 * The calls allocate nothing, keep no state, cannot fail and are thread-safe. Codes and layout must not overlap.
 * Pointers need no alignment. */
#pragma once

#include "kernels/cpu/ft_layout.h"

typedef enum tsr_code_order { TSR_CODES_NK, TSR_CODES_KN } tsr_code_order;

typedef struct tsr_interleave_args {
    const tsr_ft_format *format;
    size_t k, n; /* size of the band; tsr_ft_format_check has accepted it */
    tsr_code_order order;
    bool packed; /* int4 only; the inner size (k in NK order, n in KN order) is even */
    size_t ld;   /* bytes from one row of codes to the next: at least its length */
} tsr_interleave_args;

/* Writes the codes in the layout, k * n * bits / 8 bytes in all. */
typedef void tsr_interleave_fn(const tsr_interleave_args *args, const uint8_t *codes, uint8_t *out);

/* Reads a layout: writes every code, and no byte of `codes` between the end of a row and the start of the next. */
typedef void tsr_deinterleave_fn(const tsr_interleave_args *args, const uint8_t *in, uint8_t *codes);
