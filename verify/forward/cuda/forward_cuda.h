/* Declares the operations of a forward pass on a GPU: products and attention by cuBLAS in FP64, FP32 or BF16, and all
 * others in FP64 or, with products in FP32 or BF16, in FP32 (kernels/cuda/activation_ops.h).
 *
 * Threads of the host decode weights band by band, while the GPU multiplies the previous band. */
#pragma once

#include "verify/forward/forward_ops.h"

typedef struct tsr_gpu_choice {
    size_t number; /* the index among the GPUs */
    tsr_precision precision;
    unsigned threads; /* on the host */
    const atomic_bool *cancel;
} tsr_gpu_choice;

/* Opens the operations of a GPU. The calling thread is bound to GPU 0. GPUs with smaller numbers must be open.
 * tsr_ops.close frees their memory. TSR_E_DEVICE: no suitable GPU, no cuBLAS, or Tessera was built without CUDA. */
tsr_status tsr_ops_of_cuda(tsr_ops *ops, const tsr_gpu_choice *choice, tsr_err *err);
