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

/* Every tile that may be a choice from 64 tokens on: of TSR_GEMM_NARROW those that keep half of the processors or more
 * at work. */
static void time_tiles(const tsr_block_fp8_gemm &g, int processors)
{
    for (int tokens = 64; tokens <= 128 && tokens <= g.m && g.m <= 128; tokens *= 2) {
        for (int rows : {32, 56, 64, 72, 112, 128, 192, 256}) {
            for (int splits = 1; splits <= 8 && splits <= g.k / 128 && rows * tokens <= 128 * 128; ++splits) {
                const int64_t ctas = (g.n + rows - 1) / rows * ((g.m + tokens - 1) / tokens) * splits;
                if (ctas >= processors / 2 && (splits == 1 || ctas <= processors)) {
                    printf("      %d x %d/%d: %.2f\n", tokens, rows, splits,
                           time_ours(g, {TSR_GEMM_NARROW, tokens, rows, splits}));
                }
            }
        }
    }
    static const tsr_gemm_config wide[] = {{TSR_GEMM_WIDE, 128, 128, 2},
                                           {TSR_GEMM_WIDE, 128, 192, 1},
                                           {TSR_GEMM_WIDE, 128, 192, 2},
                                           {TSR_GEMM_WIDE, 256, 128, 2}};
    for (const tsr_gemm_config &config : wide) {
        if (g.m > 64) {
            printf("      wide %d x %d/%d: %.2f\n", config.tokens, config.rows, config.cluster, time_ours(g, config));
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

struct arguments {
    bool all, shapes;
    const char *json_path, *triton_path;
};

/* Buffers that all products and conversions read and write. */
struct arrays {
    uint8_t *a, *w;
    float *scale_a, *scale_w;
    uint16_t *d;
};

static bool parse(int argc, char **argv, arguments *x)
{
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--all") == 0) {
            x->all = true;
        } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            x->json_path = argv[++i];
        } else if (strcmp(argv[i], "--triton") == 0 && i + 1 < argc) {
            x->triton_path = argv[++i];
        } else if (strcmp(argv[i], "--shapes") == 0) {
            x->shapes = true;
        } else {
            return false;
        }
    }
    return true;
}

static arrays make_arrays()
{
    arrays x;
    x.a = device_array<uint8_t>((size_t)8192 * 16384), x.w = device_array<uint8_t>((size_t)32768 * 16384);
    x.scale_a = device_array<float>(8192 * 128), x.scale_w = device_array<float>(256 * 128);
    x.d = device_array<uint16_t>((size_t)8192 * 32768);
    random_codes<<<1024, 256>>>(x.a, (int64_t)8192 * 16384, 1);
    random_codes<<<1024, 256>>>(x.w, (int64_t)32768 * 16384, 2ull << 40);
    random_floats<<<256, 256>>>(x.scale_a, 8192 * 128, 1e-4f, 2e-3f, 3ull << 40);
    random_floats<<<256, 256>>>(x.scale_w, 256 * 128, 1e-4f, 2e-3f, 4ull << 40);
    CHECK(cudaDeviceSynchronize());
    return x;
}

/* Prints a row; returns how many times as long cuBLASLt takes, 0 where it has no such product. */
static double time_shape(const int64_t shape[3], const arrays &x, const tsr_cuda_device &device, tsr_cublas_lt *peer,
                         double peak, const arguments &wanted, FILE *json)
{
    tsr_block_fp8_gemm g = {};
    g.a = x.a, g.w = x.w, g.scale_a = x.scale_a, g.scale_w = x.scale_w, g.d = x.d;
    g.m = shape[0], g.n = shape[1], g.k = shape[2];
    g.lda = g.ldw = g.k, g.ldd = g.n, g.ld_scale_a = g.m;
    g.out = TSR_GEMM_BF16;
    static const char *const kinds[] = {"auto", "plain", "tokens", "wide", "narrow"};
    const tsr_gemm_config config = tsr_cuda_block_fp8_gemm_choose(&g, &device);
    const double us = time_ours(g, config), theirs = peer ? time_cublas_lt(peer, g) : 0;
    const double triton = triton_us(wanted.triton_path, shape);
    const double flops = 2.0 * g.m * g.n * g.k, bytes = (double)g.m * g.k + (double)g.n * g.k + 2.0 * g.m * g.n;
    const double floor_us = fmax(bytes / 4.1e6, flops / (peak * 1e6));
    printf("%5lld %5lld %5lld  %-6s %3d x %3d/%d %8.1f %7.0f %12.1f %6.2f %14.0f %9.1f %9.2f\n", (long long)g.m,
           (long long)g.n, (long long)g.k, kinds[config.kind], config.tokens, config.rows, config.cluster, us,
           flops / us * 1e-6, theirs, theirs / us, triton > 0 ? flops / triton * 1e-6 : 0, floor_us, floor_us / us);
    if (json) {
        fprintf(json,
                "%s{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"us\": %.3f, \"cublaslt_us\": %.3f, "
                "\"triton_us\": %.3f, \"floor_us\": %.3f}",
                shape == shapes[0] ? "" : ", ", (long long)g.m, (long long)g.n, (long long)g.k, us, theirs, triton,
                floor_us);
    }
    if (wanted.all) {
        time_tiles(g, device.processors);
    }
    fflush(stdout);
    return theirs / us;
}

/* The geometric mean of the shapes' times over ours by cuBLASLt; 0 without it. */
static double time_shapes(const arrays &x, const tsr_cuda_device &device, tsr_cublas_lt *peer, const arguments &wanted,
                          FILE *json)
{
    const double peak = measure_peak(x.w, device.processors);
    printf("%s. Measured e4m3 peak of the tensor cores: %.0f TFLOPS.\n", device.name, peak);
    printf("Floor: the larger of bytes / 4.1 TB/s and operations / that peak.\n");
    printf(
        "    m     n     k  kernel                us  TFLOPS  cuBLASLt us  ratio  Triton TFLOPS  floor us  of floor\n");
    double log_sum = 0;
    int compared = 0;
    for (const auto &shape : shapes) {
        const double ratio = time_shape(shape, x, device, peer, peak, wanted, json);
        if (ratio > 0) {
            log_sum += log(ratio);
            compared += 1;
        }
    }
    const double mean = compared ? exp(log_sum / compared) : 0;
    printf("geometric mean: %.3f times cuBLASLt over %d shapes (limit 1.15)\n", mean, compared);
    return mean;
}

/* GB/s. */
struct conversions {
    double copy, quantize, dequantize;
};

static conversions time_conversions(const arrays &x)
{
    const int64_t rows = 18432, columns = 7168;
    tsr_err err;
    const double copy_bytes = (double)rows * columns * 2, cells = (double)rows * columns;
    const double copy_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK(cudaMemcpyAsync(x.d, x.w, (size_t)copy_bytes, cudaMemcpyDeviceToDevice, stream));
    });
    uint16_t *const values = device_array<uint16_t>((size_t)rows * columns);
    random_bf16<<<1024, 256>>>(values, rows * columns, 5ull << 40);
    float *const token_scales = device_array<float>((size_t)rows * (columns / 128));
    const double quantize_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK_TSR(
            tsr_cuda_quantize_tokens(values, rows, columns, columns, x.a, columns, token_scales, rows, stream, &err),
            err);
    });
    const double dequantize_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK_TSR(tsr_cuda_dequantize_blocks(x.w, x.scale_w, rows, columns, columns, x.d, columns, stream, &err), err);
    });
    const conversions c = {2 * copy_bytes / copy_us * 1e-3, (3 + 4.0 / 128) * cells / quantize_us * 1e-3,
                           3 * cells / dequantize_us * 1e-3};
    printf("device copy %.0f GB/s; quantizing tokens %.0f (%.2f of it), dequantizing blocks %.0f (%.2f); limit 0.85\n",
           c.copy, c.quantize, c.quantize / c.copy, c.dequantize, c.dequantize / c.copy);
    return c;
}

int main(int argc, char **argv)
{
    arguments wanted = {};
    if (!parse(argc, argv, &wanted)) {
        fprintf(stderr, "bench_gemm [--all] [--json FILE] [--triton FILE] | --shapes\n");
        return 2;
    }
    for (const auto &shape : shapes) {
        if (wanted.shapes) {
            printf("%lld %lld %lld\n", (long long)shape[0], (long long)shape[1], (long long)shape[2]);
        }
    }
    if (wanted.shapes) {
        return 0;
    }
    const tsr_cuda_device device = need_hopper();
    tsr_err no_peer;
    tsr_cublas_lt *peer;
    if (tsr_cublas_lt_open(&peer, &no_peer) != TSR_OK) {
        fprintf(stderr, "%s\n", no_peer.msg);
    }
    FILE *const json = wanted.json_path ? fopen(wanted.json_path, "w") : NULL;
    if (wanted.json_path && !json) {
        perror(wanted.json_path);
        return 1;
    }
    const arrays x = make_arrays();
    if (json) {
        fprintf(json, "{\"device\": \"%s\", \"gemm\": [", device.name);
    }
    const double mean = time_shapes(x, device, peer, wanted, json);
    const conversions c = time_conversions(x);
    if (json) {
        fprintf(
            json,
            "], \"geomean_vs_cublaslt\": %.4f, \"copy_gbs\": %.1f, \"quantize_gbs\": %.1f, \"dequantize_gbs\": %.1f}\n",
            mean, c.copy, c.quantize, c.dequantize);
        fclose(json);
    }
    return (peer && mean < 1.15) || c.quantize < 0.85 * c.copy || c.dequantize < 0.85 * c.copy;
}
