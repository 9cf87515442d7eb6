/* Checks the device for every launcher. */
#include "kernels/cuda/cuda_launch.h"

#include <cuda_runtime.h>
#include <string.h>
#include <unistd.h>

/* Represents all kernels: its code is compiled for the same architectures. */
static __global__ void probe_kernel()
{
}

/* Checks that the driver finds code for the device in this binary, or can compile its PTX. */
static tsr_status check_image(const tsr_cuda_device *device, tsr_err *err)
{
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (code == cudaSuccess) {
        return TSR_OK;
    }
    (void)cudaGetLastError();
    return tsr_fail(
        err, TSR_E_DEVICE,
        "the GPU %s, sm_%d, cannot run the code of this build, which is for sm_80, sm_90 and later cards for which "
        "the driver compiles it: %s; a newer driver may help",
        device->name, device->arch, cudaGetErrorString(code));
}

tsr_status tsr_cuda_current_device(tsr_cuda_device *device, tsr_err *err)
{
    static thread_local tsr_cuda_device last = {-1, 0, 0, ""}; /* reading the properties takes longer than a launch */
    int major = 0, minor = 0;
    cudaError_t code = cudaGetDevice(&device->ordinal);
    if (code == cudaSuccess && device->ordinal == last.ordinal) {
        *device = last;
        return TSR_OK;
    }
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->ordinal);
    }
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device->ordinal);
    }
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&device->processors, cudaDevAttrMultiProcessorCount, device->ordinal);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        /* Without a driver the runtime reports "driver version is insufficient", which misleads. */
        if (code == cudaErrorInsufficientDriver && access("/proc/driver/nvidia/version", F_OK) != 0) {
            return tsr_fail(err, TSR_E_DEVICE, "no usable GPU: there is no NVIDIA driver on this machine");
        }
        return tsr_fail(err, TSR_E_DEVICE, "no usable GPU: %s", cudaGetErrorString(code));
    }
    device->arch = major * 10 + minor;
    cudaDeviceProp properties;
    device->name[0] = '\0';
    if (cudaGetDeviceProperties(&properties, device->ordinal) == cudaSuccess) {
        memcpy(device->name, properties.name, sizeof device->name);
    }
    if (device->arch < 80) {
        return tsr_fail(err, TSR_E_DEVICE, "the GPU %s has compute capability %d.%d; 8.0 or newer is needed",
                        device->name, major, minor);
    }
    TSR_TRY(check_image(device, err));
    last = *device;
    return TSR_OK;
}
