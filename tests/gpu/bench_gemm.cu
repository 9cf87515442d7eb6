/* Owns the timing of the block-FP8 product on a GPU: DeepSeek-V3's shapes against cuBLASLt in the same run, then the
 * conversions against a device copy. CUDA graphs of 20 launches, median of 22 replays.
 *   bench_gemm [--all] [--json FILE] [--triton FILE]     --all times every tile, too; --triton shows what
 *                                                        bench_triton.py wrote
 *   bench_gemm --shapes                                  what bench_triton.py reads
 * Exit codes: 0; 1 below 1.15 times cuBLASLt (geometric mean) or 0.85 of the copy; 5 no device. */
#include <math.h>
#include <string.h>

#include "kernels/cuda/block_fp8_convert.h"
#include "kernels/cuda/block_fp8_gemm.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/hopper.cuh"
#include "tests/gpu/timing.cuh"

static const int64_t shapes[19][3] = {
    {64, 2112, 7168},    {64, 24576, 1536},  {64, 32768, 512},   {64, 7168, 16384},   {64, 4096, 7168},
    {64, 7168, 2048},    {128, 2112, 7168},  {128, 24576, 1536}, {128, 32768, 512},   {128, 7168, 16384},
    {128, 4096, 7168},   {128, 7168, 2048},  {4096, 2112, 7168}, {4096, 24576, 1536}, {4096, 32768, 512},
    {4096, 7168, 16384}, {4096, 4096, 7168}, {4096, 7168, 2048}, {8192, 8192, 8192},
};

enum { kPeakWidth = 192, kPeakBytes = (128 + kPeakWidth) * 128 };

/* The same product by cuBLASLt, the fastest of what its heuristic offers; 0 when it offers none. */
static double time_cublas_lt(tsr_cublas_lt *lt, const tsr_block_fp8_gemm &g)
{
    tsr_err err;
    int offers;
    double best = 0;
    if (tsr_cublas_lt_prepare(lt, &g, &offers, &err) != TSR_OK) {
        return 0;
    }
    for (int i = 0; i < offers; ++i) {
        bool fine = true;
        const double us = time_each_us(
            [&](cudaStream_t stream, int) { fine = fine && tsr_cublas_lt_run(lt, i, stream, &err) == TSR_OK; });
        if (fine && (best == 0 || us < best)) {
            best = us;
        }
    }
    return best;
}

static double time_ours(tsr_block_fp8_gemm g, tsr_gemm_config config)
{
    g.config = config;
    return time_each_us([&](cudaStream_t stream, int) {
        tsr_err err;
        CHECK_TSR(tsr_cuda_block_fp8_gemm(&g, stream, &err), err);
    });
}

/* Every tile that may be a choice: of TSR_GEMM_TOKENS those that keep half of the processors or more at work. */
static void time_tiles(const tsr_block_fp8_gemm &g, int processors)
{
    for (int tokens = 32; tokens <= 128 && g.m <= 128; tokens *= 2) {
        for (int rows = 64; rows <= (tokens == 128 ? 192 : 256); rows += 64) {
            for (int splits = 1; splits <= 8 && splits <= g.k / 128; ++splits) {
                const int64_t ctas = (g.n + rows - 1) / rows * ((g.m + tokens - 1) / tokens) * splits;
                if (tokens <= g.m && ctas >= processors / 2 && (splits == 1 || ctas <= processors)) {
                    printf("      %d x %d/%d: %.2f\n", tokens, rows, splits,
                           time_ours(g, {TSR_GEMM_TOKENS, tokens, rows, splits}));
                }
            }
        }
    }
    static const tsr_gemm_config wide[] = {
        {TSR_GEMM_WIDE, 128, 128, 2}, {TSR_GEMM_WIDE, 128, 192, 2}, {TSR_GEMM_WIDE, 256, 128, 2}};
    for (const tsr_gemm_config &config : wide) {
        if (g.m > 64) {
            printf("      wide %d x %d: %.2f\n", config.tokens, config.rows, time_ours(g, config));
        }
    }
}

/* Nothing but e4m3 products in the tensor cores, both operands in shared memory, two warpgroups a processor. */
__global__ void __launch_bounds__(256, 1) peak_kernel(const uint8_t *codes, float *out, int rounds)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ uint8_t raw[];
    uint8_t *const operands = raw + (1024 - hopper::shared_address(raw) % 1024) % 1024;
    for (int i = threadIdx.x; i < kPeakBytes; i += 256) {
        operands[i] = codes[i];
    }
    hopper::fence_shared_for_copies();
    __syncthreads();
    const int group = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 128, 0);
    const uint64_t a = hopper::operand(operands + group * 64 * 128), w = hopper::operand(operands + 128 * 128);
    float sum[kPeakWidth / 2] = {};
    for (int r = 0; r < rounds; ++r) {
        hopper::mma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            hopper::mma<kPeakWidth>(sum, a + 2 * step, w + 2 * step, 1);
        }
        hopper::mma_commit();
        hopper::mma_wait<0>(sum);
    }
    float all = 0;
    for (int i = 0; i < kPeakWidth / 2; ++i) {
        all += sum[i];
    }
    out[blockIdx.x * 256 + threadIdx.x] = all;
#endif
}

/* TFLOPS of the tensor cores at e4m3, on random operands and for as long as the longest product here. */
static double measure_peak(const uint8_t *codes, int processors)
{
    enum { kRounds = 2000, kShared = kPeakBytes + 1024 };
    float *const out = device_array<float>((size_t)processors * 256);
    CHECK(cudaFuncSetAttribute(peak_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    const double us = time_each_us([&](cudaStream_t stream, int) {
        peak_kernel<<<processors, 256, kShared, stream>>>(codes, out, kRounds);
        CHECK(cudaGetLastError());
    });
    CHECK(cudaFree(out));
    return 2.0 * 128 * kPeakWidth * 128 * kRounds * processors / us * 1e-6;
}

/* Microseconds of bench_triton.py for a shape, 0 when its file has none. */
static double triton_us(const char *path, const int64_t shape[3])
{
    FILE *const f = path ? fopen(path, "r") : NULL;
    double found = 0, us;
    long long m, n, k;
    while (f && fscanf(f, "%lld %lld %lld %lf", &m, &n, &k, &us) == 4) {
        if (m == shape[0] && n == shape[1] && k == shape[2]) {
            found = us;
        }
    }
    if (f) {
        fclose(f);
    }
    return found;
}

int main(int argc, char **argv)
{
    bool all = false;
    const char *json_path = NULL, *triton_path = NULL;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--all") == 0) {
            all = true;
        } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json_path = argv[++i];
        } else if (strcmp(argv[i], "--triton") == 0 && i + 1 < argc) {
            triton_path = argv[++i];
        } else if (strcmp(argv[i], "--shapes") == 0) {
            for (const auto &shape : shapes) {
                printf("%lld %lld %lld\n", (long long)shape[0], (long long)shape[1], (long long)shape[2]);
            }
            return 0;
        } else {
            fprintf(stderr, "bench_gemm [--all] [--json FILE] [--triton FILE] | --shapes\n");
            return 2;
        }
    }
    const tsr_cuda_device device = need_hopper();
    tsr_err no_peer;
    tsr_cublas_lt *peer;
    if (tsr_cublas_lt_open(&peer, &no_peer) != TSR_OK) {
        fprintf(stderr, "%s\n", no_peer.msg);
    }
    FILE *const json = json_path ? fopen(json_path, "w") : NULL;
    if (json_path && !json) {
        perror(json_path);
        return 1;
    }
    uint8_t *const a = device_array<uint8_t>((size_t)8192 * 16384), *const w =
                                                                        device_array<uint8_t>((size_t)32768 * 16384);
    float *const scale_a = device_array<float>(8192 * 128), *const scale_w = device_array<float>(256 * 128);
    uint16_t *const d = device_array<uint16_t>((size_t)8192 * 32768);
    random_codes<<<1024, 256>>>(a, (int64_t)8192 * 16384, 1);
    random_codes<<<1024, 256>>>(w, (int64_t)32768 * 16384, 2ull << 40);
    random_floats<<<256, 256>>>(scale_a, 8192 * 128, 1e-4f, 2e-3f, 3ull << 40);
    random_floats<<<256, 256>>>(scale_w, 256 * 128, 1e-4f, 2e-3f, 4ull << 40);
    CHECK(cudaDeviceSynchronize());

    if (json) {
        fprintf(json, "{\"device\": \"%s\", \"gemm\": [", device.name);
    }
    const double peak = measure_peak(w, device.processors);
    printf("%s. Measured e4m3 peak of the tensor cores: %.0f TFLOPS.\n", device.name, peak);
    printf("Floor: the larger of bytes / 4.1 TB/s and operations / that peak.\n");
    printf(
        "    m     n     k  kernel                us  TFLOPS  cuBLASLt us  ratio  Triton TFLOPS  floor us  of floor\n");
    double log_sum = 0;
    int compared = 0;
    for (int s = 0; s < 19; ++s) {
        tsr_block_fp8_gemm g = {};
        g.a = a, g.w = w, g.scale_a = scale_a, g.scale_w = scale_w, g.d = d;
        g.m = shapes[s][0], g.n = shapes[s][1], g.k = shapes[s][2];
        g.lda = g.ldw = g.k, g.ldd = g.n, g.ld_scale_a = g.m;
        g.out = TSR_GEMM_BF16;
        const tsr_gemm_config config = tsr_cuda_block_fp8_gemm_choose(&g, &device);
        const double us = time_ours(g, config), theirs = peer ? time_cublas_lt(peer, g) : 0;
        const double triton = triton_us(triton_path, shapes[s]);
        const double flops = 2.0 * g.m * g.n * g.k, bytes = (double)g.m * g.k + (double)g.n * g.k + 2.0 * g.m * g.n;
        const double floor_us = fmax(bytes / 4.1e6, flops / (peak * 1e6));
        printf("%5lld %5lld %5lld  %-6s %3d x %3d/%d %8.1f %7.0f %12.1f %6.2f %14.0f %9.1f %9.2f\n", (long long)g.m,
               (long long)g.n, (long long)g.k, config.kind == TSR_GEMM_WIDE ? "wide" : "tokens", config.tokens,
               config.rows, config.cluster, us, flops / us * 1e-6, theirs, theirs / us,
               triton > 0 ? flops / triton * 1e-6 : 0, floor_us, floor_us / us);
        if (json) {
            fprintf(json,
                    "%s{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"us\": %.3f, \"cublaslt_us\": %.3f, "
                    "\"triton_us\": %.3f, \"floor_us\": %.3f}",
                    s ? ", " : "", (long long)g.m, (long long)g.n, (long long)g.k, us, theirs, triton, floor_us);
        }
        if (theirs > 0) {
            log_sum += log(theirs / us);
            compared += 1;
        }
        if (all) {
            time_tiles(g, device.processors);
        }
        fflush(stdout);
    }
    const double mean = compared ? exp(log_sum / compared) : 0;
    printf("geometric mean: %.3f times cuBLASLt over %d shapes (limit 1.15)\n", mean, compared);

    const int64_t rows = 18432, columns = 7168;
    tsr_err err;
    const double copy_bytes = (double)rows * columns * 2;
    const double copy_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK(cudaMemcpyAsync(d, w, (size_t)copy_bytes, cudaMemcpyDeviceToDevice, stream));
    });
    uint16_t *const x = device_array<uint16_t>((size_t)rows * columns);
    random_bf16<<<1024, 256>>>(x, rows * columns, 5ull << 40);
    float *const token_scales = device_array<float>((size_t)rows * (columns / 128));
    const double quantize_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK_TSR(tsr_cuda_quantize_tokens(x, rows, columns, columns, a, columns, token_scales, rows, stream, &err),
                  err);
    });
    const double dequantize_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK_TSR(tsr_cuda_dequantize_blocks(w, scale_w, rows, columns, columns, d, columns, stream, &err), err);
    });
    const double copy = 2 * copy_bytes / copy_us * 1e-3, cells = (double)rows * columns;
    const double quantize = (3 + 4.0 / 128) * cells / quantize_us * 1e-3, dequantize = 3 * cells / dequantize_us * 1e-3;
    printf("device copy %.0f GB/s; quantizing tokens %.0f (%.2f of it), dequantizing blocks %.0f (%.2f); limit 0.85\n",
           copy, quantize, quantize / copy, dequantize, dequantize / copy);
    if (json) {
        fprintf(
            json,
            "], \"geomean_vs_cublaslt\": %.4f, \"copy_gbs\": %.1f, \"quantize_gbs\": %.1f, \"dequantize_gbs\": %.1f}\n",
            mean, copy, quantize, dequantize);
        fclose(json);
    }
    return (peer && mean < 1.15) || quantize < 0.85 * copy || dequantize < 0.85 * copy;
}
