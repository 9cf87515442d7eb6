/* The elements of a matrix that share a scale. */
#ifndef TSR_COMMON_BLOCK_H
#define TSR_COMMON_BLOCK_H

#include <stdint.h>

/* 0 x 0 where none is stated. */
typedef struct tsr_block {
    uint64_t rows, cols;
} tsr_block;

#endif
