/* Cases of bench_kernels that decode codes to BF16 with the functions of quantize/, unit by unit into one buffer. */
#include "quantize/awq_gptq_decode.h"
#include "quantize/integer_decode.h"
#include "quantize/mx_decode.h"
#include "tests/bench/works.h"
#include "tests/common/int4_weight.h"

#include <stdio.h>
#include <stdlib.h>

static void expect_ok(tsr_status status, const tsr_err *err)
{
    if (status == TSR_OK)
        return;
    fprintf(stderr, "bench_kernels: %s\n", err->msg);
    exit(1);
}

static void fp8(const tsr_cpu_kernels *k, const buffers *b)
{
    for (size_t row = 0; row < b->rows; row += BLOCK) {
        sink += k->decode_e4m3_bf16(b->codes + row * COLS, BLOCK, COLS, COLS, BLOCK, b->scales + row / BLOCK * BLOCKS,
                                    b->unit, COLS);
    }
}

/* ---- groups of columns ---- */

static void groups(const tsr_cpu_kernels *k, const buffers *b, tsr_mx_element element, tsr_mx_scale scale,
                   uint64_t group)
{
    static float scratch[2 * COLS];
    static const tsr_tensor kTensor = {.name = "weight", .rank = 2, .shape = {ROWS, COLS}};
    for (size_t row = 0; row < b->rows; row += BLOCK) {
        const tsr_mx_span span = {.codes_of = &kTensor,
                                  .scales_of = &kTensor,
                                  .row = row,
                                  .rows = BLOCK,
                                  .cols = COLS,
                                  .group = group,
                                  .element = element,
                                  .scale = scale,
                                  .global = 12800,
                                  .codes = b->codes + row * tsr_mx_code_bytes(element, COLS),
                                  .scales = b->mx_scales + row * (COLS / group)};
        tsr_err err;
        expect_ok(tsr_mx_decode(k, &span, TSR_BF16, b->unit, scratch, &err), &err);
    }
}

static void mxfp4(const tsr_cpu_kernels *k, const buffers *b)
{
    groups(k, b, TSR_MX_E2M1, TSR_MX_E8M0, 32);
}

static void nvfp4(const tsr_cpu_kernels *k, const buffers *b)
{
    groups(k, b, TSR_MX_E2M1, TSR_MX_E4M3_DIVIDED, 16);
}

static void mxfp8(const tsr_cpu_kernels *k, const buffers *b)
{
    groups(k, b, TSR_MX_E4M3, TSR_MX_E8M0, 32);
}

/* ---- integers ---- */

/* 16 bits of any of these bytes are BF16 near 2^-9 and F16 near 2^-6. */
static tsr_weight integers(tsr_coding coding, uint64_t group, tsr_dtype scales, const tsr_tensor *data)
{
    tsr_weight w = int4_weight(coding, ROWS, COLS, COLS / group, data, data);
    w.scale_dtype = (uint8_t)scales;
    return w;
}

static void packed(const tsr_cpu_kernels *k, const buffers *b, uint64_t group, bool zeros)
{
    static char scratch[16 * COLS];
    const tsr_tensor data = {.name = "weight", .dtype = TSR_I32, .rank = 2, .shape = {ROWS, COLS / 8}};
    const tsr_weight w = integers(TSR_CODED_PACKED, group, TSR_BF16, &data);
    for (size_t row = 0; row < b->rows; row += BLOCK) {
        const tsr_int_span span = {.weight = &w,
                                   .row = row,
                                   .rows = BLOCK,
                                   .codes = b->codes + row * (COLS / 2),
                                   .scales = b->mx_scales + row * w.grid_cols * 2,
                                   .zero_points = zeros ? b->codes : NULL};
        tsr_err err;
        expect_ok(tsr_int_decode(k, &span, TSR_BF16, b->unit, scratch, &err), &err);
    }
}

static void packed_128(const tsr_cpu_kernels *k, const buffers *b)
{
    packed(k, b, 128, false);
}

static void packed_32(const tsr_cpu_kernels *k, const buffers *b)
{
    packed(k, b, 32, false);
}

static void packed_zeros(const tsr_cpu_kernels *k, const buffers *b)
{
    packed(k, b, 128, true);
}

static void by_inputs(const tsr_cpu_kernels *k, const buffers *b, tsr_coding coding, bool reordered)
{
    static int32_t index[COLS];
    static char scratch[1 << 20];
    const tsr_tensor data = {.name = "weight", .dtype = TSR_I32, .rank = 2}, order = {.dtype = TSR_I32};
    tsr_weight w = integers(coding, 128, TSR_F16, &data);
    w.reordered = reordered;
    w.group_index = reordered ? &order : NULL;
    for (int32_t i = 0; i < COLS; i++)
        index[i] = i * 37 % BLOCKS;
    if (tsr_gptq_decode_scratch(&w) > sizeof scratch)
        exit(1);
    for (size_t row = 0; row < b->rows; row += BLOCK) {
        const tsr_gptq_span span = {.weight = &w,
                                    .row = row,
                                    .rows = BLOCK,
                                    .codes = b->codes + row * (COLS / 2),
                                    .scales = b->mx_scales + row * BLOCKS * 2,
                                    .zero_points = b->codes,
                                    .group_index = reordered ? index : NULL};
        tsr_err err;
        expect_ok(tsr_gptq_decode(k, &span, TSR_BF16, b->unit, scratch, &err), &err);
    }
}

static void awq(const tsr_cpu_kernels *k, const buffers *b)
{
    by_inputs(k, b, TSR_CODED_AWQ, false);
}

static void gptq(const tsr_cpu_kernels *k, const buffers *b)
{
    by_inputs(k, b, TSR_CODED_GPTQ, false);
}

static void gptq_reordered(const tsr_cpu_kernels *k, const buffers *b)
{
    by_inputs(k, b, TSR_CODED_GPTQ, true);
}

const work kDecodes[] = {
    {"FP8 blocks to BF16", fp8, PER_WEIGHT_8, {0.6, 0.85, 0.85}},
    {"MXFP4 to BF16", mxfp4, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
    {"NVFP4 to BF16", nvfp4, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
    {"MXFP8 to BF16", mxfp8, PER_WEIGHT_8, {0.5, 0.8, 0.8}},
    {"int4 128 to BF16", packed_128, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
    {"int4 32 to BF16", packed_32, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
    {"int4 zero points", packed_zeros, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
    {"AWQ to BF16", awq, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
    {"GPTQ to BF16", gptq, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
    {"GPTQ act-order", gptq_reordered, PER_WEIGHT_4, {0.5, 0.8, 0.8}},
};
const size_t kDecodeCount = sizeof kDecodes / sizeof *kDecodes;
