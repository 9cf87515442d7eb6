/* Rows of a weight of codes: what a unit reads of them, and how they are decoded. One table, a row a family of kinds, for
 * every operation that reads codes. */
#ifndef TSR_CONVERT_OPS_ROWS_ROW_DECODER_H
#define TSR_CONVERT_OPS_ROWS_ROW_DECODER_H

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_decode.h"

/* Some rows of a weight of codes, its outputs: all, those of one expert of a stack, or every other one of it, where gate
 * and up are interleaved. */
typedef struct tsr_row_view {
    const tsr_weight *weight;
    uint64_t first, step; /* row r of the view is row first + r * step of the weight's, counted over all matrices */
    uint64_t rows;
} tsr_row_view;

/* All rows of a weight. */
tsr_row_view tsr_view_whole(const tsr_weight *weight);

/* Returns the window of rows [row, row + rows) of the view in a tensor whose bytes are spread evenly over the weight's
 * rows. */
tsr_window tsr_view_window(const tsr_row_view *view, const tsr_tensor *t, uint64_t row, uint64_t rows);

/* These rows, which are of one matrix, as a rectangle of e4m3; what is read of them is still to be set. */
tsr_fp8_rect tsr_view_rect(const tsr_row_view *view, uint64_t row, uint64_t rows);

/* Rows [row, row + rows) of a view, of one matrix of its weight. */
typedef struct tsr_coded_rows {
    const tsr_row_view *view;
    uint64_t row, rows;
    void *const *in; /* what the windows read */
} tsr_coded_rows;

typedef struct tsr_row_decoder {
    unsigned begin, end; /* rows begin at a multiple of the one and end at one of the other, or where the view does */
    void (*windows)(const tsr_row_view *view, uint64_t row, uint64_t rows, tsr_window in[TSR_DECODED_INPUTS]);
    size_t (*scratch)(const tsr_weight *weight);
    /* Decodes to dense rows of BF16, F16 or F32. Thread-safe. */
    tsr_status (*decode)(const tsr_coded_rows *rows, const tsr_cpu_kernels *kernels, tsr_dtype dtype, void *out,
                         void *scratch, tsr_err *err);
} tsr_row_decoder;

/* The decoder of a weight of codes. AWQ, GPTQ and integers are matrices, and seen whole. */
const tsr_row_decoder *tsr_row_decoder_of(const tsr_weight *weight);

/* The tensors that its windows are of. Returns how many there are. */
uint32_t tsr_row_decoder_inputs(const tsr_weight *weight, const tsr_tensor *in[TSR_DECODED_INPUTS]);

#endif
