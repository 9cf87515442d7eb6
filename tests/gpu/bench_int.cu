/* Owns the timing of the integer kernels on a GPU: fast conversion against the conversion instruction and a device
 * copy, the weight-only product against its own bytes and cuBLAS in 16 bits, the int8 product. Buffers rotate, so that
 * no cache serves them. Exit codes: 0; 1 below 0.85 of the copy, or 0.65 of its bandwidth for the weight-only product of
 * up to 16 tokens (a tenth below the lowest that any card of the kind has shown, 0.72: a floor that a sound kernel misses is none);
 * 5 no device. */
#include <cublas_v2.h>
#include <dlfcn.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/fast_dequant.h"
#include "kernels/cuda/int8_gemm.h"
#include "kernels/cuda/weight_only_gemm.h"
#include "tests/gpu/timing.cuh"

enum {
    kPool = 1 << 30,  /* bytes of weights that the launches use in turn */
    kMostTokens = 256 /* largest number of tokens of a weight-only product */
};

static struct cublas {
    decltype(&::cublasCreate_v2) create;
    decltype(&::cublasSetStream_v2) set_stream;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                           const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *,
                           cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
    cublasHandle_t handle;
} blas;

static bool load_cublas(void)
{
    void *const library = dlopen("libcublas.so.13", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "no cuBLAS: %s\n", dlerror());
        return false;
    }
    blas.create = reinterpret_cast<decltype(blas.create)>(dlsym(library, "cublasCreate_v2"));
    blas.set_stream = reinterpret_cast<decltype(blas.set_stream)>(dlsym(library, "cublasSetStream_v2"));
    blas.gemm = reinterpret_cast<decltype(blas.gemm)>(dlsym(library, "cublasGemmEx"));
    return blas.create(&blas.handle) == CUBLAS_STATUS_SUCCESS;
}

/* The share of the copy's bandwidth that a weight-only product of a large matrix has to have. */
static const double kFloor = 0.65;

/* Which of the buffers of `bytes` in the pool the i-th launch uses. */
static size_t turn(int i, size_t bytes)
{
    const size_t count = kPool / bytes;
    return (size_t)i % (count == 0 ? 1 : count) * bytes;
}

/* After a rest, so that the power which the timing before took does not lower the clock of this one. */
template <typename F> static double time_rested_us(const F &launch)
{
    enum { kRestUs = 50000 };
    usleep(kRestUs);
    return time_each_us(launch);
}

static bool bench_conversions(uint8_t *pool, uint16_t *out, const uint16_t *scales, double copy)
{
    const int64_t k = 18432, n = 7168;
    bool fine = true;
    printf("\nconversion of %lld x %lld   fast GB/s  of copy  native GB/s  fast/native  scaled GB/s\n", (long long)k,
           (long long)n);
    for (int i = 0; i < 4; ++i) {
        const int bits = i & 1 ? 4 : 8;
        const size_t in_bytes = (size_t)(k * n * bits / 8);
        const double bytes = (double)in_bytes + 2.0 * k * n;
        double us[3];
        for (int kind = 0; kind < 3; ++kind) {
            us[kind] = time_rested_us([&](cudaStream_t stream, int launch) {
                tsr_fast_dequant g = {pool + turn(launch, in_bytes), out, k, n, bits, (i & 2) != 0, kind == 1,
                                      kind == 2 ? scales : nullptr,  128};
                tsr_err err;
                CHECK_TSR(tsr_cuda_fast_dequant(&g, stream, &err), err);
            });
        }
        const double speed = bytes / us[0] * 1e-3;
        printf("int%d to %s %25.0f %8.2f %12.0f %12.2f %12.0f\n", bits, i & 2 ? "bf16" : "fp16", speed, speed / copy,
               bytes / us[1] * 1e-3, us[1] / us[0], bytes / us[2] * 1e-3);
        fine = fine && speed >= 0.85 * copy;
    }
    return fine;
}

static double time_cublas(const uint16_t *a, const uint8_t *pool, uint16_t *d, int64_t m, int64_t n, int64_t k)
{
    const size_t bytes = (size_t)(n * k * 2);
    return time_rested_us([&](cudaStream_t stream, int launch) {
        const float one = 1, zero = 0;
        blas.set_stream(blas.handle, stream);
        if (blas.gemm(blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)m, (int)k, &one, pool + turn(launch, bytes),
                      CUDA_R_16F, (int)k, a, CUDA_R_16F, (int)k, &zero, d, CUDA_R_16F, (int)n, CUBLAS_COMPUTE_32F,
                      CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS) {
            fprintf(stderr, "cuBLAS refuses\n");
            exit(1);
        }
    });
}

static bool bench_weight_only(const uint16_t *a, uint8_t *pool, uint16_t *d, const uint16_t *scales, double copy,
                              bool peer)
{
    static const int64_t kShapes[][2] = {{7168, 18432}, {18432, 7168}, {4096, 4096}, {8192, 8192}, {28672, 8192}};
    static const int64_t kTokens[] = {1, 4, 8, 16, 32, 64, 128, kMostTokens};
    bool fine = true;
    printf(
        "\nweight-only, fp16      m     n     k  group       us  GB/s of weights  of copy  cuBLAS fp16 us  speed-up\n");
    for (const int64_t *shape : kShapes) {
        for (int64_t m : kTokens) {
            const double theirs = peer ? time_cublas(a, pool, d, m, shape[0], shape[1]) : 0;
            for (int i = 0; i < 4; ++i) {
                const int bits = i == 0 ? 8 : 4;
                const int64_t group = i == 2 ? 128 : i == 3 ? 32 : 0, n = shape[0], k = shape[1];
                const size_t bytes = (size_t)(n * k * bits / 8);
                const double us = time_rested_us([&](cudaStream_t stream, int launch) {
                    tsr_weight_only_gemm g = {
                        a,     pool + turn(launch, bytes), scales, nullptr, d, m, n, k, k, n, group, bits,
                        false, TSR_WEIGHT_ONLY_AUTO};
                    tsr_err err;
                    CHECK_TSR(tsr_cuda_weight_only_gemm(&g, stream, &err), err);
                });
                const double speed = (double)bytes / us * 1e-3;
                printf("int%d %20lld %5lld %5lld %6lld %8.1f %16.0f %8.2f %15.1f %9.2f\n", bits, (long long)m,
                       (long long)n, (long long)k, (long long)group, us, speed, speed / copy, theirs, theirs / us);
                fine = fine && (n * k < (int64_t)50 << 20 || m > 16 || group == 32 || speed >= kFloor * copy);
            }
        }
    }
    return fine;
}

static void bench_int8(const uint8_t *pool, uint16_t *d)
{
    static const int64_t kShapes[][3] = {{4096, 4096, 7168}, {4096, 7168, 2048}, {128, 7168, 2048}};
    float *const scales = device_array<float>(1 << 16);
    random_floats<<<64, 256>>>(scales, 1 << 16, 1e-3f, 1.0f, 77);
    printf("\nint8 product     m     n     k       us   TOPS\n");
    for (const int64_t *s : kShapes) {
        tsr_int8_gemm g = {};
        g.a = reinterpret_cast<const int8_t *>(pool), g.w = reinterpret_cast<const int8_t *>(pool) + (kPool / 2),
        g.d = d;
        g.scale_a = g.scale_w = scales, g.bias = scales;
        g.m = s[0], g.n = s[1], g.k = s[2], g.lda = g.ldw = s[2], g.ldd = s[1];
        const double us = time_rested_us([&](cudaStream_t stream, int) {
            tsr_err err;
            CHECK_TSR(tsr_cuda_int8_gemm(&g, stream, &err), err);
        });
        printf("%18lld %5lld %5lld %8.1f %6.0f\n", (long long)s[0], (long long)s[1], (long long)s[2], us,
               2.0 * s[0] * s[1] * s[2] / us * 1e-6);
    }
    CHECK(cudaFree(scales));
}

int main(void)
{
    const tsr_cuda_device device = need_hopper();
    const bool peer = load_cublas();
    uint8_t *const pool = device_array<uint8_t>(kPool);
    uint16_t *const out = device_array<uint16_t>((size_t)18432 * 7168 * 2), *const a = device_array<uint16_t>(
                                                                                kMostTokens * 18432);
    uint16_t *const scales = device_array<uint16_t>((size_t)32768 * 256);
    random_codes<<<1024, 256>>>(pool, kPool, 1);
    random_bf16<<<64, 256>>>(a, kMostTokens * 18432, 2ull << 40);
    CHECK(cudaMemset(scales, 0x1C, (size_t)32768 * 256 * 2));
    CHECK(cudaDeviceSynchronize());
    const size_t copied = (size_t)256 << 20;
    const double copy_us = time_rested_us([&](cudaStream_t stream, int i) {
        CHECK(cudaMemcpyAsync(reinterpret_cast<uint8_t *>(out), pool + turn(i, copied), copied,
                              cudaMemcpyDeviceToDevice, stream));
    });
    const double copy = 2.0 * (double)copied / copy_us * 1e-3;
    printf("%s: device copy %.0f GB/s\n", device.name, copy);
    const bool conversions = bench_conversions(pool, out, scales, copy);
    const bool products = bench_weight_only(a, pool, out, scales, copy, peer);
    bench_int8(pool, out);
    printf("\nconversions at 0.85 of the copy: %s; weight-only products of 50 Mi weights and more with up to 16 "
           "tokens at 0.65: %s\n",
           conversions ? "yes" : "no", products ? "yes" : "no");
    return !conversions || !products;
}
