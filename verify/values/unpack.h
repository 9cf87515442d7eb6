/* Codes that lie across the rows of their matrix in the file, put in order: one code a byte, row by row.
 *
 * The file has lines, which run along the rows of the matrix: a line is a column of the matrix, or several of them. */
#ifndef TSR_VERIFY_VALUES_UNPACK_H
#define TSR_VERIFY_VALUES_UNPACK_H

#include <stddef.h>

typedef enum tsr_order {
    TSR_ORDER_ALONG, /* gpt-oss; zero points of GPTQ. A line is a column, its first row in the lowest bits */
    TSR_ORDER_AWQ, /* a line is a column, in words of eight rows: row 8j + p is nibble {0,4,1,5,2,6,3,7}[p] of word j */
    TSR_ORDER_GPTQ, /* a line is 32 / bits columns, a word for each row with the first column in the lowest bits */
} tsr_order;

/* Lines as they were read. */
typedef struct tsr_lines {
    tsr_order order;
    unsigned bits; /* 4 or 8; of AWQ 4 */
    const unsigned char *bytes;
    size_t pitch; /* bytes from one line to the next */
    size_t row;   /* the first row that is wanted, counted from where the lines begin: less than a word's */
    size_t col;   /* the first column */
} tsr_lines;

/* codes[r * cols + c] = the code of row lines->row + r, column lines->col + c. */
void tsr_unpack(const tsr_lines *lines, size_t rows, size_t cols, unsigned char *codes);

#endif
