/* Sums over the GPUs of one process with NVIDIA's NCCL, which is loaded at run time if present; builds do not need it.
 *
 * libnccl.so.2 is found like other libraries (LD_LIBRARY_PATH, then the system's configuration). NVLink multicast is
 * off unless NCCL_NVLS_ENABLE requests it: a check needs no speed, and multicast can disturb a driver that is shared
 * with other processes.
 *
 * Communicators are non-blocking, and every wait has a deadline: TSR_NCCL_SECONDS, or TESSERA_NCCL_TIMEOUT in seconds.
 * After an error or a deadline, all communicators are aborted, which ends their kernels. */
#pragma once

#include "kernels/cuda/block_fp8_gemm.h"
#include "kernels/cuda/cuda_launch.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TSR_NCCL_RANKS = 64 /* at most */, TSR_NCCL_SECONDS = 60 };

typedef struct tsr_nccl tsr_nccl;

/* Connects GPUs 0 .. ranks - 1, rank r on GPU r. The calling thread's device is 0 afterwards. *nccl is NULL after an
 * error. TSR_E_NOT_APPLICABLE: there are fewer GPUs, or there is no NCCL of version 2.14 or later. TSR_E_DEVICE: NCCL
 * does not start, or not by the deadline. TSR_E_USAGE: TESSERA_NCCL_TIMEOUT is not a number of seconds. */
tsr_status tsr_nccl_open(tsr_nccl **nccl, size_t ranks, tsr_err *err);

/* NULL is allowed. */
void tsr_nccl_close(tsr_nccl *nccl);

/* 22807 is 2.28.7. */
int tsr_nccl_version(const tsr_nccl *nccl);

/* Computes sums[r][n] = parts[0][n] + parts[1][n] + ..., in NCCL's order, on every GPU r. Parts and sums are of type
 * `out`, and each of the ranks - 1 additions is rounded to it. Waits for all GPUs, and leaves the calling thread's
 * device at 0. TSR_E_DEVICE: a rank failed, or the sum did not end by the deadline; later sums fail, too. */
tsr_status tsr_nccl_sum(tsr_nccl *nccl, const void *const *parts, void *const *sums, size_t n, tsr_gemm_out out,
                        tsr_err *err);

#ifdef __cplusplus
}
#endif
