/* Computes rows of the update of a weight by a low-rank adapter: scale * (B * A), in FP32.
 *
 * An element is scale * s, where s is the FP32 sum over ranks in order of B's value times A's (kernels/cpu/low_rank.h).
 * formats/adapters/lora.h describes A and B. */
#pragma once

#include "convert/plan/plan.h"

typedef struct tsr_update {
    const tsr_tensor *a, *b;       /* [E * rank, in] and [out, rank * E]: BF16, F16 or F32 */
    uint64_t matrices, rows, cols; /* E, and the shape of one matrix of the weight as stored */
    uint64_t rank;
    float scale;
    bool turned; /* the weight is stored as [in, out], otherwise as [out, in] */
} tsr_update;

/* The two factors of some rows, in the form of tsr_low_rank_fn. */
typedef struct tsr_update_factors {
    const float *left, *right;
} tsr_update_factors;

/* Computes the windows of A and B that rows [row, row + rows) need. They are numbered through all matrices and are in
 * one matrix. */
void tsr_update_windows(const tsr_update *update, uint64_t row, uint64_t rows, tsr_window in[2]);

/* Returns the bytes of scratch for the factors of this many rows. */
uint64_t tsr_update_scratch(const tsr_update *update, uint64_t rows);

/* Makes the factors from the data of the windows. They are in `scratch`. Thread-safe. TSR_E_VALUE: NaN or Inf. */
tsr_status tsr_update_make_factors(const tsr_update *update, uint64_t row, uint64_t rows, void *const in[2],
                                   const tsr_cpu_kernels *kernels, void *scratch, tsr_update_factors *factors,
                                   tsr_err *err);

/* Computes `rows` rows of the update, from the row `skip` of the factors on, to `out` [rows, cols]. */
void tsr_update_compute(const tsr_update *update, const tsr_update_factors *factors, uint64_t skip, uint64_t rows,
                        const tsr_cpu_kernels *kernels, float *out);

/* Adds the update to the values: values[i] + update[i], in FP32. `out` may be either of them. */
void tsr_update_add(const float *values, const float *update, uint64_t n, float *out);
