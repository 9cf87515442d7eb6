/* Owns the timing of the grouped block-FP8 products on a GPU: the shapes of DeepGEMM's tests in both layouts, and of few
 * rows a group, against a loop over the dense kernel in the same run. CUDA graphs of 10 launches, median of 22 replays.
 * Weights lie in as many copies that take turns as make them come from memory and not from L2.
 *   bench_grouped [--all]   --all times every tile, too
 * Exit codes: 0; 1 not faster than the loop (geometric mean); 5 no device. */
#include <algorithm>
#include <math.h>
#include <string.h>

#include "kernels/cuda/block_fp8_grouped.h"
#include "tests/gpu/timing.cuh"

struct grouped_shape {
    bool masked;
    int groups, rows, n,
        k; /* rows: of a group, on the average; from 0.7 to 1.3 of it, or from 1 where it is below 20 */
};

#define TSR_WEIGHTS(masked, groups, rows)                                                                       \
    {masked, groups, rows, 6144, 7168}, {masked, groups, rows, 7168, 3072}, {masked, groups, rows, 4096, 4096}, \
    {                                                                                                           \
        masked, groups, rows, 4096, 2048                                                                        \
    }
static const grouped_shape shapes[] = {
    TSR_WEIGHTS(false, 4, 8192), TSR_WEIGHTS(false, 8, 4096), TSR_WEIGHTS(true, 6, 1024),
    TSR_WEIGHTS(true, 32, 192),  TSR_WEIGHTS(true, 32, 50),   TSR_WEIGHTS(true, 32, 20),
    TSR_WEIGHTS(true, 6, 20),    TSR_WEIGHTS(true, 32, 8),    TSR_WEIGHTS(true, 32, 1),
};

enum { kRoom = 4096 /* rows that a masked group has room for */, kLaunches = 10 };
constexpr int64_t kMostRows = 32 * kRoom, kMostK = 7168, kMostN = 7168;
constexpr int64_t kWeights = (int64_t)32 * 6144 * 7168, kFarFromL2 = 300 << 20;

/* Buffers that all products read and write. */
struct arrays {
    uint8_t *a, *w;
    float *scale_a, *scale_w;
    uint16_t *d;
    int32_t *index; /* group_of_row or rows_of_group */
};

static arrays make_arrays()
{
    const int64_t scales_a = kMostRows * kMostK / 128, scales_w = 32 * (kMostN / 128) * (kMostK / 128);
    const arrays x = {device_array<uint8_t>(kMostRows * kMostK),
                      device_array<uint8_t>(kWeights),
                      device_array<float>(scales_a),
                      device_array<float>(scales_w),
                      device_array<uint16_t>(kMostRows * kMostN),
                      device_array<int32_t>(kMostRows)};
    random_codes<<<1024, 256>>>(x.a, kMostRows * kMostK, 1ull << 40);
    random_codes<<<1024, 256>>>(x.w, kWeights, 2ull << 40);
    random_floats<<<256, 256>>>(x.scale_a, scales_a, 1e-4f, 2e-3f, 3ull << 40);
    random_floats<<<256, 256>>>(x.scale_w, scales_w, 1e-4f, 2e-3f, 4ull << 40);
    CHECK(cudaDeviceSynchronize());
    return x;
}

/* The rows of each group, the same in every run. */
static std::vector<int32_t> rows_of(const grouped_shape &s)
{
    std::vector<int32_t> rows;
    for (int g = 0; g < s.groups; ++g) {
        const double u = (double)(mix((uint64_t)s.n + (uint64_t)g) >> 11) * 0x1p-53;
        rows.push_back(s.rows < 20 ? 1 + (int)(u * (2 * s.rows - 1)) : (int)(s.rows * (0.7 + 0.6 * u)));
    }
    return rows;
}

static int64_t room_of(const grouped_shape &s, int32_t rows)
{
    return s.masked ? kRoom : (rows + 127) / 128 * 128;
}

static tsr_block_fp8_grouped problem_of(const grouped_shape &s, const arrays &x, const std::vector<int32_t> &rows)
{
    std::vector<int32_t> group_of_row;
    for (size_t g = 0; g < rows.size(); ++g) {
        for (int64_t i = 0; i < room_of(s, rows[g]); ++i) {
            group_of_row.push_back(i < rows[g] ? (int32_t)g : -1);
        }
    }
    const std::vector<int32_t> &index = s.masked ? rows : group_of_row;
    CHECK(cudaMemcpy(x.index, index.data(), index.size() * sizeof index[0], cudaMemcpyHostToDevice));
    tsr_block_fp8_grouped p = {};
    p.gemm.a = x.a, p.gemm.w = x.w, p.gemm.scale_a = x.scale_a, p.gemm.scale_w = x.scale_w, p.gemm.d = x.d;
    p.gemm.m = p.gemm.ld_scale_a = (int64_t)group_of_row.size(), p.gemm.n = p.gemm.ldd = s.n;
    p.gemm.k = p.gemm.lda = p.gemm.ldw = s.k, p.gemm.out = TSR_GEMM_BF16;
    p.groups = s.groups, p.expected_rows = s.masked ? s.rows : 0;
    (s.masked ? p.rows_of_group : p.group_of_row) = x.index;
    return p;
}

/* The i-th launch's copy of the weights. */
static const uint8_t *weights(const grouped_shape &s, const arrays &x, int i)
{
    const int64_t bytes = (int64_t)s.groups * s.n * s.k;
    return x.w + i % std::min(kWeights / bytes, kFarFromL2 / bytes + 1) * bytes;
}

static double time_grouped(const grouped_shape &s, const arrays &x, tsr_block_fp8_grouped p, tsr_gemm_config config)
{
    p.gemm.config = config;
    return time_each_us(
        [&](cudaStream_t stream, int i) {
            tsr_err err;
            p.gemm.w = weights(s, x, i);
            CHECK_TSR(tsr_cuda_block_fp8_grouped(&p, stream, &err), err);
        },
        kLaunches);
}

static double time_loop(const grouped_shape &s, const arrays &x, const tsr_block_fp8_grouped &p,
                        const std::vector<int32_t> &rows)
{
    return time_each_us(
        [&](cudaStream_t stream, int i) {
            int64_t first = 0;
            for (size_t g = 0; g < rows.size(); first += room_of(s, rows[g]), ++g) {
                tsr_err err;
                tsr_block_fp8_gemm one = p.gemm;
                one.a += first * s.k, one.scale_a += first, one.d = static_cast<uint16_t *>(one.d) + first * s.n;
                one.w = weights(s, x, i) + (int64_t)g * s.n * s.k;
                one.scale_w += (int64_t)g * (s.n / 128) * (s.k / 128), one.m = rows[g];
                CHECK_TSR(tsr_cuda_block_fp8_gemm(&one, stream, &err), err);
            }
        },
        kLaunches);
}

static void time_tiles(const grouped_shape &s, const arrays &x, const tsr_block_fp8_grouped &p)
{
    for (int rows = 128; rows <= 192; rows += 64) {
        printf("      wide 128 x %d: %.1f\n", rows, time_grouped(s, x, p, {TSR_GEMM_WIDE, 128, rows, 2}));
    }
    for (int tokens = 16; s.masked && tokens <= 64; tokens *= 2) {
        for (int rows = 64; rows <= 128; rows += 64) {
            printf("      %d x %d: %.1f\n", tokens, rows, time_grouped(s, x, p, {TSR_GEMM_TOKENS, tokens, rows, 1}));
        }
    }
}

/* Prints a row; returns how many times as long the loop takes. */
static double time_shape(const grouped_shape &s, const arrays &x, const tsr_cuda_device &device, bool all)
{
    const std::vector<int32_t> rows = rows_of(s);
    const tsr_block_fp8_grouped p = problem_of(s, x, rows);
    const tsr_gemm_config config = tsr_cuda_block_fp8_grouped_choose(&p, &device);
    const double us = time_grouped(s, x, p, config), loop = time_loop(s, x, p, rows);
    double valid = 0, used = 0;
    for (const int32_t count : rows) {
        valid += count;
        used += count > 0;
    }
    const double bytes = used * s.n * s.k + valid * (s.k + 2.0 * s.n);
    printf("%-10s %3d x %5d %5d %5d  %-6s %3d x %3d/%d %8.1f %7.0f %6.0f %9.1f %6.2f\n",
           s.masked ? "masked" : "contiguous", s.groups, s.rows, s.n, s.k,
           config.kind == TSR_GEMM_WIDE ? "wide" : "tokens", config.tokens, config.rows, config.cluster, us,
           2 * valid * s.n * s.k / us * 1e-6, bytes / us * 1e-3, loop, loop / us);
    if (all) {
        time_tiles(s, x, p);
    }
    fflush(stdout);
    return loop / us;
}

int main(int argc, char **argv)
{
    const bool all = argc == 2 && strcmp(argv[1], "--all") == 0;
    if (argc > 1 && !all) {
        fprintf(stderr, "bench_grouped [--all]\n");
        return 2;
    }
    const tsr_cuda_device device = need_hopper();
    const arrays x = make_arrays();
    printf("%s\nlayout  groups x  rows     n     k  kernel                us  TFLOPS   GB/s   loop us  ratio\n",
           device.name);
    double log_sum = 0;
    for (const auto &s : shapes) {
        log_sum += log(time_shape(s, x, device, all));
    }
    const double mean = exp(log_sum / (double)(sizeof shapes / sizeof *shapes));
    printf("geometric mean: %.3f times the loop over the dense kernel (limit 1)\n", mean);
    return mean < 1;
}
