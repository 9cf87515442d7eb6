/* Declares access to rows of a weight of codes: what a unit reads, and how it is decoded. One table, with a row per
 * family of formats, serves every operation that reads codes. */
#pragma once

#include "convert/plan/plan.h"
#include "formats/weights/weights.h"
#include "quantize/fp8_decode.h"

/* Some rows (outputs) of a weight of codes: all, those of one expert of a stack, or every second one if gate and up are
 * interleaved. */
typedef struct tsr_row_view {
    const tsr_weight *weight;
    uint64_t first, step; /* row r of the view is row first + r * step of the weight, numbered through all matrices */
    uint64_t rows;
} tsr_row_view;

/* Returns a view of all rows of a weight. */
tsr_row_view tsr_view_whole(const tsr_weight *weight);

/* Returns the window of rows [row, row + rows) of the view in a tensor whose bytes are spread evenly over the weight's
 * rows. */
tsr_window tsr_view_window(const tsr_row_view *view, const tsr_tensor *t, uint64_t row, uint64_t rows);

/* Returns these rows, which are in one matrix, as an e4m3 rectangle. The caller sets the pointers to the data. */
tsr_fp8_rect tsr_view_rect(const tsr_row_view *view, uint64_t row, uint64_t rows);

/* Rows [row, row + rows) of a view, of one matrix of its weight. */
typedef struct tsr_coded_rows {
    const tsr_row_view *view;
    uint64_t row, rows;
    void *const *in; /* data read through the windows */
} tsr_coded_rows;

typedef struct tsr_row_decoder {
    unsigned begin, end; /* rows must begin at a multiple of `begin` and end at a multiple of `end`, or at the ends of
                          * the view */
    void (*windows)(const tsr_row_view *view, uint64_t row, uint64_t rows, tsr_window in[TSR_DECODED_INPUTS]);
    size_t (*scratch)(const tsr_weight *weight);
    /* Decodes to dense rows of BF16, F16 or F32. Thread-safe. */
    tsr_status (*decode)(const tsr_coded_rows *rows, const tsr_cpu_kernels *kernels, tsr_dtype dtype, void *out,
                         void *scratch, tsr_err *err);
} tsr_row_decoder;

/* Returns the decoder of a weight of codes. AWQ, GPTQ and integers must be matrices and are viewed as a whole. */
const tsr_row_decoder *tsr_row_decoder_of(const tsr_weight *weight);

/* Lists the tensors that its windows refer to. Returns their number. */
uint32_t tsr_row_decoder_inputs(const tsr_weight *weight, const tsr_tensor *in[TSR_DECODED_INPUTS]);
