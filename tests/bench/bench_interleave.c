/* Measures conversion to and from layout T on one thread, compared with memcpy and with four separate passes.
 *
 * There are two settings: a matrix that is larger than any cache, and units of at most 4 MiB that are written into
 * one buffer, as the engine does. Exit code 1: the widest instruction set is below its floor, or the four passes give
 * other bytes. Conversion back to [K, N] has no floor, because each line that it writes must be read first. */
#include "kernels/cpu/cpu.h"
#include "tests/bench/turns.h"

#include <stdio.h>
#include <stdlib.h>

enum { K = 7168, N = 18432 }; /* DeepSeek-V3's dense MLP */
enum { UNIT = 4 << 20 };      /* bytes that the engine writes at once, at most */

static const double kFloorInt8 = 0.5, kFloorInt4 = 0.4; /* fractions of the speed of memcpy */

typedef struct job {
    tsr_cpu_kernels kernels;
    tsr_interleave_args args;
    bool back;
    size_t band; /* columns converted at once; if less than N, into the same buffer */
    uint8_t *codes, *out, *scratch[2];
} job;

static void run_kernel(void *arg)
{
    const job *const j = arg;
    const size_t column = K * (size_t)j->args.format->bits / 8, per_byte = j->args.packed ? 2 : 1;
    for (size_t n = 0; n < N; n += j->band) {
        tsr_interleave_args args = j->args;
        args.n = n + j->band < N ? j->band : N - n;
        const size_t codes = j->args.order == TSR_CODES_NK ? n * j->args.ld : n / per_byte;
        if (j->back) {
            args.ld = args.order == TSR_CODES_NK ? args.ld : args.n / per_byte;
            j->kernels.deinterleave(&args, j->out + n * column, j->codes);
        } else {
            j->kernels.interleave(&args, j->codes + codes, j->out);
        }
    }
}

/* Signed bytes [K, N] -> rows permuted -> transposed -> tiles of columns interleaved -> biased, ordered inside words.
 */
static void run_textbook(void *arg)
{
    const job *const j = arg;
    const tsr_ft_format *const f = j->args.format;
    const size_t group = (size_t)f->group, turns = (size_t)f->columns, slots = 32 / (size_t)f->bits;
    uint8_t *const a = j->scratch[0], *const b = j->scratch[1];
    size_t rows[32]; /* the permutation, without the order inside words */
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
    const size_t column_out = K * (size_t)j->args.format->bits / 8, column_in = j->args.packed ? K / 2 : K;
    const size_t column = column_in + column_out;
    const bench_result r = bench(work, j, N * column, j->band * column / 2, copy, (const char *)j->scratch[0]);
    printf("%-12s %-34s %-8s %8.2f %12.2f %8.2f\n", set, what, j->band == N ? "whole" : "units", r.gbs, r.memcpy_gbs,
           r.gbs / r.memcpy_gbs);
    return r.gbs / r.memcpy_gbs;
}

static tsr_ft_format format_of(int bits)
{
    const tsr_ft_target target = {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = bits};
    tsr_ft_format format;
    if (tsr_ft_format_of(&target, &format, NULL) != TSR_OK)
        abort();
    return format;
}

/* The columns of a unit. */
static size_t band_of(const tsr_ft_format *format)
{
    const size_t multiple = (size_t)format->n_multiple, fit = UNIT / (K * (size_t)format->bits / 8);
    return fit / multiple * multiple;
}

static const struct work {
    const char *what;
    int bits;
    tsr_code_order order;
    bool packed, back;
} kWorks[] = {
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

/* Returns true if the widest set keeps to its floors. */
static bool bench_set(unsigned set, job *j, uint8_t *copy)
{
    bool ok = true;
    tsr_cpu_kernels_init(&j->kernels, set);
    for (size_t i = 0; i < 2 * sizeof kWorks / sizeof *kWorks; i++) {
        const struct work *const w = &kWorks[i / 2];
        const tsr_ft_format format = format_of(w->bits);
        const size_t inner = w->order == TSR_CODES_NK ? K : N;
        j->args = (tsr_interleave_args){&format, K, N, w->order, w->packed, w->packed ? inner / 2 : inner};
        j->back = w->back;
        j->band = i % 2 == 0 ? N : band_of(&format);
        const double ratio = report(tsr_cpu_name(set), w->what, run_kernel, j, copy);
        const bool has_floor = (set & TSR_CPU_AVX512) != 0 && (!w->back || w->order == TSR_CODES_NK);
        if (has_floor && ratio < (w->bits == 8 ? kFloorInt8 : kFloorInt4)) {
            fprintf(stderr, "bench_interleave: %s at %.2f of memcpy\n", w->what, ratio);
            ok = false;
        }
    }
    return ok;
}

/* Returns true if its bytes are the kernel's. */
static bool bench_textbook(int bits, job *j, uint8_t *copy)
{
    const tsr_ft_format format = format_of(bits);
    const size_t bytes = (size_t)K * N * (size_t)bits / 8;
    j->args = (tsr_interleave_args){&format, K, N, TSR_CODES_KN, false, N};
    j->back = false;
    j->band = N;
    report("textbook", bits == 8 ? "int8 [K,N] -> T, four passes" : "int4 [K,N] -> T, four passes", run_textbook, j,
           copy);
    memcpy(j->scratch[0], j->out, bytes);
    memset(j->out, 0, bytes);
    run_kernel(j);
    return memcmp(j->scratch[0], j->out, bytes) == 0;
}

static uint8_t *matrix(void)
{
    uint8_t *const m = aligned_alloc(4096, (size_t)K * N);
    if (m == NULL)
        abort();
    memset(m, 1, (size_t)K * N);
    return m;
}

int main(void)
{
    static const unsigned kSets[] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512};
    const unsigned have = tsr_cpu_flags();
    job j = {.codes = matrix(), .out = matrix(), .scratch = {matrix(), matrix()}};
    uint8_t *const copy = matrix();
    int status = 0;
    for (size_t i = 0; i < (size_t)K * N; i++)
        j.codes[i] = (uint8_t)(i * 2654435761u >> 13);
    printf("%-12s %-34s %-8s %8s %12s %8s\n", "set", "work", "setting", "GB/s", "memcpy GB/s", "ratio");
    for (size_t s = 0; s < sizeof kSets / sizeof *kSets; s++) {
        if ((kSets[s] & have) == kSets[s] && !bench_set(kSets[s], &j, copy))
            status = 1;
    }
    for (int bits = 8; bits >= 4; bits -= 4) {
        if (!bench_textbook(bits, &j, copy)) {
            fprintf(stderr, "bench_interleave: the textbook's int%d bytes differ\n", bits);
            status = 1;
        }
    }
    free(j.codes);
    free(j.out);
    free(j.scratch[0]);
    free(j.scratch[1]);
    free(copy);
    return status;
}
