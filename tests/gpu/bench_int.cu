/* Times the integer kernels on a GPU: fast conversion against the conversion instruction and a device copy, and the
 * int8 product. Buffers rotate, so that no cache serves them. Exit codes: 0; 1 below 0.85 of the copy; 5 no device. */
#include <unistd.h>

#include "kernels/cuda/fast_dequant.h"
#include "kernels/cuda/int8_gemm.h"
#include "tests/gpu/timing.cuh"

enum { kPool = 1 << 30 }; /* bytes of weights that the launches use in turn */

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
    uint8_t *const pool = device_array<uint8_t>(kPool);
    uint16_t *const out = device_array<uint16_t>((size_t)18432 * 7168 * 2);
    uint16_t *const scales = device_array<uint16_t>((size_t)32768 * 256);
    random_codes<<<1024, 256>>>(pool, kPool, 1);
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
    bench_int8(pool, out);
    printf("\nconversions at 0.85 of the copy: %s\n", conversions ? "yes" : "no");
    return !conversions;
}
