/* Private declarations of the weight reader. */
#pragma once

#include "verify/values/unpack.h"
#include "verify/values/weight_reader.h"

/* Returns the packing of codes, or of zero points, of a transposed view. */
tsr_order tsr_view_code_order(const tsr_view *view);
tsr_order tsr_view_zero_order(const tsr_view *view);

/* A run of elements of one line of the file. */
typedef struct tsr_span {
    uint64_t first, bytes; /* bytes that contain the elements, in whole units */
} tsr_span;

/* Returns the span of elements [at, at + n) of `bits` each, in units of `unit` bits. */
tsr_span tsr_span_of(uint64_t at, uint64_t n, uint64_t bits, uint64_t unit);

/* Reads n runs of `bytes`, `pitch` apart in the tensor from `offset` on, into contiguous memory. */
tsr_status tsr_read_runs(const tsr_view *view, const tsr_tensor *tensor, uint64_t offset, uint64_t n, uint64_t bytes,
                         uint64_t pitch, unsigned char *to, tsr_err *err);

/* Grows *memory to at least n elements of `size`. Its contents are lost. */
tsr_status tsr_reader_room(void **memory, size_t *capacity, uint64_t n, size_t size, const tsr_view *view,
                           tsr_err *err);

/* Loads the scales, zero points and groups of the reader's piece. */
tsr_status tsr_reader_load_scales(tsr_weight_reader *reader, tsr_err *err);

/* Returns the most bytes that they need for pieces of this size. */
uint64_t tsr_reader_scales_memory(const tsr_view *view, const tsr_piece *piece);
