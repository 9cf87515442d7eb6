/* Sums over the GPUs of one process with NVIDIA's NCCL, which is loaded at run time if present; builds do not need it.
 *
 * libnccl.so.2 is found like other libraries (LD_LIBRARY_PATH, then the system's configuration). NVLink multicast is
 * off unless NCCL_NVLS_ENABLE requests it: a check needs no speed, and multicast can disturb a driver that is shared
 * with other processes. */
#ifndef TSR_KERNELS_CUDA_NCCL_H
#define TSR_KERNELS_CUDA_NCCL_H

#include "kernels/cuda/cuda_launch.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TSR_NCCL_RANKS = 64 /* at most */ };

typedef struct tsr_nccl tsr_nccl;

/* Connects GPUs 0 .. ranks - 1, rank r on GPU r. The calling thread's device is 0 afterwards. TSR_E_DEVICE: there are
 * fewer GPUs, NCCL is missing, or it does not start. *nccl is NULL then. */
tsr_status tsr_nccl_open(tsr_nccl **nccl, size_t ranks, tsr_err *err) TSR_WARN_UNUSED;

/* NULL is fine. */
void tsr_nccl_close(tsr_nccl *nccl);

/* 22807 is 2.28.7. */
int tsr_nccl_version(const tsr_nccl *nccl);

/* Computes sums[r][n] = parts[0][n] + parts[1][n] + ..., in NCCL's order, FP32, on every GPU r; ranks - 1 roundings.
 * Waits for all of them, and leaves the calling thread's device at 0. */
tsr_status tsr_nccl_sum(tsr_nccl *nccl, const float *const *parts, float *const *sums, size_t n,
                        tsr_err *err) TSR_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
