/* Owns the timing of MLA decoding on a GPU against recorded figures of FlashMLA, planning left out on both sides.
 * CUDA graphs (timing.cuh); and events around one call after a rest of 5 ms, median of 30.
 *   bench_mla [--json FILE]
 * Exit codes: 0; 1 when a shape is below 0.7 of the peer by the graph's figure; 5 no device. */
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
    bool ragged;
    double peer_us; /* FlashMLA, 2026-11-20, this kind of card, one call by events; 0: not taken */
};

static const row rows[] = {
    {128, 1, 128, 4096, false, 259.6}, {128, 1, 128, 8192, false, 488.3}, {64, 1, 128, 16384, false, 491.1},
    {1, 1, 128, 65536, false, 79.6},   {132, 1, 16, 8192, false, 307.9},  {128, 1, 64, 8192, false, 306.2},
    {128, 2, 128, 4096, false, 463.7}, {128, 1, 128, 4096, true, 0},      {128, 1, 16, 4096, true, 0},
};

static const double kBandwidth = 4.1e6, kRate = 790e6; /* bytes and operations a us: a device copy, a BF16 product */

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
    const int64_t pages = 132 * 128, most_rows = 128 * 256;
    uint16_t *const q = device_array<uint16_t>((size_t)most_rows * 576), *const out = device_array<uint16_t>(
                                                                             (size_t)most_rows * 512);
    uint16_t *const cache = device_array<uint16_t>((size_t)pages * 64 * 576);
    float *const lse = device_array<float>((size_t)most_rows);
    random_units<<<1024, 256>>>(q, most_rows * 576, 1);
    random_units<<<4096, 256>>>(cache, pages * 64 * 576, 2ull << 40);
    std::vector<int32_t> table((size_t)pages);
    for (int64_t i = 0; i < pages; ++i) {
        table[(size_t)i] = (int32_t)i;
        std::swap(table[(size_t)i], table[(size_t)(mix((uint64_t)i) % (uint64_t)(i + 1))]);
    }
    int32_t *const block_table = device_array<int32_t>((size_t)pages), *const seqlens = device_array<int32_t>(132);
    CHECK(cudaMemcpy(block_table, table.data(), table.size() * 4, cudaMemcpyHostToDevice));

    printf("%s. Floor: the larger of bytes / 4.1 TB/s and operations / 790 TFLOPS.\n", device.name);
    printf("batch s_q heads length   graph us  call us  TFLOPS   GB/s  FlashMLA us  ratio graph, call  floor us  of "
           "floor  plan us\n");
    if (json) {
        fprintf(json, "{\"device\": \"%s\", \"mla\": [", device.name);
    }
    bool enough = true;
    for (const row &r : rows) {
        std::vector<int32_t> lengths;
        int64_t tokens = 0;
        for (int64_t b = 0; b < r.batch; ++b) {
            lengths.push_back((int32_t)(r.ragged ? 1 + mix((uint64_t)b) % (uint64_t)(2 * r.length - 1) : r.length));
            tokens += lengths.back();
        }
        CHECK(cudaMemcpy(seqlens, lengths.data(), lengths.size() * 4, cudaMemcpyHostToDevice));
        tsr_mla_decode a = {};
        a.q = q, a.cache = cache, a.out = out, a.lse = lse, a.block_table = block_table, a.seqlens = seqlens;
        a.batch = r.batch, a.s_q = r.s_q, a.heads = r.heads, a.pages = pages,
        a.max_pages = r.length * (r.ragged ? 2 : 1) / 64;
        a.latent = 512, a.rope = 64, a.page = 64, a.scale = 1.0f / sqrtf(576.0f), a.kind = TSR_MLA_FAST;
        a.workspace = device_array<uint8_t>(tsr_cuda_mla_workspace(&a, &device));
        tsr_err err;
        cudaEvent_t begin, end;
        float plan_ms = 0;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        for (int i = 0; i < 2; ++i) {
            CHECK(cudaEventRecord(begin));
            CHECK_TSR(tsr_cuda_mla_plan(&a, 0, &err), err);
            CHECK(cudaEventRecord(end));
            CHECK(cudaDeviceSynchronize());
            CHECK(cudaEventElapsedTime(&plan_ms, begin, end));
        }
        const double us =
            time_each_us([&](cudaStream_t stream, int) { CHECK_TSR(tsr_cuda_mla_decode(&a, stream, &err), err); });
        const double single = time_call(a);
        const double flops = 2.0 * (double)(r.heads * r.s_q * tokens) * (576 + 512);
        const double bytes = 2.0 * ((double)tokens * 576 + (double)(r.batch * r.s_q * r.heads) * (576 + 512));
        const double floor_us = fmax(bytes / kBandwidth, flops / kRate);
        printf("%5lld %3lld %5lld %6lld%s %9.1f %8.1f %7.0f %6.0f %12.1f %6.2f %6.2f %14.1f %9.2f %8.1f\n",
               (long long)r.batch, (long long)r.s_q, (long long)r.heads, (long long)r.length, r.ragged ? "~" : " ", us,
               single, flops / us * 1e-6, bytes / us * 1e-3, r.peer_us, r.peer_us / us, r.peer_us / single, floor_us,
               floor_us / us, (double)plan_ms * 1e3);
        if (json) {
            fprintf(
                json,
                "%s{\"batch\": %lld, \"s_q\": %lld, \"heads\": %lld, \"length\": %lld, \"ragged\": %s, \"us\": %.3f, "
                "\"call_us\": %.3f, \"peer_us\": %.1f, \"floor_us\": %.3f}",
                &r == rows ? "" : ", ", (long long)r.batch, (long long)r.s_q, (long long)r.heads, (long long)r.length,
                r.ragged ? "true" : "false", us, single, r.peer_us, floor_us);
        }
        enough = enough && (r.peer_us == 0 || r.peer_us / us >= 0.7);
        CHECK(cudaEventDestroy(begin));
        CHECK(cudaEventDestroy(end));
        CHECK(cudaFree(a.workspace));
    }
    printf("lengths marked ~ are uniform in 1 to twice the figure\n");
    if (json) {
        fprintf(json, "]}\n");
        fclose(json);
    }
    return !enough;
}
