/* bench_interleave: codes into layout T and back by one thread, beside memcpy of the same number of bytes and beside
 * the four passes of a textbook. The matrix is larger than any cache. Exit 1: the widest set is below its floor, or the
 * textbook gives other bytes. The way back to [K, N] has no floor: it writes 64 rows at a time, each line of which must
 * first be read. */
#include "kernels/cpu/cpu.h"
#include "tests/bench/turns.h"

#include <stdio.h>
#include <stdlib.h>

enum { K = 7168, N = 18432 }; /* DeepSeek-V3's dense MLP */

static const double kFloorInt8 = 0.5, kFloorInt4 = 0.4; /* of memcpy */

typedef struct job {
    tsr_cpu_kernels kernels;
    tsr_interleave_args args;
    bool back;
    uint8_t *codes, *out, *scratch[2];
} job;

static void run_kernel(void *arg)
{
    const job *const j = arg;
    if (j->back)
        j->kernels.deinterleave(&j->args, j->out, j->codes);
    else
        j->kernels.interleave(&j->args, j->codes, j->out);
}

/* Signed bytes [K, N] -> rows permuted -> transposed -> tiles of columns interleaved -> biased, ordered inside words.
 */
static void run_textbook(void *arg)
{
    const job *const j = arg;
    const tsr_ft_format *const f = j->args.format;
    const size_t group = (size_t)f->group, turns = (size_t)f->columns, slots = 32 / (size_t)f->bits;
    uint8_t *const a = j->scratch[0], *const b = j->scratch[1];
    size_t rows[32]; /* of the permutation alone: undo the order inside words */
    for (size_t p = 0; p < group; p++) {
        const size_t slot = p % slots;
        rows[p / slots * slots + (slot < slots / 2 ? 2 * slot : 2 * slot - slots + 1)] = f->order[p];
    }
    for (size_t k = 0; k < K; k++)
        memcpy(a + k * N, j->codes + (k / group * group + rows[k % group]) * N, N);
    for (size_t k = 0; k < K; k += 32) {
        for (size_t n = 0; n < N; n += 32) {
            for (size_t i = 0; i < 32; i++) {
                for (size_t l = 0; l < 32; l++)
                    b[(n + l) * K + k + i] = a[(k + i) * N + n + l];
            }
        }
    }
    for (size_t n = 0; n < N; n++) {
        for (size_t k = 0; k < K; k += 64)
            memcpy(a + n / turns * turns * K + k * turns + n % turns * 64, b + n * K + k, 64);
    }
    for (size_t word = 0; word < (size_t)K * N / slots; word++) {
        const uint8_t *const e = a + word * slots;
        uint32_t value = 0;
        for (size_t i = 0; i < slots; i++) {
            const size_t slot = i / 2 + i % 2 * (slots / 2);
            value |= (uint32_t)((e[i] ^ f->bias) & ((1u << f->bits) - 1)) << slot * (size_t)f->bits;
        }
        memcpy(j->out + 4 * word, &value, 4);
    }
}

static double report(const char *set, const char *what, bench_fn *work, job *j, uint8_t *copy)
{
    const size_t weights = (size_t)K * N, out = weights * (size_t)j->args.format->bits / 8;
    const size_t in = j->args.packed ? weights / 2 : weights;
    const bench_result r = bench(work, j, in + out, copy, j->scratch[0]);
    printf("%-12s %-34s %8.2f %12.2f %8.2f\n", set, what, r.gbs, r.memcpy_gbs, r.gbs / r.memcpy_gbs);
    return r.gbs / r.memcpy_gbs;
}

int main(void)
{
    static const unsigned kSets[] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512};
    static const struct {
        const char *what;
        int bits;
        tsr_code_order order;
        bool packed, back;
    } kCases[] = {
        {"int8 [N,K] -> T", 8, TSR_CODES_NK, false, false},
        {"int8 [K,N] -> T", 8, TSR_CODES_KN, false, false},
        {"int4 [N,K] -> T", 4, TSR_CODES_NK, false, false},
        {"int4 [K,N] -> T", 4, TSR_CODES_KN, false, false},
        {"int4 [N,K/2] packed -> T", 4, TSR_CODES_NK, true, false},
        {"int4 [K,N/2] packed -> T", 4, TSR_CODES_KN, true, false},
        {"int8 T -> [N,K]", 8, TSR_CODES_NK, false, true},
        {"int8 T -> [K,N]", 8, TSR_CODES_KN, false, true},
        {"int4 T -> [N,K]", 4, TSR_CODES_NK, false, true},
        {"int4 T -> [K,N]", 4, TSR_CODES_KN, false, true},
        {"int4 T -> [N,K/2] packed", 4, TSR_CODES_NK, true, true},
        {"int4 T -> [K,N/2] packed", 4, TSR_CODES_KN, true, true},
    };
    const size_t weights = (size_t)K * N;
    job j = {.codes = aligned_alloc(4096, weights), .out = aligned_alloc(4096, weights)};
    j.scratch[0] = aligned_alloc(4096, weights);
    j.scratch[1] = aligned_alloc(4096, weights);
    uint8_t *const copy = aligned_alloc(4096, weights);
    if (j.codes == NULL || j.out == NULL || j.scratch[0] == NULL || j.scratch[1] == NULL || copy == NULL)
        return 4;
    memset(j.out, 1, weights);
    memset(j.scratch[0], 1, weights);
    memset(j.scratch[1], 1, weights);
    memset(copy, 1, weights);
    const unsigned have = tsr_cpu_flags();
    int status = 0;
    printf("%-12s %-34s %8s %12s %8s\n", "set", "work", "GB/s", "memcpy GB/s", "ratio");
    for (size_t s = 0; s < sizeof kSets / sizeof *kSets; s++) {
        if ((kSets[s] & have) != kSets[s])
            continue;
        tsr_cpu_kernels_init(&j.kernels, kSets[s]);
        for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
            const tsr_ft_target target = {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = kCases[i].bits};
            tsr_ft_format format;
            if (tsr_ft_format_of(&target, &format, NULL) != TSR_OK)
                return 4;
            const size_t inner = kCases[i].order == TSR_CODES_NK ? K : N;
            j.args = (tsr_interleave_args){
                &format, K, N, kCases[i].order, kCases[i].packed, kCases[i].packed ? inner / 2 : inner};
            j.back = kCases[i].back;
            for (size_t at = 0; at < weights; at++)
                j.codes[at] = (uint8_t)(at * 2654435761u >> 13);
            const double ratio = report(tsr_cpu_name(kSets[s]), kCases[i].what, run_kernel, &j, copy);
            const bool has_floor = !j.back || j.args.order == TSR_CODES_NK;
            if (has_floor && (kSets[s] & TSR_CPU_AVX512) && ratio < (kCases[i].bits == 8 ? kFloorInt8 : kFloorInt4)) {
                fprintf(stderr, "bench_interleave: %s at %.2f of memcpy\n", kCases[i].what, ratio);
                status = 1;
            }
        }
    }
    for (int bits = 8; bits >= 4; bits -= 4) {
        const tsr_ft_target target = {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = bits};
        tsr_ft_format format;
        if (tsr_ft_format_of(&target, &format, NULL) != TSR_OK)
            return 4;
        j.args = (tsr_interleave_args){&format, K, N, TSR_CODES_KN, false, N};
        j.back = false;
        report("textbook", bits == 8 ? "int8 [K,N] -> T, four passes" : "int4 [K,N] -> T, four passes", run_textbook,
               &j, copy);
        memcpy(j.scratch[0], j.out, weights * (size_t)bits / 8);
        run_kernel(&j);
        if (memcmp(j.scratch[0], j.out, weights * (size_t)bits / 8) != 0) {
            fprintf(stderr, "bench_interleave: the textbook's int%d bytes differ\n", bits);
            status = 1;
        }
    }
    return status;
}
