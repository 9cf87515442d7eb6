/* Codes positive numbers as bytes: the logarithm in steps of 1/16 binade, relative to a base that a whole plane shares.
 *
 * Step k is the FP32 number with the bits k << 19: 4 bits of the mantissa are kept, so a decoded number is within 1/32
 * of the original (FP32 subnormals are coarser). Code c means step base + c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    TSR_BLOCK_ZERO = 0,
    TSR_BLOCK_LOW = 1,   /* positive, but at most the value of this code */
    TSR_BLOCK_TOP = 253, /* the largest code of a finite number */
    TSR_BLOCK_INF = 254,
    TSR_BLOCK_NAN = 255,
    TSR_BLOCK_STEP_BITS = 19,
    TSR_BLOCK_LAST_STEP = 4079, /* step of the largest finite numbers */
};

/* Codes n numbers, none of which is negative or -0. Returns the smallest base with which the largest finite number has
 * a code. From that number down, 253 codes cover 15.8 binades. */
uint16_t tsr_block_encode(const float *x, size_t n, uint8_t *codes);

/* Returns the value of a code. */
float tsr_block_decode(uint16_t base, uint8_t code);
