/* What the files of the forward pass on a GPU share, and private to them. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_CUDA_PARTS_H
#define TSR_VERIFY_FORWARD_FORWARD_CUDA_PARTS_H

#include "kernels/cuda/forward_f64.h"
#include "verify/evidence/gpu_run.h"
#include "verify/forward/forward_cuda.h"

enum { TSR_BANDS = 2 };

/* Bands wait on the host, in memory that the GPU reads by itself, and on the GPU. */
typedef struct tsr_gpu_ops {
    double *host[TSR_BANDS], *there[TSR_BANDS];
    size_t capacity;                    /* elements of each */
    cudaEvent_t done[TSR_BANDS], asked; /* asked: what another GPU waits for */
    cudaStream_t stream;
    int ordinal;
    size_t turn; /* which band is next */
    char name[256];
} tsr_gpu_ops;

/* The state of `ops`. Its GPU becomes the calling thread's, since a share of a product runs on a thread of its own. */
tsr_gpu_ops *tsr_use_gpu(tsr_ops *ops);

/* ops->linear. */
tsr_status tsr_gpu_linear(tsr_ops *ops, const tsr_op_linear *args, tsr_err *err) TSR_WARN_UNUSED;

#endif
