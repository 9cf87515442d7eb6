/* The stream type and device properties, shared by all CUDA launchers.
 *
 * Launchers never allocate, synchronise, print or exit; they check their arguments, launch on `stream` and return.
 * Errors: TSR_E_SHAPE for arguments that the operation cannot take, TSR_E_DEVICE for what the runtime or the driver
 * refuses. Errors of the running kernel itself appear when the caller synchronises. All functions are thread-safe. */
#pragma once

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *tsr_stream; /* is cudaStream_t */

typedef struct tsr_cuda_device {
    int ordinal;
    int arch;       /* compute capability: 90 for Hopper */
    int processors; /* multiprocessors */
    char name[256];
} tsr_cuda_device;

/* Finds the calling thread's current device and its capability. TSR_E_DEVICE: no driver, no device, a device older than
 * sm_80, or one for which neither the binary nor the driver has code, such as a card that is newer than its driver's
 * compiler. */
tsr_status tsr_cuda_current_device(tsr_cuda_device *device, tsr_err *err);

#ifdef __cplusplus
}
#endif
