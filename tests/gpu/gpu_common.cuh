/* Owns what the GPU tests and benches share: checked calls, random operands, the exit codes. Included once a program.
 */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include "kernels/cuda/cuda_launch.h"

#define CHECK(call)                                                                             \
    do {                                                                                        \
        const cudaError_t check_code = (call);                                                  \
        if (check_code != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(check_code)); \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

#define CHECK_TSR(call, err)                                               \
    do {                                                                   \
        if ((call) != TSR_OK) {                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, (err).msg); \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

/* Ends with exit code 5 and a sentence if there is no GPU. */
static inline tsr_cuda_device need_gpu(void)
{
    tsr_cuda_device device;
    tsr_err err;
    if (tsr_cuda_current_device(&device, &err) != TSR_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(5);
    }
    return device;
}

/* The same if it is no Hopper GPU. */
static inline tsr_cuda_device need_hopper(void)
{
    const tsr_cuda_device device = need_gpu();
    if (device.arch != 90) {
        fprintf(stderr, "the GPU %s is sm_%d; the fast kernels need sm_90\n", device.name, device.arch);
        exit(5);
    }
#ifdef TSR_COMPILED_QUICKLY
    fprintf(stderr,
            "warning: these kernels were compiled without nvcc's optimizer, as the suite does where there is no GPU: "
            "meson configure build -Dcuda_args= && ninja -C build\n");
#endif
    return device;
}

/* Rounds x up to a multiple of `to`. */
static inline int64_t up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

template <typename T> static T *device_array(size_t count)
{
    void *p;
    CHECK(cudaMalloc(&p, count * sizeof(T)));
    CHECK(cudaMemset(p, 0xFF, count * sizeof(T)));
    return static_cast<T *>(p);
}

template <typename T> static T *upload(const std::vector<T> &x)
{
    T *const p = device_array<T>(x.size() + 16);
    CHECK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <typename T> static std::vector<T> download(const T *p, size_t n)
{
    std::vector<T> x(n);
    CHECK(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
}

/* splitmix64: the same numbers for the same seed and place. */
__host__ __device__ static inline uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* e4m3 codes of all magnitudes and both signs, no NaN. */
__global__ void random_codes(uint8_t *p, int64_t count, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const uint8_t code = (uint8_t)(mix(seed + i) >> 20);
        p[i] = (code & 0x7F) == 0x7F ? code ^ 0x10 : code;
    }
}

/* Uniform in [low, high). */
__global__ void random_floats(float *p, int64_t count, float low, float high, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        p[i] = low + (high - low) * (float)(mix(seed + i) >> 40) * 0x1p-24f;
    }
}

/* BF16, uniform in +-1. */
__global__ void random_units(uint16_t *p, int64_t count, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const float x = (float)(int64_t)(mix(seed + i) >> 40) * 0x1p-23f - 1.0f;
        p[i] = (uint16_t)(__float_as_uint(x) >> 16);
    }
}
