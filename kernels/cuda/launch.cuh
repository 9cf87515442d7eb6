/* Host-side helpers of all launchers: rounding up, alignment, a launch with its attributes, and its error. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/cuda/cuda_launch.h"

#ifdef TSR_LAUNCHES_BY_CHOICE /* a build for the sweep, which sets this: 1 if launches may overlap, 0 if not */
extern "C" {
inline int tsr_launches_overlap = 1;
}
#endif

namespace host
{

/* Converts `code`, or an error left by an earlier launch, to an error of `what`. */
static inline tsr_status launched(const char *what, cudaError_t code, tsr_err *err)
{
    const cudaError_t last = cudaGetLastError();
    if (code == cudaSuccess) {
        code = last;
    }
    if (code != cudaSuccess) {
        return tsr_fail(err, TSR_E_DEVICE, "%s: %s", what, cudaGetErrorString(code));
    }
    return TSR_OK;
}

static inline bool aligned(const void *p, uintptr_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns how many CTAs in clusters of up to 8 run at once, one on a multiprocessor. Clusters cannot fill every group
 * of multiprocessors: these are the figures of cudaOccupancyMaxActiveClusters for the 132 of an H200. */
static inline int64_t room_for_clusters(int cluster, int64_t processors)
{
    static const int kUsed[] = {0, 132, 132, 117, 120, 110, 102, 105, 120};
    return processors * kUsed[cluster] / 132;
}

/* Returns the attribute for clusters of `count` CTAs along x. */
static inline cudaLaunchAttribute in_clusters(unsigned count)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = count;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    return attribute;
}

/* Returns the attribute that lets a launch begin while the previous one in the stream ends. The kernel must call
 * hopper::wait_for_launch_before. */
static inline cudaLaunchAttribute beside_the_one_before()
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
#ifdef TSR_LAUNCHES_BY_CHOICE
    attribute.val.programmaticStreamSerializationAllowed = tsr_launches_overlap;
#else
    attribute.val.programmaticStreamSerializationAllowed = 1;
#endif
    return attribute;
}

/* How a kernel is launched; `shared` is in bytes. */
struct launch_shape {
    dim3 grid;
    int threads, shared;
    tsr_stream stream;
};

/* Allows `kernel` to use `bytes` of dynamic shared memory. */
template <typename KERNEL> static inline cudaError_t allow_shared(KERNEL *kernel, int bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int COUNT, typename... Args>
static inline cudaError_t launch(void (*kernel)(Args...), const launch_shape &shape,
                                 cudaLaunchAttribute (&&attributes)[COUNT], const Args &...args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = shape.grid;
    config.blockDim = dim3((unsigned)shape.threads);
    config.dynamicSmemBytes = (size_t)shape.shared;
    config.stream = shape.stream;
    config.attrs = attributes;
    config.numAttrs = COUNT;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

} // namespace host
