/* bench_kernels [TEXT]: block FP8 of a BF16 matrix, and back, int8 and int4, MXFP4, MXFP8 and NVFP4, by one thread,
 * beside memcpy of the same number of bytes; with TEXT only the work whose name contains it.
 *
 * A weight costs 3 bytes: 2 read and 1 written, or the other way round; memcpy moves as many with 1.5 read and 1.5
 * written. Quantizing and its memcpy write into a buffer that no cache holds; decoding and its memcpy into the buffer
 * of one unit, over and over, as the engine has it (what decoding writes is twice what it reads, and memcpy would go
 * past the cache where decoding should not). Same process, turn by turn; medians of the turns are compared. Exit 1:
 * below the floor.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 8192, COLS = 7168, BLOCK = 128, BLOCKS = COLS / BLOCK, MOVED = 3 * ROWS * COLS, TURNS = 9 };

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

typedef struct buffers {
    uint16_t *bf16;
    uint8_t *codes;
    float *scales;      /* [ROWS / BLOCK][BLOCKS] */
    uint16_t *unit;     /* [BLOCK][COLS] */
    uint8_t *mx_scales; /* [ROWS][COLS / 16] */
    uint8_t *copy;
} buffers;

static double sink; /* keeps the sums alive */

static void quantize(const tsr_cpu_kernels *k, const buffers *b)
{
    uint32_t amax[BLOCKS];
    for (size_t row = 0; row < ROWS; row += BLOCK)
        k->quantize_e4m3_bf16(b->bf16 + row * COLS, BLOCK, COLS, COLS, BLOCK, false, amax,
                              b->scales + row / BLOCK * BLOCKS, b->codes + row * COLS, COLS);
}

static void quantize_and_measure(const tsr_cpu_kernels *k, const buffers *b)
{
    uint32_t amax[BLOCKS];
    for (size_t row = 0; row < ROWS; row += BLOCK) {
        float *const scales = b->scales + row / BLOCK * BLOCKS;
        k->quantize_e4m3_bf16(b->bf16 + row * COLS, BLOCK, COLS, COLS, BLOCK, false, amax, scales,
                              b->codes + row * COLS, COLS);
        for (size_t i = 0; i < BLOCKS; i++) {
            tsr_block_error error;
            const size_t at = row * COLS + i * BLOCK;
            k->error_e4m3_bf16(b->bf16 + at, BLOCK, BLOCK, COLS, b->codes + at, COLS, scales[i], &error);
            sink += error.sum_e2;
        }
    }
}

static void decode(const tsr_cpu_kernels *k, const buffers *b)
{
    for (size_t row = 0; row < ROWS; row += BLOCK) {
        sink += k->decode_e4m3_bf16(b->codes + row * COLS, BLOCK, COLS, COLS, BLOCK, b->scales + row / BLOCK * BLOCKS,
                                    b->unit, COLS);
    }
}

/* Scales and zero points of a row, and what they are made of. */
typedef struct groups {
    float scale[COLS], zero[COLS], low[COLS], high[COLS];
    uint32_t amax[COLS];
} groups;

static void choose_symmetric(groups *g, size_t n, float divisor)
{
    for (size_t i = 0; i < n; i++) {
        float amax;
        memcpy(&amax, &g->amax[i], sizeof amax);
        g->scale[i] = amax == 0 ? 1 : amax / divisor;
    }
}

static void choose_asymmetric(groups *g, size_t n, float lowest, float highest)
{
    for (size_t i = 0; i < n; i++) {
        const float low = g->low[i], high = g->high[i], amax = -low > high ? -low : high;
        g->scale[i] = amax == 0 ? 1 : (high - low) / (highest - lowest);
        const float zero = lowest - low / g->scale[i];
        g->zero[i] = (float)lrintf(zero < lowest ? lowest : zero > highest ? highest : zero);
        memcpy(&g->amax[i], &amax, sizeof amax);
    }
}

/* As quantize/int_weight.c has it: ranges of a row, its scales, its codes; int4 packed. */
static void integers(const tsr_cpu_kernels *k, const buffers *b, size_t group, bool int4, bool zeros, bool error)
{
    static groups g;
    static _Alignas(64) int8_t packed_later[COLS];
    const size_t n = COLS / group;
    const tsr_int_row row = {g.scale, zeros ? g.zero : NULL, g.amax, int4 ? -8 : -128, int4 ? 7 : 127, false, false};
    for (size_t r = 0; r < ROWS; r++) {
        const uint16_t *const x = b->bf16 + r * COLS;
        int8_t *const codes = int4 ? packed_later : (int8_t *)b->codes + r * COLS;
        if (zeros) {
            k->range_groups_bf16(x, COLS, group, g.low, g.high);
            choose_asymmetric(&g, n, row.low, row.high);
        } else {
            k->amax_groups_bf16(x, COLS, group, g.amax);
            choose_symmetric(&g, n, row.high + 0.5f);
        }
        k->encode_int_bf16(x, COLS, group, &row, codes);
        for (size_t i = 0; error && i < n; i++) {
            const tsr_int_code code = {g.scale[i], zeros ? g.zero[i] : 0, row.low, row.high};
            tsr_int_error e;
            k->error_int_bf16(x + i * group, group, &code, codes + i * group, &e);
            sink += e.sum_e2;
        }
        if (int4)
            k->pack_int4(codes, COLS, b->codes + r * COLS / 2);
    }
}

static void int8(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, COLS, false, false, false);
}

static void int8_and_measure(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, COLS, false, false, true);
}

static void int4_rows(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, COLS, true, false, false);
}

static void int4_128(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, 128, true, false, false);
}

static void int4_64(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, 64, true, false, false);
}

static void int4_32(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, 32, true, false, false);
}

static void int4_zeros(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, 128, true, true, false);
}

static void int4_and_measure(const tsr_cpu_kernels *k, const buffers *b)
{
    integers(k, b, 128, true, false, true);
}

/* ---- MXFP4, MXFP8, NVFP4: as quantize/mx_weight.c and mx_decode.c have it, row by row ---- */

typedef struct mx_row {
    uint32_t amax[COLS / 16];
    float t[COLS / 16], q2[COLS / 16], e2[COLS / 16], qv[COLS / 16];
} mx_row;

static tsr_mx_error sums_in(mx_row *m)
{
    return (tsr_mx_error){.q2 = m->q2, .e2 = m->e2, .qv = m->qv};
}

static void encode_e2m1(const tsr_cpu_kernels *k, const buffers *b, size_t group, bool error)
{
    static mx_row m;
    static const tsr_nvfp4_recipe kRecipe = {.global = 12800, .bf16_quotient = true};
    const size_t n = COLS / group;
    tsr_mx_error e = sums_in(&m);
    for (size_t r = 0; r < ROWS; r++) {
        const uint16_t *const x = b->bf16 + r * COLS;
        uint8_t *const codes = b->codes + r * (COLS / 2), *const scales = b->mx_scales + r * n;
        k->amax_groups_bf16(x, COLS, group, m.amax);
        if (group == 16)
            k->scale_nvfp4(m.amax, n, &kRecipe, scales, m.t);
        else
            k->scale_e8m0(m.amax, n, 0x5FFFFF, 2, scales, m.t);
        k->encode_e2m1_bf16(x, COLS, group, m.t, group == 16 ? TSR_E2M1_EVEN : TSR_E2M1_EVEN_BF16, codes);
        if (error)
            k->error_e2m1_bf16(x, COLS, group, m.t, codes, &e);
        sink += (double)m.e2[0];
    }
}

static void mxfp4(const tsr_cpu_kernels *k, const buffers *b)
{
    encode_e2m1(k, b, 32, false);
}

static void mxfp4_and_measure(const tsr_cpu_kernels *k, const buffers *b)
{
    encode_e2m1(k, b, 32, true);
}

static void nvfp4(const tsr_cpu_kernels *k, const buffers *b)
{
    encode_e2m1(k, b, 16, false);
}

static void nvfp4_and_measure(const tsr_cpu_kernels *k, const buffers *b)
{
    encode_e2m1(k, b, 16, true);
}

static void encode_mxfp8(const tsr_cpu_kernels *k, const buffers *b, bool error)
{
    static mx_row m;
    tsr_mx_error e = sums_in(&m);
    for (size_t r = 0; r < ROWS; r++) {
        const uint16_t *const x = b->bf16 + r * COLS;
        uint8_t *const scales = b->mx_scales + r * (COLS / 32);
        k->amax_groups_bf16(x, COLS, 32, m.amax);
        k->scale_e8m0(m.amax, COLS / 32, 0x5FFFFF, 8, scales, m.t);
        k->encode_mxfp8_bf16(x, COLS, scales, b->codes + r * COLS);
        if (error)
            k->error_mxfp8_bf16(x, COLS, m.t, b->codes + r * COLS, &e);
        sink += (double)m.e2[0];
    }
}

static void mxfp8(const tsr_cpu_kernels *k, const buffers *b)
{
    encode_mxfp8(k, b, false);
}

static void mxfp8_and_measure(const tsr_cpu_kernels *k, const buffers *b)
{
    encode_mxfp8(k, b, true);
}

static void decode_e2m1(const tsr_cpu_kernels *k, const buffers *b, size_t group)
{
    static mx_row m;
    for (size_t i = 0; i < COLS / group; i++)
        m.t[i] = ldexpf(1 + (float)(group == 16 ? i % 8 : 0) / 8, -(int)(i % 7) - 5);
    for (size_t r = 0; r < ROWS; r++)
        k->decode_e2m1_bf16(b->codes + r * (COLS / 2), COLS, group, m.t, b->unit + r % BLOCK * COLS);
}

static void mxfp4_decode(const tsr_cpu_kernels *k, const buffers *b)
{
    decode_e2m1(k, b, 32);
}

static void nvfp4_decode(const tsr_cpu_kernels *k, const buffers *b)
{
    decode_e2m1(k, b, 16);
}

static void mxfp8_decode(const tsr_cpu_kernels *k, const buffers *b)
{
    for (size_t r = 0; r < ROWS; r++)
        sink +=
            k->decode_mxfp8_bf16(b->codes + r * COLS, COLS, b->mx_scales + r * (COLS / 32), b->unit + r % BLOCK * COLS);
}

/* 1.5 bytes a weight, to a place of its own for each, */
static void copy_all(const buffers *b)
{
    memcpy(b->copy, b->bf16, MOVED / 2);
}

/* 1.25 bytes, what int4 moves, */
static void copy_packed(const buffers *b)
{
    memcpy(b->copy, b->bf16, MOVED / 12 * 5);
}

/* 1.25 and 1.5 to the buffer of one unit. */
static void copy_packed_units(const buffers *b)
{
    const size_t unit = (size_t)BLOCK * COLS * 5 / 4;
    for (size_t at = 0; at + unit <= MOVED / 12 * 5; at += unit)
        memcpy(b->unit, (const char *)b->bf16 + at, unit);
}

static void copy_units(const buffers *b)
{
    const size_t unit = (size_t)BLOCK * COLS * 3 / 2;
    for (size_t at = 0; at + unit <= MOVED / 2; at += unit)
        memcpy(b->unit, (const char *)b->bf16 + at, unit);
}

/* Each moves 3 bytes a weight, 4 bits 2.5. The floor is a ratio to memcpy, with the widest instruction set; 0: none. */
static const struct work {
    const char *name;
    void (*run)(const tsr_cpu_kernels *k, const buffers *b);
    void (*peer)(const buffers *b);
    double floor, share; /* of MOVED */
} kWorks[] = {
    {"amax + codes", quantize, copy_all, 0.7, 1},
    {"amax + codes + error", quantize_and_measure, copy_all, 0, 1},
    {"codes to BF16", decode, copy_units, 0.7, 1},
    {"int8 rows", int8, copy_all, 0.6, 1},
    {"int8 rows + error", int8_and_measure, copy_all, 0, 1},
    {"int4 rows, packed", int4_rows, copy_packed, 0.6, 2.5 / 3},
    {"int4 groups of 128", int4_128, copy_packed, 0.6, 2.5 / 3},
    {"int4 groups of 64", int4_64, copy_packed, 0.6, 2.5 / 3},
    {"int4 groups of 32", int4_32, copy_packed, 0.4, 2.5 / 3},
    {"int4 128, zero points", int4_zeros, copy_packed, 0.5, 2.5 / 3},
    {"int4 128 + error", int4_and_measure, copy_packed, 0, 2.5 / 3},
    {"MXFP4", mxfp4, copy_packed, 0.5, 2.5 / 3},
    {"MXFP4 + error", mxfp4_and_measure, copy_packed, 0.3, 2.5 / 3},
    {"NVFP4", nvfp4, copy_packed, 0.5, 2.5 / 3},
    {"NVFP4 + error", nvfp4_and_measure, copy_packed, 0.25, 2.5 / 3},
    {"MXFP8", mxfp8, copy_all, 0.5, 1},
    {"MXFP8 + error", mxfp8_and_measure, copy_all, 0.25, 1},
    {"MXFP4 to BF16", mxfp4_decode, copy_packed_units, 0.8, 2.5 / 3},
    {"NVFP4 to BF16", nvfp4_decode, copy_packed_units, 0.8, 2.5 / 3},
    {"MXFP8 to BF16", mxfp8_decode, copy_units, 0.8, 1},
};

/* The ratio to memcpy. */
static double measure(const struct work *work, unsigned set, const buffers *b)
{
    const int turns = set == 0 ? 1 : TURNS; /* scalar code takes its time */
    double ours[TURNS], theirs[TURNS];
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, set);
    for (int turn = 0; turn < TURNS; turn++) {
        double began = now();
        work->peer(b);
        theirs[turn] = now() - began;
        began = now();
        if (turn < turns)
            work->run(&k, b);
        ours[turn] = turn < turns ? now() - began : ours[0];
    }
    const double moved = (double)MOVED * work->share * 1e-9;
    const double speed = moved / median(ours), peer = moved / median(theirs);
    printf("%-12s %-22s %10.2f %12.2f %10.2f\n", tsr_cpu_name(set), work->name, speed, peer, speed / peer);
    return speed / peer;
}

int main(int argc, char **argv)
{
    const size_t weights = (size_t)ROWS * COLS;
    const buffers b = {
        .bf16 = aligned_alloc(4096, weights * sizeof(uint16_t)),
        .codes = aligned_alloc(4096, weights),
        .scales = calloc(ROWS / BLOCK * BLOCKS, sizeof(float)),
        .unit = aligned_alloc(4096, (size_t)BLOCK * COLS * sizeof(uint16_t)),
        .copy = aligned_alloc(4096, MOVED / 2),
        .mx_scales = aligned_alloc(4096, weights / 16),
    };
    if (b.bf16 == NULL || b.codes == NULL || b.scales == NULL || b.unit == NULL || b.copy == NULL ||
        b.mx_scales == NULL)
        return 4;
    fill(b.bf16);
    memset(b.codes, 1, weights);
    memset(b.copy, 1, MOVED / 2);
    memset(b.mx_scales, 120, weights / 16);
    static const unsigned kSets[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    const unsigned have = tsr_cpu_flags();
    int status = 0;
    printf("%-12s %-22s %10s %12s %10s\n", "set", "work", "GB/s", "memcpy GB/s", "ratio");
    for (size_t w = 0; w < sizeof kWorks / sizeof *kWorks; w++) {
        double ratio = 0;
        if (argc > 1 && strstr(kWorks[w].name, argv[1]) == NULL)
            continue;
        for (size_t s = 0; s < sizeof kSets / sizeof *kSets; s++) {
            if ((kSets[s] & have) == kSets[s])
                ratio = measure(&kWorks[w], kSets[s], &b);
        }
        if ((have & TSR_CPU_VBMI) != 0 && ratio < kWorks[w].floor) {
            fprintf(stderr, "bench_kernels: %s at %.2f of memcpy, below %.2f\n", kWorks[w].name, ratio,
                    kWorks[w].floor);
            status = 1;
        }
    }
    free(b.bf16);
    free(b.codes);
    free(b.scales);
    free(b.unit);
    free(b.copy);
    free(b.mx_scales);
    return sink < 0 ? 2 : status;
}
