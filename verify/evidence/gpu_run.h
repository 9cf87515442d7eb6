/* One run of a kernel on the GPU for a check, with exclusive use of the GPU. Copies operands to it and the result back,
 * and always frees its memory. Only if Tessera was built with CUDA.
 *
 * A run begins with tsr_gpu_begin and ends with tsr_gpu_end, which returns the status of the calls between them. */
#pragma once

#include "kernels/cuda/block_fp8_gemm.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/nccl.h"
#include "verify/evidence/device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

/* tsr_device.state of a GPU. */
typedef struct tsr_gpu {
    tsr_cuda_device properties;
    tsr_cublas_lt *peers[TSR_NCCL_RANKS]; /* cuBLASLt on each rank's GPU; NULL: not used yet, the first: unavailable */
    tsr_nccl *nccl;       /* NULL: ranks run one after another on this GPU; otherwise rank r has GPU r */
    pthread_mutex_t lock; /* held by the run that uses the GPU */
} tsr_gpu;

/* `variant` of a kernel that has a fast and a plain form and no enum in kernels/cuda. */
enum { TSR_GPU_FAST, TSR_GPU_PLAIN };

enum { TSR_GPU_SLOTS = 2 * TSR_NCCL_RANKS };

typedef struct tsr_gpu_run {
    tsr_gpu *gpu;
    const char *name;            /* name of the kernel, for messages */
    void *on_gpu[TSR_GPU_SLOTS]; /* device memory of each slot, freed by tsr_gpu_end; NULL: unused */
    void *narrow;                /* host memory for 16-bit operands and results */
} tsr_gpu_run;

/* Waits until the GPU is free, reserves it for this thread, and allocates `narrow_bytes` on the host. After a failure
 * nothing is reserved. */
tsr_status tsr_gpu_begin(tsr_gpu_run *run, const tsr_device *device, const char *name, size_t narrow_bytes,
                         tsr_err *err);

/* Frees the run's memory, releases the GPU, and returns `status`. */
tsr_status tsr_gpu_end(tsr_gpu_run *run, tsr_status status);

/* Selects the GPU of `rank` for the following calls: the device's only GPU until ranks are spread, then GPU `rank`. */
void tsr_gpu_use_rank(const tsr_gpu *gpu, size_t rank);

/* Returns TSR_E_DEVICE with CUDA's message if `code` is an error. */
tsr_status tsr_gpu_check(cudaError_t code, const char *doing, tsr_err *err);

/* Returns the error of an allocation of `bytes`. If the GPU has too little memory, the message ends with `remedy`. */
tsr_status tsr_gpu_allocated(cudaError_t code, size_t bytes, const char *remedy, tsr_err *err);

/* Allocates memory for an empty slot. Memory of a result is filled with 0xFF, which is NaN, so that an element that the
 * kernel does not write is noticed. */
tsr_status tsr_gpu_allocate(tsr_gpu_run *run, int slot, size_t bytes, tsr_err *err);
tsr_status tsr_gpu_allocate_result(tsr_gpu_run *run, int slot, size_t bytes, tsr_err *err);

/* Frees the memory of a slot, which is then empty. */
void tsr_gpu_release(tsr_gpu_run *run, int slot);

/* Copies `rows` rows of `bytes`, `from_pitch` apart on the host, into a slot, `pitch` apart on the device. */
tsr_status tsr_gpu_upload(tsr_gpu_run *run, int slot, size_t pitch, const void *from, size_t from_pitch, size_t bytes,
                          size_t rows, tsr_err *err);

/* Copies n elements of 4 bytes. If `from` is NULL, the slot stays empty. */
tsr_status tsr_gpu_upload_words(tsr_gpu_run *run, int slot, const void *from, size_t n, tsr_err *err);

/* Converts a result type to that of kernels/cuda (tsr_gpu_out), or to the bytes of an element. */
tsr_gemm_out tsr_gpu_out(tsr_out out);
size_t tsr_gpu_out_bytes(tsr_out out);

/* Reads a contiguous result [m, n] of a slot as floats with row distance `ldd`. run->narrow must be large enough. */
tsr_status tsr_gpu_download(const tsr_gpu_run *run, int slot, tsr_out out, size_t m, size_t n, float *d, size_t ldd,
                            tsr_err *err);

/* Measures the seconds of one launch, as the mean of several. */
tsr_status tsr_gpu_time(const tsr_gpu_run *run, tsr_status (*launch)(const void *args, tsr_err *err), const void *args,
                        double *seconds, tsr_err *err);

/* Implement tsr_device_ranks by NCCL if each rank has a GPU. */
tsr_device_sum_fn tsr_cuda_sum_ranks;
tsr_device_spread_fn tsr_cuda_spread_ranks;

#define TSR_CUDA_RANKS                                             \
    {                                                              \
        .sum = tsr_cuda_sum_ranks, .spread = tsr_cuda_spread_ranks \
    }

/* Adds the kernels of attention, of its indexer, and of heads divided among ranks to the table. */
tsr_status tsr_device_add_cuda_mla(tsr_device *device, tsr_err *err);

/* Adds the kernels of small groups to the table. */
tsr_status tsr_device_add_cuda_mx(tsr_device *device, tsr_err *err);
