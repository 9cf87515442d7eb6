/* The codings of a tensor's elements. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

#include <stddef.h>

/* R and C are the rows (outputs) and columns (inputs) of the codes, in whatever order they are stored. */
typedef enum tsr_coding {
    TSR_PLAIN,
    TSR_CODED_E4M3,    /* F8_E4M3 [R, C] or [M, R, C] */
    TSR_CODED_INT8,    /* I8 [R, C], two's complement */
    TSR_CODED_PACKED,  /* I32 [R, ceil(C * bits / 32)]: code + 2^(bits-1), the first in the lowest bits */
    TSR_CODED_NIBBLES, /* I8 [R, C / 2]: two 4-bit codes per byte in two's complement, the even column in the low bits */
    TSR_CODED_E2M1,    /* U8 or I8 [R, C / 2], [M, R, C / 2] or [M, R, C / 32, 16]: two codes per byte, the even column
                       * in the low four bits. F4 [R, C] or [M, R, C], whose shape counts codes, has the same bytes */
    TSR_CODED_E2M3,    /* U8 [R, 3 * C / 4] or [M, R, 3 * C / 4]: four 6-bit codes per three bytes, the first in the
                       * lowest bits of the little-endian word of 24 bits; sign, 2 bits of exponent, 3 of mantissa */
    TSR_CODED_E3M2,    /* the same with 3 bits of exponent and 2 of mantissa */
    /* I32 [C, R / 8]: unsigned 4-bit codes; word j of a column holds rows 8j + (0, 2, 4, 6, 1, 3, 5, 7), lowest bits
     * first. Zero points [groups, R / 8] have the same order; scales are [groups, R] */
    TSR_CODED_AWQ,
    /* I32 [ceil(C * bits / 32), R]: unsigned; a word holds consecutive columns of a row, lowest bits first. Zero points
     * [groups, ceil(R * bits / 32)] hold consecutive rows in a word; scales are [groups, R] */
    TSR_CODED_GPTQ,
    TSR_UNREAD, /* only from tsr_weights_survey: a coding that Tessera cannot interpret; never decoded */
} tsr_coding;

/* ---- tensors by their names ---- */

/* Returns the length of a name without ".weight" ("model.layers.0.mlp.down_proj.weight"); other names stay whole. */
size_t tsr_module_length(const char *name);

/* Returns the item that is named by the first `length` characters of `name`; NULL: there is none. The first member of
 * an item is its name, a `const char *`. `items` are `count` elements of `size` bytes each, sorted by strcmp. */
const void *tsr_find_module(const void *items, size_t count, size_t size, const char *name, size_t length);

/* Returns the length of "model.layers.3.mlp.experts." in the name of an expert or a stack of experts; 0 for others.
 * *digits is the length of the expert's number after it; 0: there is none. */
size_t tsr_experts_length(const char *name, size_t *digits);

/* Returns the tensor named by the first `length` characters of `head`, then `middle` and `tail`. NULL: there is none,
 * or memory is exhausted. */
const tsr_tensor *tsr_find_joined(const tsr_checkpoint *checkpoint, const char *head, size_t length, const char *middle,
                                  const char *tail);

/* Returns the tensor named by the first `length` characters of `name`, then `suffix`; NULL: there is none. */
const tsr_tensor *tsr_find_sibling(const tsr_checkpoint *checkpoint, const char *name, size_t length,
                                   const char *suffix);
