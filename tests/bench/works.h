/* The cases of bench_kernels: encoding and decoding one matrix by one thread. */
#pragma once

#include "kernels/cpu/cpu.h"

#include <stddef.h>
#include <stdint.h>

enum { ROWS = 8192, COLS = 7168, BLOCK = 128, BLOCKS = COLS / BLOCK };

typedef struct buffers {
    size_t rows;    /* rows of the matrix, in whole blocks: ROWS, or fewer for slow scalar code */
    uint16_t *bf16; /* [rows][COLS] */
    uint8_t *codes;
    float *scales;      /* [ROWS / BLOCK][BLOCKS] */
    uint16_t *unit;     /* [BLOCK][COLS] */
    uint8_t *mx_scales; /* [ROWS][COLS / 16] */
    uint8_t *copy;      /* as large as the buffers of memcpy */
} buffers;

/* memcpy baseline: moves the same number of bytes, half reads and half writes. */
enum { PER_WEIGHT_8 = 12, PER_WEIGHT_4 = 10 }; /* quarters of a byte: BF16 and a code of 8 or of 4 bits */

/* Required share of memcpy's speed with AVX2, with AVX-512 and with VBMI; 0: none. */
typedef struct floors {
    double avx2, avx512, vbmi;
} floors;

typedef struct work {
    const char *name;
    void (*run)(const tsr_cpu_kernels *k, const buffers *b);
    unsigned quarters; /* PER_WEIGHT_ */
    floors floors;
} work;

extern const work kEncodes[], kDecodes[];
extern const size_t kEncodeCount, kDecodeCount;

extern double sink; /* keeps sums alive that are not used otherwise */
