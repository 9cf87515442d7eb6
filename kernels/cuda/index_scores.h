/* Scores of an indexer in FP8 on a GPU, with the definition of kernels/cpu/index_scores.h: DeepGEMM's fp8_mqa_logits.
 *
 * The plain kernel has the bits of the definition. The fast one needs sm_90, width 128, 32 or 64 heads, and q and k
 * 16-byte aligned. Codes, scales and weights of keys that a query does not see may be anything.
 *
 * Kernel error of the fast kernel against the exact value over the same operands, |logits - exact| <=
 *     |k_scale| * sum over h of |weights| * (E + 1.01 * (heads + 8) * 2^-24 * (relu + E)),
 *     E = sum over the 4 steps of 32: 33 * 2^-13 * 1.01 * max(|acc|, max |p|)
 * where acc is the accumulator of head h before the step, p are its 32 products, and relu is the exact sum of the head,
 * or 0. Derivation: E is the bound of a tile in kernels/cuda/block_fp8_gemm.h, and relu does not increase it. A head's
 * term then goes through a product, at most heads additions in FP32, and the product with the scale. */
#pragma once

#include "kernels/cpu/index_scores.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tsr_index_kind { TSR_INDEX_AUTO, TSR_INDEX_PLAIN, TSR_INDEX_FAST } tsr_index_kind;

/* Returns the kernel for this problem on this device if `kind` is TSR_INDEX_AUTO, else `kind`. Pure. */
tsr_index_kind tsr_cuda_index_choose(const tsr_index_scores *args, tsr_index_kind kind, const tsr_cuda_device *device);

/* Launches the scores; the pointers of args are in device memory. TSR_E_UNSUPPORTED: the requested kernel does not fit
 * the arguments or the device. TSR_E_SHAPE: sizes are too large. */
tsr_status tsr_cuda_index_scores(const tsr_index_scores *args, tsr_index_kind kind, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
