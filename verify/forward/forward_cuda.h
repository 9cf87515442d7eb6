/* Declares the operations of a forward pass on a GPU, in FP64 (kernels/cuda/forward_f64.h).
 *
 * Threads of the host decode weights band by band, while the GPU multiplies the previous band. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_CUDA_H
#define TSR_VERIFY_FORWARD_FORWARD_CUDA_H

#include "verify/forward/forward_ops.h"

/* Opens the operations of GPU `number`. The calling thread is bound to GPU 0. GPUs with smaller numbers must be
 * open. tsr_ops.close frees their memory. TSR_E_DEVICE: no suitable GPU, or Tessera was built without CUDA. */
tsr_status tsr_ops_of_cuda(tsr_ops *ops, size_t number, unsigned threads, const atomic_bool *cancel,
                           tsr_err *err) TSR_WARN_UNUSED;

#endif
