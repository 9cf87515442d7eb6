/* Tests decoding of AWQ and GPTQ weights, in any order of groups and in several pieces, against one value at a time. */
#include "quantize/awq_gptq_decode.h"

#include "common/float_bits.h"
#include "tests/common/int4_weight.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { MOST_ROWS = 264, MOST_COLS = 2432, MOST_GROUPS = MOST_COLS / 16 };

struct size {
    uint64_t rows, cols, group;
};

typedef struct matrix {
    uint32_t codes[MOST_ROWS * MOST_COLS / 8], zeros[MOST_GROUPS * MOST_ROWS / 8];
    float scales[MOST_GROUPS * MOST_ROWS];
    uint16_t narrow_scales[MOST_GROUPS * MOST_ROWS];
    uint32_t index[MOST_COLS];
    uint64_t wide_index[MOST_COLS];
} matrix;

static void fill(matrix *m)
{
    for (size_t i = 0; i < sizeof m->codes / sizeof *m->codes; i++)
        m->codes[i] = (uint32_t)random_bits();
    for (size_t i = 0; i < sizeof m->zeros / sizeof *m->zeros; i++)
        m->zeros[i] = (uint32_t)random_bits();
    for (size_t i = 0; i < sizeof m->scales / sizeof *m->scales; i++)
        m->scales[i] = (float)(random_bits() % 65536 + 1) * 0x1p-20f;
}

static tsr_weight weight_of(tsr_coding coding, const struct size *size, const tsr_tensor *data)
{
    tsr_weight w = int4_weight(coding, size->rows, size->cols, size->cols / size->group, data, data);
    w.scale_dtype = TSR_F32;
    return w;
}

/* Implements the packages' definitions: AutoAWQ's order of nibbles, and GPTQ, whose stored zero points are one less. */
static float value_at(const matrix *m, const tsr_weight *w, uint64_t row, uint64_t col)
{
    static const unsigned kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const uint64_t g = w->reordered ? m->index[col] : col / w->block.cols;
    const bool awq = w->coding == TSR_CODED_AWQ;
    const unsigned of_row = 4 * (awq ? kOrder[row % 8] : (unsigned)(row % 8));
    const uint32_t word = awq ? m->codes[col * (w->rows / 8) + row / 8] : m->codes[col / 8 * w->rows + row];
    const int code = (int)(word >> (awq ? of_row : 4 * (unsigned)(col % 8)) & 15);
    const int zero = (int)(m->zeros[g * (w->rows / 8) + row / 8] >> of_row & 15) + (awq ? 0 : 1);
    const uint64_t at = g * w->rows + row;
    return (float)(code - zero) * (w->scale_dtype == TSR_F32    ? m->scales[at]
                                   : w->scale_dtype == TSR_BF16 ? tsr_f32_from_bf16(m->narrow_scales[at])
                                                                : tsr_f32_from_f16(m->narrow_scales[at]));
}

static void compare(const tsr_cpu_kernels *k, int set, const matrix *m, const tsr_weight *w)
{
    const bool wide = w->reordered && w->group_index->dtype == TSR_I64;
    const tsr_gptq_span span = {.weight = w,
                                .rows = w->rows,
                                .codes = m->codes,
                                .scales = w->scale_dtype == TSR_F32 ? (const void *)m->scales : m->narrow_scales,
                                .zero_points = m->zeros,
                                .group_index = !w->reordered ? NULL
                                               : wide        ? (const void *)m->wide_index
                                                             : m->index};
    uint16_t *const got = malloc(w->rows * w->cols * sizeof *got);
    void *const scratch = malloc(tsr_gptq_decode_scratch(w));
    tsr_err err;
    cr_assert_eq(tsr_gptq_decode(k, &span, TSR_BF16, got, scratch, &err), TSR_OK, "%s", err.msg);
    for (uint64_t row = 0; row < w->rows; row++) {
        for (uint64_t col = 0; col < w->cols; col++) {
            cr_assert_eq(got[row * w->cols + col], tsr_bf16_from_f32(value_at(m, w, row, col)),
                         "set %d, coding %d, %d x %d of %d, [%d, %d]", set, w->coding, (int)w->rows, (int)w->cols,
                         (int)w->block.cols, (int)row, (int)col);
        }
    }
    free(scratch);
    free(got);
}

Test(awq_gptq_decode, every_set_decodes_large_matrices_as_the_formats_say)
{
    static const struct size sizes[] = {{8, 32, 32},      {136, 1024, 128},  {264, 2432, 128}, {128, 2432, 32},
                                        {72, 1920, 1920}, {128, 2304, 1152}, {192, 1040, 1040}};
    static const tsr_tensor kTensor = {.name = "weight", .rank = 2};
    static matrix m;
    tsr_cpu_kernels k;
    fill(&m);
    for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (int awq = 0; awq < 2; awq++) {
                const tsr_weight w = weight_of(awq ? TSR_CODED_AWQ : TSR_CODED_GPTQ, &sizes[i], &kTensor);
                compare(&k, s, &m, &w);
            }
        }
    }
}

/* Makes random groups, so that some have no column and others more than their size. */
static void take_any_order(matrix *m, const tsr_weight *w)
{
    for (uint64_t col = 0; col < w->cols; col++) {
        m->index[col] = (uint32_t)(random_bits() % w->grid_cols);
        m->wide_index[col] = m->index[col];
    }
}

/* `odd`: a scale for which the fast form must use the definition, or 0. */
static void fill_scales(matrix *m, tsr_dtype dtype, uint16_t odd)
{
    const size_t n = sizeof m->narrow_scales / sizeof *m->narrow_scales;
    for (size_t i = 0; i < n; i++)
        m->narrow_scales[i] = (uint16_t)((dtype == TSR_BF16 ? 0x3800 : 0x0001) + random_bits() % 0x600);
    for (size_t i = 7; odd != 0 && i < n; i += 1009)
        m->narrow_scales[i] = odd;
}

Test(awq_gptq_decode, every_set_decodes_groups_in_any_order)
{
    static const struct size sizes[] = {{8, 32, 32},     {136, 1024, 128}, {264, 2432, 128},
                                        {128, 2432, 16}, {72, 1920, 1920}, {200, 1048, 8}};
    static const struct {
        tsr_dtype dtype, index;
        uint16_t odd;
    } kinds[] = {{TSR_F16, TSR_I32, 0},      {TSR_BF16, TSR_I64, 0},      {TSR_F32, TSR_I32, 0},
                 {TSR_F16, TSR_I32, 0x8000}, {TSR_BF16, TSR_I32, 0xBC00}, {TSR_F16, TSR_I64, 0x7BFF}};
    static const tsr_tensor kTensor = {.name = "weight", .rank = 2};
    static matrix m;
    tsr_cpu_kernels k;
    fill(&m);
    for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes * 6; i++) {
            const tsr_tensor index = {.dtype = kinds[i % 6].index};
            tsr_weight w = weight_of(TSR_CODED_GPTQ, &sizes[i / 6], &kTensor);
            w.scale_dtype = (uint8_t)kinds[i % 6].dtype;
            w.reordered = true;
            w.group_index = &index;
            take_any_order(&m, &w);
            fill_scales(&m, kinds[i % 6].dtype, kinds[i % 6].odd);
            compare(&k, s, &m, &w);
        }
    }
}
