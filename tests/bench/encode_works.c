/* Cases of bench_kernels that encode BF16 with the kernels, by rows or bands of blocks as quantize/ calls them. */
#include "tests/bench/works.h"

#include <math.h>
#include <string.h>

static void quantize_blocks(const tsr_cpu_kernels *k, const buffers *b, tsr_block_error *errors)
{
    uint32_t amax[BLOCKS];
    for (size_t row = 0; row < b->rows; row += BLOCK) {
        k->quantize_e4m3_bf16(b->bf16 + row * COLS, BLOCK, COLS, COLS, BLOCK, false, amax,
                              b->scales + row / BLOCK * BLOCKS, b->codes + row * COLS, COLS, errors);
        sink += errors != NULL ? errors->sum_e2 : 0;
    }
}

static void quantize(const tsr_cpu_kernels *k, const buffers *b)
{
    quantize_blocks(k, b, NULL);
}

static void quantize_and_measure(const tsr_cpu_kernels *k, const buffers *b)
{
    tsr_block_error errors[BLOCKS];
    quantize_blocks(k, b, errors);
}

/* Scales and zero points of a row, and their inputs. */
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

/* Quantizes as quantize/int_weight.c does: ranges of a row, its scales, its codes; int4 is packed. */
static void integers(const tsr_cpu_kernels *k, const buffers *b, size_t group, bool int4, bool zeros, bool error)
{
    static groups g;
    static tsr_int_error errors[COLS / 32];
    static _Alignas(64) int8_t packed_later[COLS];
    const size_t n = COLS / group;
    const tsr_int_row row = {g.scale, zeros ? g.zero : NULL, g.amax, int4 ? -8 : -128, int4 ? 7 : 127, false, false};
    for (size_t r = 0; r < b->rows; r++) {
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
        if (error) {
            k->error_int_bf16(x, COLS, group, &row, codes, errors);
            sink += errors[0].sum_e2;
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

/* ---- MXFP4, MXFP8, NVFP4: as quantize/mx_weight.c has it, row by row ---- */

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
    for (size_t r = 0; r < b->rows; r++) {
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

/* Searches scales as quantize/mx_weight.c does for --scales best. */
static void best_e2m1(const tsr_cpu_kernels *k, const buffers *b, size_t group)
{
    static mx_row m;
    static float x[COLS], t[256];
    static uint8_t bytes[256];
    const size_t n = COLS / group;
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    if (group == 16)
        k->values_e4m3(bytes, 256, 12800, true, t);
    else
        k->values_e8m0(bytes, 256, t);
    const tsr_best_groups all = {
        .group = group, .e8m0 = group == 32, .t = t, .least = group == 16, .most = group == 16 ? 126 : 251};
    for (size_t r = 0; r < b->rows; r++) {
        uint8_t *const scales = b->mx_scales + r * n;
        k->amax_groups_bf16(b->bf16 + r * COLS, COLS, group, m.amax);
        if (group == 16)
            k->scale_nvfp4(m.amax, n, &(tsr_nvfp4_recipe){.global = 12800, .bf16_quotient = true}, scales, m.t);
        else
            k->scale_e8m0(m.amax, n, 0x5FFFFF, 2, scales, m.t);
        k->widen_bf16(b->bf16 + r * COLS, COLS, x);
        k->best_groups(x, NULL, COLS, &all, scales);
        sink += scales[0];
    }
}

static void best_nvfp4(const tsr_cpu_kernels *k, const buffers *b)
{
    best_e2m1(k, b, 16);
}

static void best_mxfp4(const tsr_cpu_kernels *k, const buffers *b)
{
    best_e2m1(k, b, 32);
}

/* Searches scales as quantize/int_weight.c does for --scales best, without the codes. */
static void best_int4(const tsr_cpu_kernels *k, const buffers *b, bool zeros)
{
    enum { GROUP = 128 };
    static groups g;
    static float x[COLS], scratch[TSR_BEST_INT4_SCRATCH(GROUP)];
    const tsr_best_int4 all = {.zero_points = zeros};
    for (size_t r = 0; r < b->rows; r++) {
        const uint16_t *const from = b->bf16 + r * COLS;
        if (zeros) {
            k->range_groups_bf16(from, COLS, GROUP, g.low, g.high);
            choose_asymmetric(&g, COLS / GROUP, -8, 7);
        } else {
            k->amax_groups_bf16(from, COLS, GROUP, g.amax);
            choose_symmetric(&g, COLS / GROUP, 7.5f);
        }
        k->widen_bf16(from, COLS, x);
        for (size_t i = 0; i < COLS / GROUP; i++)
            k->best_int4(x + i * GROUP, NULL, GROUP, &all, scratch, &g.scale[i], &g.zero[i]);
        sink += (double)g.scale[0];
    }
}

static void best_int4_128(const tsr_cpu_kernels *k, const buffers *b)
{
    best_int4(k, b, false);
}

static void best_int4_zeros(const tsr_cpu_kernels *k, const buffers *b)
{
    best_int4(k, b, true);
}

static void encode_mxfp8(const tsr_cpu_kernels *k, const buffers *b, bool error)
{
    static mx_row m;
    tsr_mx_error e = sums_in(&m);
    for (size_t r = 0; r < b->rows; r++) {
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

const work kEncodes[] = {
    {"FP8 blocks", quantize, PER_WEIGHT_8, {0.5, 0.6, 0.7}},
    {"FP8 blocks + error", quantize_and_measure, PER_WEIGHT_8, {0.3, 0.5, 0.5}},
    {"int8 rows", int8, PER_WEIGHT_8, {0.4, 0.7, 0.7}},
    {"int8 rows + error", int8_and_measure, PER_WEIGHT_8, {0.3, 0.5, 0.5}},
    {"int4 rows", int4_rows, PER_WEIGHT_4, {0.4, 0.7, 0.7}},
    {"int4 groups of 128", int4_128, PER_WEIGHT_4, {0.4, 0.7, 0.7}},
    {"int4 groups of 64", int4_64, PER_WEIGHT_4, {0.4, 0.6, 0.6}},
    {"int4 groups of 32", int4_32, PER_WEIGHT_4, {0.4, 0.55, 0.55}},
    {"int4 128, zero points", int4_zeros, PER_WEIGHT_4, {0.4, 0.6, 0.6}},
    {"int4 128 + error", int4_and_measure, PER_WEIGHT_4, {0.2, 0.3, 0.3}},
    {"int4 128, best scales", best_int4_128, PER_WEIGHT_4, {0, 0, 0}},
    {"int4 128, best zero points", best_int4_zeros, PER_WEIGHT_4, {0, 0, 0}},
    {"MXFP4", mxfp4, PER_WEIGHT_4, {0.35, 0.5, 0.5}},
    {"MXFP4 + error", mxfp4_and_measure, PER_WEIGHT_4, {0, 0.3, 0.3}},
    {"NVFP4", nvfp4, PER_WEIGHT_4, {0.35, 0.5, 0.5}},
    {"NVFP4 + error", nvfp4_and_measure, PER_WEIGHT_4, {0, 0.25, 0.25}},
    {"MXFP4, best scales", best_mxfp4, PER_WEIGHT_4, {0, 0, 0}},
    {"NVFP4, best scales", best_nvfp4, PER_WEIGHT_4, {0, 0, 0}},
    {"MXFP8", mxfp8, PER_WEIGHT_8, {0.35, 0.5, 0.5}},
    {"MXFP8 + error", mxfp8_and_measure, PER_WEIGHT_8, {0, 0.25, 0.25}},
};
const size_t kEncodeCount = sizeof kEncodes / sizeof *kEncodes;
