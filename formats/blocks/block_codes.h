/* Codes positive numbers as bytes: the logarithm in steps of 1/16 binade, relative to a base that a whole plane shares.
 *
 * Step k is the FP32 number with the bits k << 19: 4 bits of its mantissa are kept, so that a decoded number is
 * within 1/32 of the one that was coded (but for FP32's subnormals, which are coarser). Code c means step base + c. */
#ifndef TSR_FORMATS_BLOCKS_BLOCK_CODES_H
#define TSR_FORMATS_BLOCKS_BLOCK_CODES_H

#include <stddef.h>
#include <stdint.h>

enum {
    TSR_BLOCK_ZERO = 0,
    TSR_BLOCK_LOW = 1,   /* above zero, and at most the value of this code */
    TSR_BLOCK_TOP = 253, /* the largest code of a finite number */
    TSR_BLOCK_INF = 254,
    TSR_BLOCK_NAN = 255,
    TSR_BLOCK_STEP_BITS = 19,
    TSR_BLOCK_LAST_STEP = 4079, /* that of the largest finite numbers */
};

/* Codes n numbers, none of them below zero nor -0, and returns the base: the least that lets the largest finite one have a
 * code. 253 codes reach 15.8 binades down from there. */
uint16_t tsr_block_encode(const float *x, size_t n, uint8_t *codes);

/* Returns the value of a code. */
float tsr_block_decode(uint16_t base, uint8_t code);

#endif
