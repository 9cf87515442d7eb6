/* Private declarations of the forward pass on a GPU. */
#ifndef TSR_VERIFY_FORWARD_FORWARD_CUDA_PARTS_H
#define TSR_VERIFY_FORWARD_FORWARD_CUDA_PARTS_H

#include "kernels/cuda/forward_f64.h"
#include "verify/evidence/gpu_run.h"
#include "verify/forward/forward_cuda.h"

enum { TSR_PIECES = 2, TSR_BANDS = 2 };

/* Pinned memory of the host through which data go to and from a GPU. A piece is free once `moved` has happened. */
typedef struct tsr_gpu_stage {
    double *piece[TSR_PIECES];
    cudaEvent_t moved[TSR_PIECES];
    size_t capacity, turn; /* elements of each piece; next piece */
} tsr_gpu_stage;

/* Bands of weights on the GPU. The host fills one by `copies` while the GPU multiplies another. */
typedef struct tsr_gpu_ops {
    tsr_gpu_stage stage;
    double *there[TSR_BANDS];
    cudaEvent_t filled[TSR_BANDS], done[TSR_BANDS]; /* filled: a band is copied; done: it is multiplied, and free */
    size_t capacity, turn;                          /* elements of each band; next band */
    cudaEvent_t asked;                              /* the event that another GPU waits for */
    cudaStream_t stream, copies;
    int ordinal;
    uint64_t reads; /* bit of each GPU whose memory this one can read */
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

/* Allocates memory on the GPU, after all earlier work. */
tsr_status tsr_stream_allocate(const tsr_gpu_ops *gpu, size_t bytes, void **x, tsr_err *err) TSR_WARN_UNUSED;

/* Copies host data to the GPU; NULL for NULL. tsr_stream_release frees the copy once all earlier work is done. */
tsr_status tsr_stream_lend(const tsr_gpu_ops *gpu, const void *host, size_t bytes, void **there,
                           tsr_err *err) TSR_WARN_UNUSED;
void tsr_stream_release(const tsr_gpu_ops *gpu, void *there);

/* Create and free the pieces, events and the second stream. */
tsr_status tsr_gpu_stage_open(tsr_gpu_ops *gpu, tsr_err *err) TSR_WARN_UNUSED;
void tsr_gpu_stage_close(tsr_gpu_ops *gpu);

/* Takes the next piece after its last copy. It has at least `elements`: at most TSR_PIECE_ELEMENTS, or one row. */
enum { TSR_PIECE_ELEMENTS = 1 << 22 };
tsr_status tsr_gpu_take_piece(tsr_gpu_ops *gpu, size_t elements, size_t *piece, tsr_err *err) TSR_WARN_UNUSED;

/* Implement ops->put and ops->get, with threads of the host that fill and empty the pieces. */
tsr_status tsr_gpu_put(tsr_ops *ops, double *to, const double *host, size_t n, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_gpu_get(tsr_ops *ops, double *host, const double *from, size_t n, tsr_err *err) TSR_WARN_UNUSED;

/* Implement ops->index, ops->convolve and ops->recur. */
tsr_status tsr_gpu_index(tsr_ops *ops, const tsr_op_index *args, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_gpu_convolve(tsr_ops *ops, const tsr_op_convolve *args, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_gpu_recur(tsr_ops *ops, const tsr_op_recur *args, tsr_err *err) TSR_WARN_UNUSED;

/* Implements ops->linear. */
tsr_status tsr_gpu_linear(tsr_ops *ops, const tsr_linear_product *args, tsr_err *err) TSR_WARN_UNUSED;

#endif
