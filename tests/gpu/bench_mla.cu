/* Owns the timing of MLA decoding on a GPU, planning left out: CUDA graphs (timing.cuh); and events around one call after a
 * rest of 5 ms, median of 30. Peers are timed in a process of their own, on the same day: docs/benchmarks.md.
 *   bench_mla [--json FILE]
 * Exit codes: 0; 5 no device. */
#include <math.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/cuda/mla_decode.h"
#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/timing.cuh"

struct row {
    int64_t batch, s_q, heads, length;
    bool ragged; /* lengths are uniform in 1 to twice the figure */
};

static const row rows[] = {
    {128, 1, 128, 4096, false}, {128, 1, 128, 8192, false}, {64, 1, 128, 16384, false},
    {1, 1, 128, 65536, false},  {132, 1, 16, 8192, false},  {128, 1, 64, 8192, false},
    {128, 2, 128, 4096, false}, {128, 1, 128, 4096, true},  {128, 1, 16, 4096, true},
};

static const double kBandwidth = 4.1e6, kRate = 790e6; /* bytes and operations a us: a device copy, a BF16 product */
static const int64_t kPages = 132 * 128, kMostRows = 128 * 256, kMostBatch = 132;

/* Buffers that all rows read and write. */
struct arrays {
    uint16_t *q, *cache, *out;
    float *lse;
    int32_t *block_table, *seqlens;
};

struct timing {
    double graph_us, call_us, plan_us, flops, bytes;
};

static arrays make_arrays()
{
    arrays x;
    x.q = device_array<uint16_t>((size_t)kMostRows * 576), x.out = device_array<uint16_t>((size_t)kMostRows * 512);
    x.cache = device_array<uint16_t>((size_t)kPages * 64 * 576), x.lse = device_array<float>((size_t)kMostRows);
    x.block_table = device_array<int32_t>((size_t)kPages), x.seqlens = device_array<int32_t>(kMostBatch);
    random_units<<<1024, 256>>>(x.q, kMostRows * 576, 1);
    random_units<<<4096, 256>>>(x.cache, kPages * 64 * 576, 2ull << 40);
    std::vector<int32_t> table((size_t)kPages);
    for (int64_t i = 0; i < kPages; ++i) {
        table[(size_t)i] = (int32_t)i;
        std::swap(table[(size_t)i], table[(size_t)(mix((uint64_t)i) % (uint64_t)(i + 1))]);
    }
    CHECK(cudaMemcpy(x.block_table, table.data(), table.size() * 4, cudaMemcpyHostToDevice));
    return x;
}

/* Puts the row's lengths on the device; returns their sum. */
static int64_t set_lengths(const row &r, const arrays &x)
{
    std::vector<int32_t> lengths;
    int64_t tokens = 0;
    for (int64_t b = 0; b < r.batch; ++b) {
        lengths.push_back((int32_t)(r.ragged ? 1 + mix((uint64_t)b) % (uint64_t)(2 * r.length - 1) : r.length));
        tokens += lengths.back();
    }
    CHECK(cudaMemcpy(x.seqlens, lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
    return tokens;
}

/* Microseconds of planning, the second time. */
static double time_plan(const tsr_mla_decode &a)
{
    cudaEvent_t begin, end;
    tsr_err err;
    float ms = 0;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 2; ++i) {
        CHECK(cudaEventRecord(begin));
        CHECK_TSR(tsr_cuda_mla_plan(&a, 0, &err), err);
        CHECK(cudaEventRecord(end));
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaEventElapsedTime(&ms, begin, end));
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return (double)ms * 1e3;
}

/* Microseconds of one call, alone, on a card that rested before. */
static double time_call(const tsr_mla_decode &a)
{
    enum { kCalls = 30 };
    cudaEvent_t begin, end;
    tsr_err err;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    float ms[kCalls];
    for (int i = 0; i < kCalls; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        CHECK(cudaEventRecord(begin));
        CHECK_TSR(tsr_cuda_mla_decode(&a, 0, &err), err);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms[i], begin, end));
    }
    qsort(ms, kCalls, sizeof *ms, ascending);
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return (ms[kCalls / 2 - 1] + ms[kCalls / 2]) / 2 * 1e3;
}

static timing time_row(const row &r, const arrays &x, const tsr_cuda_device &device)
{
    const int64_t tokens = set_lengths(r, x);
    tsr_mla_decode a = {};
    a.q = x.q, a.cache = x.cache, a.out = x.out, a.lse = x.lse, a.block_table = x.block_table, a.seqlens = x.seqlens;
    a.batch = r.batch, a.s_q = r.s_q, a.heads = r.heads, a.pages = kPages,
    a.max_pages = r.length * (r.ragged ? 2 : 1) / 64;
    a.latent = 512, a.rope = 64, a.page = 64, a.scale = 1.0f / sqrtf(576.0f), a.kind = TSR_MLA_FAST;
    a.workspace = device_array<uint8_t>(tsr_cuda_mla_workspace(&a, &device));
    timing t = {};
    tsr_err err;
    t.plan_us = time_plan(a);
    t.graph_us = time_each_us([&](cudaStream_t stream, int) { CHECK_TSR(tsr_cuda_mla_decode(&a, stream, &err), err); });
    t.call_us = time_call(a);
    t.flops = 2.0 * (double)(r.heads * r.s_q * tokens) * (576 + 512);
    t.bytes = 2.0 * ((double)tokens * 576 + (double)(r.batch * r.s_q * r.heads) * (576 + 512));
    CHECK(cudaFree(a.workspace));
    return t;
}

static void print_row(const row &r, const timing &t, FILE *json)
{
    const double floor_us = fmax(t.bytes / kBandwidth, t.flops / kRate);
    printf("%5lld %3lld %5lld %6lld%s %9.1f %8.1f %7.0f %6.0f %9.1f %9.2f %8.1f\n", (long long)r.batch,
           (long long)r.s_q, (long long)r.heads, (long long)r.length, r.ragged ? "~" : " ", t.graph_us, t.call_us,
           t.flops / t.graph_us * 1e-6, t.bytes / t.graph_us * 1e-3, floor_us, floor_us / t.graph_us, t.plan_us);
    if (json) {
        fprintf(json,
                "%s{\"batch\": %lld, \"s_q\": %lld, \"heads\": %lld, \"length\": %lld, \"ragged\": %s, "
                "\"us\": %.3f, \"call_us\": %.3f, \"floor_us\": %.3f}",
                &r == rows ? "" : ", ", (long long)r.batch, (long long)r.s_q, (long long)r.heads, (long long)r.length,
                r.ragged ? "true" : "false", t.graph_us, t.call_us, floor_us);
    }
}

int main(int argc, char **argv)
{
    const char *const json_path = argc == 3 && strcmp(argv[1], "--json") == 0 ? argv[2] : NULL;
    if (argc > 1 && !json_path) {
        fprintf(stderr, "bench_mla [--json FILE]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    const tsr_cuda_device device = need_hopper();
    FILE *const json = json_path ? fopen(json_path, "w") : NULL;
    if (json_path && !json) {
        perror(json_path);
        return 1;
    }
    const arrays x = make_arrays();
    printf("%s. Floor: the larger of bytes / 4.1 TB/s and operations / 790 TFLOPS.\n", device.name);
    printf("batch s_q heads length   graph us  call us  TFLOPS   GB/s  floor us  of floor  plan us\n");
    if (json) {
        fprintf(json, "{\"device\": \"%s\", \"mla\": [", device.name);
    }
    for (const row &r : rows) {
        print_row(r, time_row(r, x, device), json);
    }
    printf("lengths marked ~ are uniform in 1 to twice the figure\n");
    if (json) {
        fprintf(json, "]}\n");
        fclose(json);
    }
    return 0;
}
