/* Sums over the GPUs of one process by NVIDIA's NCCL, loaded at run time where it is found: a build needs none of it.
 *
 * libnccl.so.2 is looked for as the system looks for libraries (LD_LIBRARY_PATH, then its configuration). NVLink
 * multicast is left off unless NCCL_NVLS_ENABLE asks for it: a check needs no speed, and multicast is the part of NCCL
 * that a driver shared with others can be brought down by. */
#ifndef TSR_KERNELS_CUDA_NCCL_H
#define TSR_KERNELS_CUDA_NCCL_H

#include "kernels/cuda/cuda_launch.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TSR_NCCL_RANKS = 64 /* at most */ };

typedef struct tsr_nccl tsr_nccl;

/* Joins GPUs 0 .. ranks - 1, rank r on GPU r. The calling thread's device is 0 afterwards. TSR_E_DEVICE: there are
 * fewer GPUs, there is no NCCL, or it does not start. *nccl is NULL then. */
tsr_status tsr_nccl_open(tsr_nccl **nccl, size_t ranks, tsr_err *err) TSR_WARN_UNUSED;

/* NULL is fine. */
void tsr_nccl_close(tsr_nccl *nccl);

/* 22807 is 2.28.7. */
int tsr_nccl_version(const tsr_nccl *nccl);

/* sums[r][n] = parts[0][n] + parts[1][n] + ..., in an order of NCCL's, FP32, on every GPU r; ranks - 1 roundings.
 * Waits for all of them, and leaves the calling thread's device at 0. */
tsr_status tsr_nccl_sum(tsr_nccl *nccl, const float *const *parts, float *const *sums, size_t n,
                        tsr_err *err) TSR_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
