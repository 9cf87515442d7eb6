/* Private declarations of the forward pass on a GPU. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_CUDA_PARTS_H
#define TSR_VERIFY_FORWARD_FORWARD_CUDA_PARTS_H

#include "kernels/cuda/forward_f64.h"
#include "verify/evidence/gpu_run.h"
#include "verify/forward/forward_cuda.h"

enum { TSR_BANDS = 2 };

/* Bands are in pinned memory of the host, and on the GPU. */
typedef struct tsr_gpu_ops {
    double *host[TSR_BANDS], *there[TSR_BANDS];
    size_t capacity;                    /* elements of each */
    cudaEvent_t done[TSR_BANDS], asked; /* done: a band is free; asked: the event that another GPU waits for */
    cudaStream_t stream;
    int ordinal;
    size_t turn; /* next band */
    char name[256];
} tsr_gpu_ops;

/* Returns the state of `ops`, and makes its GPU current in the calling thread. Each share of a product runs on its
 * own thread. */
static inline tsr_gpu_ops *tsr_use_gpu(tsr_ops *ops)
{
    tsr_gpu_ops *const g = (tsr_gpu_ops *)ops->state;
    (void)cudaSetDevice(g->ordinal);
    return g;
}

/* Implements ops->linear. */
tsr_status tsr_gpu_linear(tsr_ops *ops, const tsr_linear_product *args, tsr_err *err) TSR_WARN_UNUSED;

#endif
