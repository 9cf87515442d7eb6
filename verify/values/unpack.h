/* Reorders codes that are stored along the columns of their matrix: one code per byte, row by row.
 *
 * The file has lines. A line is a column of the matrix, or several columns. */
#pragma once

#include <stddef.h>

typedef enum tsr_order {
    TSR_ORDER_ALONG, /* gpt-oss; zero points of GPTQ. A line is a column, its first row in the lowest bits */
    TSR_ORDER_AWQ, /* a line is a column, in words of eight rows: row 8j + p is nibble {0,4,1,5,2,6,3,7}[p] of word j */
    TSR_ORDER_GPTQ, /* a line is 32 / bits columns, one word per row with the first column in the lowest bits */
} tsr_order;

/* Lines as read from the file. */
typedef struct tsr_lines {
    tsr_order order;
    unsigned bits; /* 4 or 8; for AWQ 4 */
    const unsigned char *bytes;
    size_t pitch; /* distance of lines in bytes */
    size_t row;   /* the first needed row, counted from the start of the lines: less than a word's */
    size_t col;   /* the first column */
} tsr_lines;

/* Sets codes[r * cols + c] to the code of row lines->row + r, column lines->col + c. */
void tsr_unpack(const tsr_lines *lines, size_t rows, size_t cols, unsigned char *codes);
