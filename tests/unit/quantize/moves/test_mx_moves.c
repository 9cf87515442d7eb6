/* Tests moves between formats without rounding: equal values before and after, and codes that the target cannot
 * hold. */
#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/moves/int4_moves.h"
#include "quantize/moves/mx_moves.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { ROWS = 2, COLS = 64, GROUPS = COLS / 32 };

static const tsr_tensor kTensor = {.name = "w", .dtype = TSR_U8, .rank = 2, .shape = {ROWS, COLS / 2}};

/* Two rows whose groups hold `code` and zeros, with these four scales. */
static tsr_mxfp4_rows rows_of(uint8_t code, const uint8_t *scales, uint8_t *codes)
{
    for (unsigned i = 0; i < ROWS * COLS / 2; i++)
        codes[i] = i % 16 == 3 ? code : 0;
    return (tsr_mxfp4_rows){.tensor = &kTensor, .rows = ROWS, .cols = COLS, .codes = codes, .scales = scales};
}

/* How far below the largest scale a group may lie with each code (0.5, 1, 1.5, 2, 3, 4, 6 in the low nibble). */
Test(mx_moves, block_fp8_has_the_window_of_each_code)
{
    static const int kWindow[8] = {0, 14, 15, 14, 16, 15, 17, 16};
    for (uint8_t code = 1; code < 8; code++) {
        for (int below = 0; below <= 20; below++) {
            const uint8_t scales[ROWS * GROUPS] = {120, 120, (uint8_t)(120 - below), 120};
            uint8_t packed[ROWS * COLS / 2], codes[ROWS * COLS], tile;
            const tsr_mxfp4_rows rows = rows_of(code, scales, packed);
            tsr_err err;
            const tsr_status status = tsr_mxfp4_to_fp8(&rows, 128, codes, &tile, &err);
            cr_assert_eq(status, below <= kWindow[code] ? TSR_OK : TSR_E_VALUE, "code %u, %d binades", code, below);
            if (status != TSR_OK) {
                cr_assert_not_null(strstr(err.msg, "binades apart, and the codes of row 1 from column 0"), "%s",
                                   err.msg);
                continue;
            }
            cr_assert_eq(tile, 114);
            for (unsigned i = 0; i < ROWS * COLS; i++) {
                const float v = tsr_e2m1_to_f32(packed[i / 2] >> i % 2 * 4);
                cr_assert_eq(tsr_e4m3_to_f32(codes[i]) * tsr_f32_from_e8m0(tile),
                             v * tsr_f32_from_e8m0(scales[i / 32]));
            }
        }
    }
}

/* Zeros have no exponent, whatever their signs. */
Test(mx_moves, groups_of_negative_zeros_do_not_count)
{
    static const uint8_t kScales[ROWS * GROUPS] = {120, 254, 119, 0};
    uint8_t codes[ROWS * COLS / 2], scales[ROWS * COLS / 16];
    const tsr_mxfp4_rows rows = rows_of(0x02, kScales, codes);
    tsr_err err;
    for (unsigned g = 1; g < ROWS * GROUPS; g += 2)
        memset(codes + g * 16, g == 1 ? 0x88 : 0x80, 16);
    cr_assert_eq(tsr_mxfp4_to_nvfp4(&rows, 120, scales, &err), TSR_OK, "%s", err.msg);
    for (unsigned g = 0; g < ROWS * GROUPS; g++)
        cr_assert_eq(tsr_e4m3_to_f32(scales[2 * g]), g % 2 == 1 ? 0x1p-9f : ldexpf(1, kScales[g] - 120 + 8));
}

Test(mx_moves, nvfp4_holds_17_binades)
{
    for (int below = 0; below <= 18; below++) {
        const uint8_t given[ROWS * GROUPS] = {120, (uint8_t)(120 - below), 119, 110};
        uint8_t packed[ROWS * COLS / 2], scales[ROWS * COLS / 16];
        const tsr_mxfp4_rows rows = rows_of(0x0F, given, packed);
        const float global = tsr_mxfp4_global(120);
        tsr_err err;
        const tsr_status status = tsr_mxfp4_to_nvfp4(&rows, 120, scales, &err);
        cr_assert_eq(status, below <= 17 ? TSR_OK : TSR_E_VALUE);
        if (status != TSR_OK) {
            cr_assert_not_null(strstr(err.msg, "18 binades below the largest"), "%s", err.msg);
            continue;
        }
        for (unsigned g = 0; g < ROWS * COLS / 16; g++)
            cr_assert_eq(tsr_e4m3_to_f32(scales[g]) * global, tsr_f32_from_e8m0(given[g / 2]));
    }
}

/* A weight of block FP8 with these scales, for what reads neither names of codes nor offsets. */
static tsr_weight fp8_of(const tsr_tensor *scale, tsr_block block, uint64_t rows, uint64_t cols)
{
    return (tsr_weight){.data = &kTensor,
                        .scale = scale,
                        .scale_dtype = scale->dtype,
                        .rows = rows,
                        .cols = cols,
                        .block = block,
                        .grid_rows = tsr_ceil_div(rows, block.rows),
                        .grid_cols = tsr_ceil_div(cols, block.cols)};
}

Test(mx_moves, scales_that_are_no_powers_of_two_are_refused)
{
    static const float kScales[] = {1, 0x1p-127f, 0x1p127f, 1.5f, 0, -1, INFINITY, NAN, 0x1p-128f};
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    for (unsigned i = 0; i < 9; i++) {
        const tsr_tensor t = {.name = "s", .dtype = TSR_F32};
        const tsr_weight weight = fp8_of(&t, (tsr_block){128, 128}, 64, 64);
        const tsr_fp8_rect rect = {.weight = &weight, .row = 3, .rows = 1, .cols = 64, .scales = &kScales[i]};
        uint8_t scales[2];
        tsr_err err;
        const tsr_status status = tsr_fp8_to_mxfp8(&kernels, &rect, scales, &err);
        cr_assert_eq(status, i < 3 ? TSR_OK : TSR_E_VALUE, "%g", kScales[i]);
        cr_assert_eq(tsr_is_e8m0(kScales[i]), i < 3);
        if (i < 3)
            cr_assert(tsr_f32_from_e8m0(scales[0]) == kScales[i] && scales[1] == scales[0]);
    }
}

/* Each dtype of scales, in blocks that are not square, and rows that begin inside a block. */
Test(mx_moves, each_group_has_the_scale_of_its_block)
{
    enum { R = 150, C = 224, DOWN = 3, ACROSS = 4 };
    static const tsr_dtype kDtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F8_E8M0};
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    for (unsigned d = 0; d < 4; d++) {
        const tsr_tensor t = {.name = "s", .dtype = kDtypes[d]};
        const tsr_weight weight = fp8_of(&t, (tsr_block){60, 64}, R, C);
        uint32_t stored[DOWN * ACROSS]; /* as narrow as the dtype */
        for (unsigned i = 0; i < DOWN * ACROSS; i++) {
            const float scale = ldexpf(1, (int)i - 9);
            const uint16_t narrow = kDtypes[d] == TSR_BF16 ? tsr_bf16_from_f32(scale) : tsr_f16_from_f32(scale);
            const uint8_t byte = (uint8_t)(127 + (int)i - 9);
            if (kDtypes[d] == TSR_F32)
                memcpy((char *)stored + 4 * i, &scale, 4);
            else if (kDtypes[d] == TSR_F8_E8M0)
                memcpy((char *)stored + i, &byte, 1);
            else
                memcpy((char *)stored + 2 * i, &narrow, 2);
        }
        static uint8_t made[R * C / 32];
        tsr_err err;
        for (uint64_t first = 0; first < 2; first++) {
            const uint64_t row = first == 0 ? 0 : 40; /* both are in the first row of blocks */
            const tsr_fp8_rect rect = {.weight = &weight, .row = row, .rows = R - row, .cols = C, .scales = stored};
            cr_assert_eq(tsr_fp8_to_mxfp8(&kernels, &rect, made, &err), TSR_OK, "%s", err.msg);
            for (uint64_t r = row; r < R; r++) {
                for (uint64_t g = 0; g < C / 32; g++)
                    cr_assert_eq(made[(r - row) * (C / 32) + g], 127 + (int)(r / 60 * ACROSS + g / 2) - 9,
                                 "%s, row %llu, group %llu", tsr_dtype_name(kDtypes[d]), (unsigned long long)r,
                                 (unsigned long long)g);
            }
        }
    }
}

Test(mx_moves, what_pack_quantized_cannot_hold_is_refused)
{
    const tsr_int4_shape shape = {.outputs = 8, .inputs = 8, .group = 4, .bits = 4};
    const uint32_t zeros[2] = {0x77777777, 0x7777F777};
    uint32_t words[2];
    bool symmetric;
    tsr_err err;
    cr_assert_eq(tsr_gptq_zero_points(&shape, &kTensor, 64, zeros, 1, words, &symmetric, &err), TSR_E_VALUE);
    cr_assert_not_null(strstr(err.msg, "group 1, output 67 is 16"), "%s", err.msg);
    cr_assert_eq(tsr_gptq_zero_points(&shape, &kTensor, 64, zeros, 0, words, &symmetric, &err), TSR_OK);
    cr_assert_not(symmetric);
}

Test(mx_moves, int4_made_again_wants_its_own_scales)
{
    uint16_t values[8];
    float scale = 0.0703125f;
    uint32_t word;
    tsr_err err;
    for (int i = 0; i < 8; i++)
        values[i] = tsr_bf16_from_f32((float)(i - 8) * scale);
    tsr_int4_restoring rows = {
        .tensor = &kTensor, .rows = 1, .cols = 8, .group = 8, .values = values, .scales = &scale, .words = &word};
    cr_assert_eq(tsr_int4_restore_codes(&rows, &err), TSR_OK);
    cr_assert_eq(word, 0x76543210u);
    scale = 0.0625f;
    cr_assert_eq(tsr_int4_restore_codes(&rows, &err), TSR_E_VALUE);
    cr_assert_not_null(strstr(err.msg, "the value at [0, 0]"), "%s", err.msg);
}

Test(mx_moves, a_global_has_a_reciprocal)
{
    float other;
    bool exact;
    tsr_err err;
    cr_assert_eq(tsr_nvfp4_other_global(&kTensor, 0.5f, &other, &exact, &err), TSR_OK);
    cr_assert(other == 2 && exact);
    cr_assert_eq(tsr_nvfp4_other_global(&kTensor, 0, &other, &exact, &err), TSR_E_VALUE);
    cr_assert_eq(tsr_nvfp4_other_global(&kTensor, NAN, &other, &exact, &err), TSR_E_VALUE);
}
