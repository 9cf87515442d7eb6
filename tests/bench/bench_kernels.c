/* bench_kernels encode|decode [TEXT]: measures the kernels that encode and decode weights on one thread, compared
 * with memcpy.
 *
 * Runs each instruction set of this machine. TEXT selects the cases whose names contain it. Encoding and its memcpy
 * write to a buffer that is larger than any cache. Decoding and its memcpy write to the buffer of one unit again and
 * again, as the engine does.
 *
 * Kernel and memcpy alternate in one process. The time is that of the thread, and the best repetition counts. If a
 * floor is missed, more repetitions are measured. Exit code 1: a kernel is below its floor. */
#include "tests/bench/works.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TURNS = 9, MORE = 4, SCALAR_ROWS = 2 * BLOCK };

#define LONG 2.0 /* seconds */

double sink;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Uses sums of a few uniform numbers, which are normal enough. Sums of sines would be slow. */
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

/* Encodes the matrix to block FP8, so that the frequencies of codes are realistic, including subnormal ones. Cases with
 * other kinds of codes use the same bytes. */
static void make_codes(const buffers *b)
{
    tsr_cpu_kernels k;
    uint32_t amax[BLOCKS];
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    for (size_t row = 0; row < ROWS; row += BLOCK) {
        k.quantize_e4m3_bf16(b->bf16 + row * COLS, BLOCK, COLS, COLS, BLOCK, false, amax,
                             b->scales + row / BLOCK * BLOCKS, b->codes + row * COLS, COLS, NULL);
    }
}

/* Copies as many bytes as the work reads and writes: to a separate place, or unit by unit to the same place. */
static void copy(const buffers *b, size_t bytes, bool units)
{
    const size_t unit = units ? (size_t)BLOCK * COLS * sizeof(uint16_t) : bytes;
    for (size_t at = 0; at < bytes; at += unit)
        memcpy(units ? (uint8_t *)b->unit : b->copy, (const char *)b->bf16 + at, unit < bytes - at ? unit : bytes - at);
}

typedef struct seconds {
    double ours, theirs; /* for one weight */
} seconds;

/* Measures alternately until there are enough repetitions, or until a slow kernel has taken long. */
static void take_turns(const work *w, const tsr_cpu_kernels *k, const buffers *b, bool decodes, int turns,
                       seconds *best)
{
    const double weights = (double)(b->rows * COLS), first = now();
    for (int turn = 0; turn < turns && (turn == 0 || now() - first < LONG); turn++) {
        double began = now();
        copy(b, b->rows * COLS * w->quarters / 8, decodes);
        const double theirs = (now() - began) / weights;
        began = now();
        w->run(k, b);
        const double ours = (now() - began) / weights;
        best->theirs = theirs < best->theirs ? theirs : best->theirs;
        best->ours = ours < best->ours ? ours : best->ours;
    }
}

/* Returns whether the floor was reached. */
static bool measure(const work *w, unsigned set, double floor, const buffers *all, bool decodes)
{
    tsr_cpu_kernels k;
    buffers b = *all;
    seconds best = {1e9, 1e9};
    tsr_cpu_kernels_init(&k, set);
    b.rows = set == 0 ? SCALAR_ROWS : ROWS;
    take_turns(w, &k, &b, decodes, set == 0 ? 1 : TURNS, &best);
    for (int more = 0; more < MORE && floor > 0 && best.theirs < floor * best.ours; more++)
        take_turns(w, &k, &b, decodes, TURNS, &best);
    const double moved = w->quarters / 4.0 * 1e-9, ratio = best.theirs / best.ours;
    printf("%-12s %-22s %10.2f %12.2f %10.2f", tsr_cpu_name(set), w->name, moved / best.ours, moved / best.theirs,
           ratio);
    if (floor > 0)
        printf(" %10.2f%s", floor, ratio < floor ? "  MISSED" : "");
    putchar('\n');
    fflush(stdout);
    return ratio >= floor;
}

static int run_all(const work *works, size_t n, const char *text, const buffers *b, bool decodes)
{
    const unsigned have = tsr_cpu_flags();
    bool reached = true;
    printf("%-12s %-22s %10s %12s %10s %10s\n", "set", "work", "GB/s", "memcpy GB/s", "ratio", "floor");
    for (const work *w = works; w < works + n; w++) {
        const struct {
            unsigned set;
            double floor;
        } sets[] = {{0, 0},
                    {TSR_CPU_AVX2, w->floors.avx2},
                    {TSR_CPU_AVX2 | TSR_CPU_AVX512, w->floors.avx512},
                    {TSR_CPU_ALL, w->floors.vbmi}};
        if (text != NULL && strstr(w->name, text) == NULL)
            continue;
        for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
            if ((sets[s].set & have) == sets[s].set)
                reached = measure(w, sets[s].set, sets[s].floor, b, decodes) && reached;
        }
    }
    return reached ? 0 : 1;
}

int main(int argc, char **argv)
{
    const size_t weights = (size_t)ROWS * COLS;
    const buffers b = {
        .bf16 = aligned_alloc(4096, weights * sizeof(uint16_t)),
        .codes = aligned_alloc(4096, weights),
        .scales = calloc(ROWS / BLOCK * BLOCKS, sizeof(float)),
        .unit = aligned_alloc(4096, (size_t)BLOCK * COLS * sizeof(uint16_t)),
        .copy = aligned_alloc(4096, weights * PER_WEIGHT_8 / 8),
        .mx_scales = aligned_alloc(4096, weights / 16),
    };
    const bool decodes = argc > 1 && strcmp(argv[1], "decode") == 0;
    if (argc < 2 || argc > 3 || (!decodes && strcmp(argv[1], "encode") != 0)) {
        fputs("usage: bench_kernels encode|decode [TEXT]\n", stderr);
        return 2;
    }
    if (b.bf16 == NULL || b.codes == NULL || b.scales == NULL || b.unit == NULL || b.copy == NULL ||
        b.mx_scales == NULL)
        return 4;
    fill(b.bf16);
    make_codes(&b);
    memset(b.copy, 1, weights * PER_WEIGHT_8 / 8);
    memset(b.mx_scales, 0x3B, weights / 16); /* a usual scale in E8M0, E4M3, BF16 and F16 */
    const char *const text = argc > 2 ? argv[2] : NULL;
    const int status =
        decodes ? run_all(kDecodes, kDecodeCount, text, &b, true) : run_all(kEncodes, kEncodeCount, text, &b, false);
    free(b.bf16);
    free(b.codes);
    free(b.scales);
    free(b.unit);
    free(b.copy);
    free(b.mx_scales);
    return sink < 0 ? 2 : status;
}
