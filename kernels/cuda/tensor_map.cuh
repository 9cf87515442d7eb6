/* Finds the driver's encoder of tensor maps at run time, so that programs need not link the driver. */
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "common/status.h"

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static inline void *look_up_encode(void)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return entry;
}

static inline tsr_status find_encode(encode_fn *encode, tsr_err *err)
{
    static void *const entry = look_up_encode(); /* once, because the search takes as long as a launch */
    if (!entry) {
        return tsr_fail(err, TSR_E_DEVICE, "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0");
    }
    *encode = reinterpret_cast<encode_fn>(entry);
    return TSR_OK;
}
