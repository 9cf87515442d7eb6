/* Declares the buffers of a thread that quantizes strips of tensors to compare schemes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Sizes that suffice for every strip: bytes, and for `scales` and `cols` their number. */
typedef struct tsr_strip_sizes {
    uint64_t x, scratch, codes, scales, cols;
} tsr_strip_sizes;

typedef struct tsr_strip_buffers {
    void *x, *scratch;
    int8_t *codes, *zero_points;
    float *scales, *importance; /* importance has an element for each column; valid if `weighted` */
    bool weighted;
} tsr_strip_buffers;

/* Returns the bytes that tsr_strip_buffers_begin allocates, without the padding after each buffer. */
uint64_t tsr_strip_bytes(const tsr_strip_sizes *sizes);

/* Allocates the buffers. Returns NULL when out of memory. */
tsr_strip_buffers *tsr_strip_buffers_begin(const tsr_strip_sizes *sizes);

/* Frees a tsr_strip_buffers. NULL is fine. */
void tsr_strip_buffers_end(void *buffers);
