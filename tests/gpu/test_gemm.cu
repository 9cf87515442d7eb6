/* Owns the check of the block-FP8 product and conversions against FP64 on a GPU: every kernel and tile on ragged shapes
 * and on those of DeepSeek-V3, poisoned outputs, fresh operands, two runs bit for bit. For compute-sanitizer `test_gemm
 * small` leaves out the large shapes, and `test_gemm tiny` all but one. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <string.h>

#include "kernels/cuda/block_fp8_gemm.h"
#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/verdicts.cuh"

struct outcome {
    unsigned long long beyond; /* elements beyond the bound, or never written */
    double worst;              /* error over bound */
    double error, exact;       /* sums of squares */
    double rms;                /* sum of squared errors, each over its expected square v */
    double lean, weight; /* sums of error * exact / v and of exact^2 / v: how far results are too large or small */
    unsigned long long judged;
    int64_t row, column; /* one of those beyond */
};

__device__ static double decode(uint8_t code)
{
    return (double)__half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

__device__ static double value_of(const void *d, int64_t at, tsr_gemm_out out)
{
    return out == TSR_GEMM_F32    ? (double)static_cast<const float *>(d)[at]
           : out == TSR_GEMM_BF16 ? (double)__bfloat162float(static_cast<const __nv_bfloat16 *>(d)[at])
                                  : (double)__half2float(static_cast<const __half *>(d)[at]);
}

__device__ static double square(double x)
{
    return x * x;
}

/* The power of two at or below x >= 0. */
__device__ static double binade(double x)
{
    return x > 0 ? ldexp(1.0, ilogb(x)) : 0;
}

/* One warp an element of the sample: rows 0, row_step, ...; the bound is the one of block_fp8_gemm.h. */
__global__ void judge(const tsr_block_fp8_gemm g, int64_t row_step, int64_t column_step, outcome *v)
{
    const int lane = threadIdx.x % 32;
    const int64_t rows = (g.m + row_step - 1) / row_step, columns = (g.n + column_step - 1) / column_step;
    const int64_t tiles = (g.k + 127) / 128;
    for (int64_t e = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; e < rows * columns;
         e += (int64_t)gridDim.x * blockDim.x / 32) {
        const int64_t i = e / columns * row_step, j = e % columns * column_step;
        double exact = 0, bound = 0, mass = 0, variance = 0;
        for (int64_t t = 0; t < tiles; ++t) {
            const double scale = (double)g.scale_a[t * g.ld_scale_a + i] * (double)g.scale_w[j / 128 * tiles + t];
            double tile = 0, slack = 0, lost = 0;
            for (int step = 0; step < 4; ++step) {
                const int64_t x = t * 128 + step * 32 + lane;
                const double product = x < g.k ? decode(g.a[i * g.lda + x]) * decode(g.w[j * g.ldw + x]) : 0;
                double sum = product, largest = fabs(product), absolute = fabs(product);
                for (int distance = 16; distance > 0; distance /= 2) {
                    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
                    absolute += __shfl_xor_sync(0xFFFFFFFFu, absolute, distance);
                    largest = fmax(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, distance));
                }
                slack += 33 * 0x1p-13 * 1.01 * fmax(fabs(tile), largest);
                lost += 33 / 3.0 * square(0x1p-13 * binade(fmax(fabs(tile), largest)));
                tile += sum;
                mass += fabs(scale) * absolute;
            }
            exact += scale * tile;
            bound += fabs(scale) * slack;
            variance += scale * scale * lost;
        }
        bound += 3.0 * (double)(tiles + 2) * 0x1p-24 * mass;
        const double half_ulp = g.out == TSR_GEMM_BF16 ? 0x1p-8 : g.out == TSR_GEMM_F16 ? 0x1p-11 : 0x1p-24;
        variance += square(fmax(binade(fabs(exact)) * half_ulp, g.out == TSR_GEMM_F16 ? 0x1p-25 : 0)) / 3;
        bound += (fabs(exact) + bound) * half_ulp + (g.out == TSR_GEMM_F16 ? 0x1p-25 : 0x1p-133);
        if (lane == 0) {
            const double off = value_of(g.d, i * g.ldd + j, g.out) - exact, error = fabs(off);
            if (!(error <= bound)) {
                atomicAdd(&v->beyond, 1ull);
                v->row = i, v->column = j;
            }
            atomicAdd(&v->error, error * error);
            atomicAdd(&v->exact, exact * exact);
            if (variance > 0) {
                atomicAdd(&v->rms, error * error / variance);
                atomicAdd(&v->lean, off * exact / variance);
                atomicAdd(&v->weight, exact * exact / variance);
                atomicAdd(&v->judged, 1ull);
            }
            atomicMax(reinterpret_cast<unsigned long long *>(&v->worst),
                      (unsigned long long)__double_as_longlong(error / bound));
        }
    }
}

/* Elements of d that still hold the poison inside, or no longer hold it beyond column n. */
__global__ void unwritten(const uint8_t *d, int64_t m, int64_t n, int64_t ldd, int size, unsigned long long *count)
{
    for (int64_t at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; at < m * ldd;
         at += (int64_t)gridDim.x * blockDim.x) {
        bool poison = true;
        for (int b = 0; b < size; ++b) {
            poison = poison && d[at * size + b] == 0xFF;
        }
        if (poison == (at % ldd < n)) {
            atomicAdd(count, 1ull);
        }
    }
}

__global__ void differing(const uint8_t *x, const uint8_t *y, int64_t bytes, unsigned long long *count)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < bytes; i += (int64_t)gridDim.x * blockDim.x) {
        if (x[i] != y[i]) {
            atomicAdd(count, 1ull);
        }
    }
}

static uint64_t seed = 20261121;

/* Returns true if errors are no larger in the mean than roundings are, and lean to no side by more than a truncated sum
 * does: 2^-12 of a value, and 6 standard errors (verify/evidence/kernel_tally.h). No single element shows a result that
 * is truncated or 0.1 % too large. */
static bool as_expected(const outcome *v, tsr_gemm_out out)
{
    enum { ENOUGH = 256 };
    const double rms = sqrt(v->rms / (double)v->judged), limit = out == TSR_GEMM_F32 ? 2 : 1.5;
    return v->judged < ENOUGH || (rms <= limit && fabs(v->lean) <= 0x1p-12 * v->weight + 6 * sqrt(v->weight));
}

/* `configs` ends with TSR_GEMM_AUTO, which is checked too. `pad`: extra elements in every row. */
static void check_shape(int64_t m, int64_t n, int64_t k, int64_t pad, const tsr_gemm_config *configs)
{
    const int64_t ld = up(k, 16) + 16 * pad, tiles = (k + 127) / 128, ld_scale = up(m, 4) + 4 * pad, ldd = n + 3 * pad;
    tsr_block_fp8_gemm g = {};
    uint8_t *const a = device_array<uint8_t>(m * ld), *const w = device_array<uint8_t>(n * ld);
    float *const scale_a = device_array<float>(tiles * ld_scale), *const scale_w =
                                                                      device_array<float>((n + 127) / 128 * tiles);
    uint8_t *const d = device_array<uint8_t>(m * ldd * 4), *const again = device_array<uint8_t>(m * ldd * 4);
    outcome *const on_device = device_array<outcome>(1), found, *const v = &found;
    unsigned long long *const counts_on_device = device_array<unsigned long long>(2), counts[2];
    g.a = a, g.w = w, g.scale_a = scale_a, g.scale_w = scale_w;
    g.m = m, g.n = n, g.k = k, g.lda = g.ldw = ld, g.ldd = ldd, g.ld_scale_a = ld_scale;
    const int64_t row_step = m > 256 ? m / 61 : 1, column_step = m * n > 200000 ? (n > 256 ? n / 127 : 1) : 1;
    for (const tsr_gemm_config *config = configs;; ++config) {
        random_codes<<<1024, 256>>>(a, m * ld, seed += 1ull << 40);
        random_codes<<<1024, 256>>>(w, n * ld, seed += 1ull << 40);
        random_floats<<<256, 256>>>(scale_a, tiles * ld_scale, 1e-4f, 2e-3f, seed += 1ull << 40);
        random_floats<<<256, 256>>>(scale_w, (n + 127) / 128 * tiles, 1e-4f, 2e-3f, seed += 1ull << 40);
        for (int out = TSR_GEMM_BF16; out <= TSR_GEMM_F32; ++out) {
            g.config = *config;
            g.out = (tsr_gemm_out)out;
            const int size = out == TSR_GEMM_F32 ? 4 : 2;
            tsr_err err;
            CHECK(cudaMemset(on_device, 0, sizeof *on_device));
            CHECK(cudaMemset(counts_on_device, 0, sizeof counts));
            for (int run = 0; run < 2; ++run) {
                g.d = run == 0 ? again : d;
                CHECK(cudaMemset(g.d, 0xFF, m * ldd * size));
                CHECK_TSR(tsr_cuda_block_fp8_gemm(&g, 0, &err), err);
            }
            judge<<<1024, 256>>>(g, row_step, column_step, on_device);
            unwritten<<<1024, 256>>>(d, m, n, ldd, size, &counts_on_device[0]);
            differing<<<1024, 256>>>(d, again, m * ldd * size, &counts_on_device[1]);
            CHECK(cudaGetLastError());
            CHECK(cudaMemcpy(&found, on_device, sizeof found, cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpy(counts, counts_on_device, sizeof counts, cudaMemcpyDeviceToHost));
            const bool fine = v->beyond == 0 && counts[0] == 0 && counts[1] == 0 && (v->exact > 0 || m * n * k == 1) &&
                              as_expected(v, g.out);
            checks += 1;
            failures += !fine;
            if (!fine || (m * n * k > 1000000000 && out == TSR_GEMM_BF16)) {
                printf("%s %5lld x %5lld x %5lld pad %lld kind %d tile %d x %d cluster %d out %d: relative error %.2e, "
                       "worst %.3f of the bound, RMS %.3f of the expected, bias %.1e (%.1e), %llu beyond (%lld, %lld), "
                       "%llu unwritten, %llu differ\n",
                       fine ? "ok    " : "FAILED", (long long)m, (long long)n, (long long)k, (long long)pad,
                       (int)config->kind, config->tokens, config->rows, config->cluster, out, sqrt(v->error / v->exact),
                       v->worst, sqrt(v->rms / (double)v->judged), v->lean / v->weight, 1 / sqrt(v->weight), v->beyond,
                       (long long)v->row, (long long)v->column, counts[0], counts[1]);
            }
        }
        if (config->kind == TSR_GEMM_AUTO) {
            break;
        }
    }
    void *const all[] = {a, w, scale_a, scale_w, d, again, on_device, counts_on_device};
    for (void *p : all) {
        CHECK(cudaFree(p));
    }
}

__global__ void spread(const float *grid, float *scales, int64_t tiles, int64_t ld_grid, int64_t ld, int64_t m,
                       int64_t group)
{
    const int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < tiles * m) {
        scales[at / m * ld + at % m] = grid[at / m * ld_grid + at % m / group];
    }
}

/* A scale for each `group` tokens has to give the bits that the same scale for each of them gives. */
static void check_groups(int64_t m, int64_t n, int64_t k, int64_t group)
{
    const int64_t ld = up(k, 16), tiles = (k + 127) / 128, ld_scale = up(m, 4), ld_grid = (m + group - 1) / group + 1;
    uint8_t *const a = device_array<uint8_t>(m * ld), *const w = device_array<uint8_t>(n * ld);
    float *const grid = device_array<float>(tiles * ld_grid), *const scale_a = device_array<float>(tiles * ld_scale),
                 *const scale_w = device_array<float>((n + 127) / 128 * tiles);
    float *const d = device_array<float>(m * n), *const by_token = device_array<float>(m * n);
    unsigned long long *const count = device_array<unsigned long long>(1), differ;
    random_codes<<<1024, 256>>>(a, m * ld, seed += 1ull << 40);
    random_codes<<<1024, 256>>>(w, n * ld, seed += 1ull << 40);
    random_floats<<<256, 256>>>(grid, tiles * ld_grid, 1e-4f, 2e-3f, seed += 1ull << 40);
    random_floats<<<256, 256>>>(scale_w, (n + 127) / 128 * tiles, 1e-4f, 2e-3f, seed += 1ull << 40);
    spread<<<(unsigned)((tiles * m + 255) / 256), 256>>>(grid, scale_a, tiles, ld_grid, ld_scale, m, group);
    tsr_block_fp8_gemm g = {};
    g.a = a, g.w = w, g.scale_w = scale_w, g.m = m, g.n = n, g.k = k, g.lda = g.ldw = ld, g.ldd = n,
    g.out = TSR_GEMM_F32;
    for (const tsr_gemm_kind kind : {TSR_GEMM_PLAIN, TSR_GEMM_MMA, TSR_GEMM_AUTO}) {
        tsr_err err;
        g.config = {kind, 0, 0, 0};
        g.d = d, g.scale_a = grid, g.ld_scale_a = ld_grid, g.group_m = group;
        CHECK(cudaMemset(d, 0xFF, m * n * 4));
        CHECK_TSR(tsr_cuda_block_fp8_gemm(&g, 0, &err), err);
        /* Hopper's own kernels take no grid, so that the choice falls on the one by mma. */
        g.config.kind = kind == TSR_GEMM_PLAIN ? TSR_GEMM_PLAIN : TSR_GEMM_MMA;
        g.d = by_token, g.scale_a = scale_a, g.ld_scale_a = ld_scale, g.group_m = 0;
        CHECK_TSR(tsr_cuda_block_fp8_gemm(&g, 0, &err), err);
        CHECK(cudaMemset(count, 0, sizeof differ));
        differing<<<1024, 256>>>((const uint8_t *)d, (const uint8_t *)by_token, m * n * 4, count);
        CHECK(cudaMemcpy(&differ, count, sizeof differ, cudaMemcpyDeviceToHost));
        checks += 1;
        failures += differ != 0;
        printf("%s %lld x %lld x %lld kind %d, a scale for %lld tokens: %llu differ\n", differ ? "FAILED" : "ok    ",
               (long long)m, (long long)n, (long long)k, (int)kind, (long long)group, differ);
    }
    g.config = {TSR_GEMM_WIDE, 128, 128, 1}, g.group_m = group;
    tsr_err err;
    const bool refused = tsr_cuda_block_fp8_gemm(&g, 0, &err) == TSR_E_UNSUPPORTED;
    checks += 1;
    failures += !refused;
    void *const all[] = {a, w, grid, scale_a, scale_w, d, by_token, count};
    for (void *p : all) {
        CHECK(cudaFree(p));
    }
}

int main(int argc, char **argv)
{
    need_hopper();
    const bool tiny = argc > 1 && strcmp(argv[1], "tiny") == 0;
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    const tsr_gemm_config every[] = {
        {TSR_GEMM_PLAIN, 0, 0, 0},      {TSR_GEMM_NARROW, 64, 64, 1},   {TSR_GEMM_NARROW, 64, 64, 2},
        {TSR_GEMM_NARROW, 64, 64, 7},   {TSR_GEMM_NARROW, 64, 128, 1},  {TSR_GEMM_NARROW, 64, 128, 3},
        {TSR_GEMM_NARROW, 64, 128, 8},  {TSR_GEMM_NARROW, 128, 64, 1},  {TSR_GEMM_NARROW, 128, 64, 2},
        {TSR_GEMM_NARROW, 128, 64, 5},  {TSR_GEMM_WIDE, 128, 160, 1},   {TSR_GEMM_WIDE, 128, 160, 2},
        {TSR_GEMM_NARROW, 128, 128, 1}, {TSR_GEMM_NARROW, 128, 128, 4}, {TSR_GEMM_NARROW, 128, 128, 6},
        {TSR_GEMM_WIDE, 128, 128, 2},   {TSR_GEMM_WIDE, 128, 192, 2},   {TSR_GEMM_WIDE, 256, 128, 2},
        {TSR_GEMM_WIDE, 128, 128, 1},   {TSR_GEMM_WIDE, 128, 192, 1},   {TSR_GEMM_WIDE, 256, 128, 1},
        {TSR_GEMM_MMA, 128, 128, 1},    {TSR_GEMM_MMA, 32, 64, 1},      {TSR_GEMM_AUTO, 0, 0, 0}};
    const tsr_gemm_config *const automatic = &every[sizeof every / sizeof *every - 1];
    const int64_t ragged[][3] = {{1, 1, 1},       {1, 128, 128},   {3, 130, 144},   {17, 127, 1000},  {64, 576, 1040},
                                 {65, 257, 2048}, {127, 129, 640}, {129, 384, 513}, {200, 200, 4112}, {300, 1030, 896}};
    if (tiny) {
        check_shape(127, 129, 640, 0, every);
        return conclude();
    }
    for (size_t s = 0; s < sizeof ragged / sizeof *ragged; ++s) {
        check_shape(ragged[s][0], ragged[s][1], ragged[s][2], 0, every);
        check_shape(ragged[s][0], ragged[s][1], ragged[s][2], 1, every);
    }
    for (const int64_t group : {64, 128}) {
        check_groups(40, 100, 300, group);
        check_groups(300, 257, 640, group);
        check_groups(640, 384, 512, group); /* CUTLASS's grid of 5 by 4 */
    }
    if (!small) {
        const int64_t layer[][2] = {{2112, 7168},  {24576, 1536}, {32768, 512},
                                    {7168, 16384}, {4096, 7168},  {7168, 2048}};
        const int64_t tokens[] = {1, 64, 128, 777, 4096, 8192};
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; ++t) {
            for (size_t s = 0; s < sizeof layer / sizeof *layer; ++s) {
                check_shape(tokens[t], layer[s][0], layer[s][1], 0, tokens[t] == 4096 && s == 5 ? every : automatic);
            }
        }
        check_shape(8192, 8192, 8192, 0, automatic);
    }
    return conclude();
}
