/* Reads rows of a weight of the base and of its update, for the step that merges them and for the largest merged
 * value. */
#pragma once

#include "convert/ops/merge/update_rows.h"
#include "convert/ops/rows/row_decoder.h"
#include "formats/weights/weights.h"

enum { TSR_MERGE_ADAPTERS = (TSR_MAX_INPUTS - TSR_DECODED_INPUTS) / 2 }; /* most that a merge adds */

typedef struct tsr_merge_source {
    tsr_weight weight; /* matrices, rows and cols are set for plain weights too */
    tsr_row_view view;
    const tsr_row_decoder *decoder; /* NULL: plain */
    tsr_update updates[TSR_MERGE_ADAPTERS];
    uint32_t n_updates;
    uint32_t n_base;   /* inputs of the base; A and B of each update follow */
    tsr_tensor values; /* describes the FP32 values */
} tsr_merge_source;

/* Copies a weight and its updates to the plan's arena. The tensors of an update are those of its source in the plan.
 * Returns NULL when memory is exhausted. */
tsr_merge_source *tsr_merge_source_make(tsr_plan *plan, const tsr_weight *weight, const tsr_update *updates,
                                        uint32_t n);

/* Lists the inputs in the order of the windows. Returns their number. */
uint32_t tsr_merge_source_inputs(const tsr_merge_source *source, const tsr_tensor *in[TSR_MAX_INPUTS]);

/* Compute windows for rows [row, row + rows) of one matrix, numbered through all matrices. The first function has the
 * windows of the base, the second those of the adapter, too. */
void tsr_merge_base_windows(const tsr_merge_source *source, uint64_t row, uint64_t rows, tsr_window *in);
void tsr_merge_source_windows(const tsr_merge_source *source, uint64_t row, uint64_t rows, tsr_window *in);

/* Makes the factors of all updates from the data of the windows in the adapters. They are in `scratch`, of
 * tsr_merge_factors_scratch bytes. Thread-safe. TSR_E_VALUE: NaN or Inf. */
uint64_t tsr_merge_factors_scratch(const tsr_merge_source *source, uint64_t rows);
tsr_status tsr_merge_make_factors(const tsr_merge_source *source, uint64_t row, uint64_t rows, void *const *in,
                                  const tsr_cpu_kernels *kernels, void *scratch,
                                  tsr_update_factors factors[TSR_MERGE_ADAPTERS], tsr_err *err);

/* Computes the sum of the updates, in their order, for `rows` rows from the row `skip` of the factors on: `out` and
 * `one` are [rows, cols]; `one` is work space. Without an update it is 0. */
void tsr_merge_compute(const tsr_merge_source *source, const tsr_update_factors *factors, uint64_t skip, uint64_t rows,
                       const tsr_cpu_kernels *kernels, float *out, float *one);

/* Decodes rows to FP32 [rows, cols]. `in` has the data of their windows in the base. `scratch` has
 * tsr_merge_decode_scratch bytes. Thread-safe. */
uint64_t tsr_merge_decode_scratch(const tsr_merge_source *source);
tsr_status tsr_merge_decode(const tsr_merge_source *source, uint64_t row, uint64_t rows, void *const *in,
                            const tsr_cpu_kernels *kernels, float *out, void *scratch, tsr_err *err);

/* Rejects values that are NaN or infinite: TSR_E_VALUE, with the position of the first. `when` ends the message. */
tsr_status tsr_merge_check(const tsr_merge_source *source, uint64_t row, uint64_t rows, const float *x,
                           const char *when, const tsr_cpu_kernels *kernels, tsr_err *err);

/* Makes the largest |x| of the merged values of some weights, each of one matrix. NULL: memory is exhausted. */
const tsr_amax *tsr_merge_amax(tsr_plan *plan, tsr_merge_source *const *sources, size_t n);
