/* Verifies the product of a row-parallel layer: tensor-parallel ranks multiply parts of K, and their results are added.
 *
 * This is what vLLM's RowParallelLinear does. Each rank has K / ranks input features, in whole blocks of scales. It
 * rounds its result to the type of the layer's output, and the all-reduce adds in that type. */
#ifndef TSR_VERIFY_KERNELS_GEMM_RANKS_H
#define TSR_VERIFY_KERNELS_GEMM_RANKS_H

#include "verify/kernels/gemm_operands.h"

/* Returns true if loaders divide this weight along K, and block FP8 kernels multiply it. */
bool tsr_gemm_is_row_parallel(const tsr_weight *weight);

/* Checks that options->ranks can divide the row-parallel weights among the entries, and connects the GPUs of the ranks
 * (check->how). * Entries that are not divided are multiplied as without ranks. TSR_E_USAGE: a weight cannot be divided.
 * TSR_E_NOT_APPLICABLE: no weight is row-parallel. */
tsr_status tsr_gemm_ranks_begin(tsr_gemm_check *check, tsr_evidence *evidence, tsr_err *err) TSR_WARN_UNUSED;

/* Runs every kernel on each rank's part of the operands, adds the results, and judges the sum in each result type. A set
 * of experts runs in the contiguous layout. */
tsr_status tsr_gemm_check_ranks(tsr_gemm_operands *operands, tsr_err *err) TSR_WARN_UNUSED;

#endif
