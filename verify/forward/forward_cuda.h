/* The functions of a forward pass on a GPU, in FP64 (kernels/cuda/forward_f64.h): weights are decoded on the host, by threads, band
 * after band, while the GPU multiplies the band before. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_CUDA_H
#define TSR_VERIFY_FORWARD_FORWARD_CUDA_H

#include "verify/forward/forward_ops.h"

/* Those of GPU `number`, 0 being the calling thread's; the GPUs before it are open. tsr_ops.close gives back what they hold.
 * TSR_E_DEVICE: there is none that fits, or Tessera was built without CUDA. */
tsr_status tsr_ops_of_cuda(tsr_ops *ops, size_t number, unsigned threads, const atomic_bool *cancel,
                           tsr_err *err) TSR_WARN_UNUSED;

#endif
