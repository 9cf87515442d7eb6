/* bench_kernels: block FP8 of a BF16 matrix by one thread, beside memcpy of the same number of bytes.
 *
 * A weight costs 3 bytes: 2 read, 1 written; memcpy moves as many with 1.5 read and 1.5 written. Both run over buffers
 * that no cache holds, in the same process, turn by turn; medians of the turns are compared. Exit 1: below the floor.
 */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 8192, COLS = 7168, BLOCK = 128, BLOCKS = COLS / BLOCK, TURNS = 9 };

static const double kFloor = 0.7; /* of memcpy, for amax and codes, with the widest instruction set */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *seconds)
{
    qsort(seconds, TURNS, sizeof *seconds, by_value);
    return seconds[TURNS / 2];
}

/* Sums of sines would be slow: a few uniform numbers added are normal enough. */
static void fill(uint16_t *x)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < (size_t)ROWS * COLS; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        const float sum = (float)((state & 0xFFFF) + (state >> 16 & 0xFFFF) + (state >> 32 & 0xFFFF) + (state >> 48));
        const float value = (sum - 131070.0f) * 5e-7f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        x[i] = (uint16_t)(bits >> 16);
    }
}

static double quantize(const tsr_cpu_kernels *k, const uint16_t *x, uint8_t *codes, int with_error)
{
    double sink = 0;
    const double began = now();
    for (size_t row = 0; row < ROWS; row += BLOCK) {
        uint32_t amax[BLOCKS];
        float scales[BLOCKS];
        k->quantize_e4m3_bf16(x + row * COLS, BLOCK, COLS, COLS, BLOCK, false, amax, scales, codes + row * COLS, COLS);
        for (size_t i = 0; with_error && i < BLOCKS; i++) {
            tsr_block_error error;
            const size_t at = row * COLS + i * BLOCK;
            k->error_e4m3_bf16(x + at, BLOCK, BLOCK, COLS, codes + at, COLS, scales[i], &error);
            sink += error.sum_e2;
        }
    }
    const double seconds = now() - began;
    return sink < 0 ? 0 : seconds; /* keeps the sums alive */
}

int main(void)
{
    const size_t weights = (size_t)ROWS * COLS, moved = 3 * weights;
    uint16_t *const x = aligned_alloc(4096, weights * sizeof *x);
    uint8_t *const codes = aligned_alloc(4096, weights), *const copy = aligned_alloc(4096, moved / 2);
    if (x == NULL || codes == NULL || copy == NULL)
        return 4;
    fill(x);
    memset(codes, 1, weights);
    memset(copy, 1, moved / 2);
    static const unsigned kSets[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    const unsigned have = tsr_cpu_flags();
    double ratio = 0;
    printf("%-12s %-22s %10s %12s %10s\n", "set", "work", "GB/s", "memcpy GB/s", "ratio");
    for (size_t s = 0; s < sizeof kSets / sizeof *kSets; s++) {
        if ((kSets[s] & have) != kSets[s])
            continue;
        tsr_cpu_kernels k;
        tsr_cpu_kernels_init(&k, kSets[s]);
        for (int with_error = 0; with_error < 2; with_error++) {
            double ours[TURNS], theirs[TURNS];
            const int turns = kSets[s] == 0 ? 1 : TURNS;
            for (int turn = 0; turn < TURNS; turn++) {
                const double began = now();
                memcpy(copy, x, moved / 2);
                theirs[turn] = now() - began;
                ours[turn] = turn < turns ? quantize(&k, x, codes, with_error) : ours[0];
            }
            const double speed = (double)moved / median(ours) * 1e-9, peer = (double)moved / median(theirs) * 1e-9;
            printf("%-12s %-22s %10.2f %12.2f %10.2f\n", tsr_cpu_name(kSets[s]),
                   with_error ? "amax + codes + error" : "amax + codes", speed, peer, speed / peer);
            if (!with_error)
                ratio = speed / peer;
        }
    }
    free(x);
    free(codes);
    free(copy);
    if ((have & TSR_CPU_AVX512) != 0 && ratio < kFloor) {
        fprintf(stderr, "bench_kernels: amax + codes at %.2f of memcpy, below %.2f\n", ratio, kFloor);
        return 1;
    }
    return 0;
}
