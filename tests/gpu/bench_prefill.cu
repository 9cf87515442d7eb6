/* Owns the timing of MLA prefill on a GPU beside PyTorch's scaled_dot_product_attention, planning left out. One
 * sequence of 128 heads; operations of a causal product count half. CUDA graphs of about 20 ms, median of 22 replays.
 *   bench_prefill [--sdpa FILE]     FILE: what bench_sdpa.py wrote
 *   bench_prefill --shapes          what bench_sdpa.py reads
 * Exit codes: 0; 1 when a shape is slower than the peer; 5 no device. */
#include <math.h>
#include <string.h>

#include "kernels/cuda/mla_prefill.h"
#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/timing.cuh"

static const int64_t kHeads = 128, kTokens[] = {1024, 2048, 4096, 8192, 16384}, kMostTokens = 16384;
static const double kRate = 790e6; /* operations a us: a BF16 product */

struct peer {
    double us; /* 0: not timed */
    char backend[64];
};

static peer sdpa(const char *path, int64_t tokens)
{
    FILE *const f = path ? fopen(path, "r") : NULL;
    peer found = {}, p;
    long long heads, length;
    while (f && fscanf(f, "%lld %lld %lf %63s", &heads, &length, &p.us, p.backend) == 4) {
        if (heads == kHeads && length == tokens) {
            found = p;
        }
    }
    if (f) {
        fclose(f);
    }
    return found;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--shapes") == 0) {
        for (const int64_t tokens : kTokens) {
            printf("%lld %lld\n", (long long)kHeads, (long long)tokens);
        }
        return 0;
    }
    const char *const sdpa_path = argc == 3 && strcmp(argv[1], "--sdpa") == 0 ? argv[2] : NULL;
    if (argc > 1 && !sdpa_path) {
        fprintf(stderr, "bench_prefill [--sdpa FILE] | --shapes\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    const tsr_cuda_device device = need_hopper();
    tsr_mla_prefill a = {};
    const int64_t rows = kMostTokens * kHeads;
    uint16_t *const q = device_array<uint16_t>((size_t)rows * 192), *const kv =
                                                                        device_array<uint16_t>((size_t)rows * 256);
    uint16_t *const k_rope = device_array<uint16_t>((size_t)kMostTokens * 64);
    int32_t *const ends = device_array<int32_t>(2);
    random_units<<<4096, 256>>>(q, rows * 192, 1);
    random_units<<<4096, 256>>>(kv, rows * 256, 2ull << 40);
    random_units<<<1024, 256>>>(k_rope, kMostTokens * 64, 3ull << 40);
    a.q = q, a.kv = kv, a.k_rope = k_rope, a.cu_seqlens_q = ends, a.cu_seqlens_k = ends;
    a.out = device_array<uint16_t>((size_t)rows * 128), a.lse = device_array<float>((size_t)rows);
    a.batch = 1, a.heads = kHeads, a.nope = 128, a.rope = 64, a.value = 128;
    a.scale = 1.0f / sqrtf(192.0f), a.kind = TSR_MLA_FAST;
    a.workspace = device_array<uint8_t>(tsr_cuda_mla_prefill_workspace(&a, &device));

    printf("%s. Floor: operations / 790 TFLOPS.\n", device.name);
    printf("heads tokens         us  TFLOPS    SDPA us  TFLOPS  ratio   floor us  of floor  SDPA's backend\n");
    bool enough = true;
    for (const int64_t tokens : kTokens) {
        const int32_t range[2] = {0, (int32_t)tokens};
        CHECK(cudaMemcpy(ends, range, sizeof range, cudaMemcpyHostToDevice));
        a.tokens_q = a.tokens_k = tokens;
        tsr_err err;
        CHECK_TSR(tsr_cuda_mla_prefill_plan(&a, 0, &err), err);
        const double flops = (double)(kHeads * tokens * tokens) * (192 + 128), floor_us = flops / kRate;
        const int launches = (int)fmax(1, round(20e-3 * 500e12 / flops));
        const double us = time_each_us(
            [&](cudaStream_t stream, int) { CHECK_TSR(tsr_cuda_mla_prefill(&a, stream, &err), err); }, launches);
        const peer p = sdpa(sdpa_path, tokens);
        printf("%5lld %6lld %10.1f %7.0f %10.1f %7.0f %6.2f %10.1f %9.2f  %s\n", (long long)kHeads, (long long)tokens,
               us, flops / us * 1e-6, p.us, p.us > 0 ? flops / p.us * 1e-6 : 0, p.us / us, floor_us, floor_us / us,
               p.us > 0 ? p.backend : "not timed");
        enough = enough && (p.us == 0 || p.us >= us);
    }
    return !enough;
}
