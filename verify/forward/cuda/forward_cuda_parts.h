/* Private declarations of the forward pass on a GPU. */
#pragma once

#include "kernels/cuda/activation_ops.h"
#include "kernels/cuda/cublas.h"
#include "verify/evidence/gpu_run.h"
#include "verify/forward/cuda/forward_cuda.h"

enum { TSR_PIECES = 2, TSR_BAND_BYTES = 1 << 27, TSR_ANGLES = 2 };

/* Pinned memory of the host through which data go to and from a GPU. A piece is free once `moved` has happened. */
typedef struct tsr_gpu_stage {
    void *piece[TSR_PIECES];
    cudaEvent_t moved[TSR_PIECES];
    size_t capacity, turn; /* bytes of each piece; next piece */
} tsr_gpu_stage;

/* Rows of a weight on the GPU, in the pass's precision. */
typedef struct tsr_gpu_band {
    void *there;
    size_t bytes;
    cudaEvent_t filled, done; /* filled: the rows are copied; done: they are multiplied, and others may replace them */
    const tsr_weight *weight; /* NULL: none that could be used again */
    uint64_t matrix;
    size_t first, rows;
} tsr_gpu_band;

/* The angles of a RoPE on the GPU: [positions][pairs][2] cosines and sines, times the gain. */
typedef struct tsr_gpu_angles {
    void *there; /* NULL: none */
    size_t positions, pairs;
    double *frequency, gain; /* [pairs], on the host */
} tsr_gpu_angles;

/* The host fills one band by `copies` while the GPU multiplies another. Two bands take turns, or all of them if the
 * weights are used again soon. */
typedef struct tsr_gpu_ops {
    tsr_gpu_stage stage;
    tsr_gpu_band *bands;
    size_t n_bands, turn; /* turn: next band */
    cudaEvent_t asked;    /* the event that another GPU waits for */
    cudaStream_t stream, copies;
    tsr_precision precision;      /* precision of products and attention */
    tsr_precision of_activations; /* FP64 or FP32 */
    tsr_cublas *cublas;
    tsr_gpu_angles angles[TSR_ANGLES];
    size_t angles_turn; /* those that are replaced next */
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
tsr_status tsr_stream_allocate(const tsr_gpu_ops *gpu, size_t bytes, void **x, tsr_err *err);

/* Copies host data to the GPU; NULL for NULL. tsr_stream_release frees the copy once all earlier work is done. */
tsr_status tsr_stream_lend(const tsr_gpu_ops *gpu, const void *host, size_t bytes, void **there, tsr_err *err);
void tsr_stream_release(const tsr_gpu_ops *gpu, void *there);

/* Create and free the pieces, `n_bands` bands, events and the second stream. */
tsr_status tsr_gpu_stage_open(tsr_gpu_ops *gpu, size_t n_bands, tsr_err *err);
void tsr_gpu_stage_close(tsr_gpu_ops *gpu);

/* Takes the next piece after its last copy. It has at least `bytes`: at most TSR_PIECE_BYTES, or one row. */
enum { TSR_PIECE_BYTES = 1 << 25 };
tsr_status tsr_gpu_take_piece(tsr_gpu_ops *gpu, size_t bytes, size_t *piece, tsr_err *err);

/* Implement ops->put and ops->get, with threads of the host that fill and empty the pieces. */
tsr_status tsr_gpu_put(tsr_ops *ops, tsr_activation *to, const double *host, size_t n, tsr_err *err);
tsr_status tsr_gpu_get(tsr_ops *ops, double *host, const tsr_activation *from, size_t n, tsr_err *err);

/* Implement ops->index, ops->convolve, ops->recur and ops->compress. */
tsr_status tsr_gpu_index(tsr_ops *ops, const tsr_op_index *args, tsr_err *err);
tsr_status tsr_gpu_convolve(tsr_ops *ops, const tsr_op_convolve *args, tsr_err *err);
tsr_status tsr_gpu_recur(tsr_ops *ops, const tsr_op_recur *args, tsr_err *err);
tsr_status tsr_gpu_compress(tsr_ops *ops, const tsr_op_compress *args, tsr_err *err);

/* Implement ops->gram and ops->attend. */
tsr_status tsr_gpu_gram(tsr_ops *ops, tsr_activation *sums, const tsr_activation *x, size_t n, size_t cols,
                        tsr_err *err);
tsr_status tsr_gpu_attend(tsr_ops *ops, const tsr_op_attend *args, tsr_err *err);

/* Implements ops->linear. */
tsr_status tsr_gpu_linear(tsr_ops *ops, const tsr_op_linear *args, tsr_err *err);
