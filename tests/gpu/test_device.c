/* Tests the choice of a device without one. The linker replaces the CUDA runtime by answers of this test. A GPU without
 * a loadable kernel leaves the CPU if allowed, with a reason. A newer GPU that can load the PTX runs the plain kernels,
 * and the missing kernels are named. */
#include "verify/evidence/device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static struct {
    int devices, arch;
    cudaError_t image;
} card;

static int checks, failures;

cudaError_t __wrap_cudaGetDevice(int *device);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t __wrap_cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t __wrap_cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel);

/* Changes the number of the GPU, so that no cached one is used. */
cudaError_t __wrap_cudaGetDevice(int *device)
{
    *device = card.arch * 1000 + (int)card.image;
    return card.devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? card.arch / 10
             : attribute == cudaDevAttrComputeCapabilityMinor ? card.arch % 10
                                                              : 100;
    return cudaSuccess;
}

cudaError_t __wrap_cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    (void)device;
    snprintf(properties->name, sizeof properties->name, "a card");
    return cudaSuccess;
}

cudaError_t __wrap_cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    (void)attributes, (void)kernel;
    return card.image;
}

static void expect(bool fine, const char *what, const char *said)
{
    checks++;
    failures += !fine;
    if (!fine)
        printf("FAILED sm_%d, image %d, %s: %s\n", card.arch, (int)card.image, what, said);
}

/* `words`: the message if the GPU cannot be used; NULL: it can. `left`: the missing kernels. */
static void check_card(int devices, int arch, cudaError_t image, const char *words, size_t left)
{
    tsr_device device;
    tsr_err err = {0}, note = {0};
    card.devices = devices, card.arch = arch, card.image = image;
    tsr_status status = tsr_device_open(&device, TSR_DEVICE_AUTO, &note, &err);
    expect(status == TSR_OK, "auto", err.msg);
    if (status == TSR_OK) {
        const bool on_cpu = strncmp(device.name, "CPU", 3) == 0;
        expect(on_cpu == (words != NULL), "auto's device", device.name);
        expect(words == NULL ? note.msg[0] == '\0' : strstr(note.msg, words) != NULL, "auto's note", note.msg);
        expect(device.n_left_out == left, "what is left out",
               left > 0 && device.n_left_out > 0 ? device.left_out[0].why : "");
        expect(device.n_gemms == (on_cpu ? 3u : 5u), "products", device.name);
        tsr_device_close(&device);
    }
    status = tsr_device_open(&device, TSR_DEVICE_CUDA, NULL, &err);
    expect(status == (words == NULL ? TSR_OK : TSR_E_DEVICE), "cuda", err.msg);
    expect(words == NULL || strstr(err.msg, words) != NULL, "cuda's error", err.msg);
    if (status == TSR_OK)
        tsr_device_close(&device);
}

int main(void)
{
    check_card(0, 0, cudaSuccess, "no usable GPU", 0);
    check_card(1, 75, cudaSuccess, "8.0 or newer is needed", 0);
    check_card(1, 120, cudaErrorNoKernelImageForDevice, "cannot run the code of this build", 0);
    check_card(1, 100, cudaErrorUnsupportedPtxVersion, "cannot run the code of this build", 0);
    check_card(1, 89, cudaSuccess, NULL, 5);
    check_card(1, 120, cudaSuccess, NULL, 5);
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0 || checks == 0;
}
