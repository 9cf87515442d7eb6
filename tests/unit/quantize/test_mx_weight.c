/* Tests quantization of rows to MXFP4, MXFP8 and NVFP4, and back: bytes of the producers' code, global scales,
 * errors, statistics. */
#include "common/float_bits.h"
#include "quantize/mx_decode.h"
#include "quantize/mx_weight.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { COLS = 32, SCRATCH = 4096 };

static tsr_cpu_kernels kernels(void)
{
    tsr_cpu_kernels k;
    tsr_cpu_kernels_init(&k, tsr_cpu_flags());
    return k;
}

/* 0.5 -6 1.5 -0.25 | 3.5 0 -0.0 5 | 23 zeros | -0.75 */
static void fill_row(uint16_t x[COLS])
{
    static const float kFirst[] = {0.5f, -6, 1.5f, -0.25f, 3.5f, 0, -0.0f, 5};
    memset(x, 0, COLS * sizeof *x);
    for (size_t i = 0; i < 8; i++)
        x[i] = tsr_bf16_from_f32(kFirst[i]);
    x[COLS - 1] = tsr_bf16_from_f32(-0.75f);
}

typedef struct made {
    uint8_t codes[COLS], scales[2];
    float global;
} made;

static tsr_tensor bf16_row(void)
{
    return (tsr_tensor){.name = "w", .dtype = TSR_BF16, .rank = 2, .shape = {1, COLS}, .offset = 1000};
}

static tsr_status quantize(const tsr_mx_scheme *scheme, const uint16_t *x, made *out, tsr_quant_stats *stats,
                           tsr_err *err)
{
    const tsr_cpu_kernels k = kernels();
    const tsr_tensor t = bf16_row();
    _Alignas(double) char scratch[SCRATCH];
    float amax = 0;
    tsr_mx_rows rows = {
        .tensor = &t, .rows = 1, .x = x, .codes = out->codes, .scales = out->scales, .scratch = scratch};
    memset(out, 0, sizeof *out);
    TSR_TRY(tsr_mx_amax(&k, &rows, &amax, err));
    rows.global = out->global = tsr_nvfp4_global(scheme, TSR_BF16, &amax, 1);
    return tsr_mx_quantize(scheme, &k, &rows, stats, err);
}

static void expect(tsr_mx_kind kind, bool modelopt, const uint8_t *codes, size_t bytes, const uint8_t *scales, size_t n)
{
    const tsr_mx_scheme scheme = tsr_mx_scheme_of(kind, modelopt);
    uint16_t x[COLS];
    made got;
    tsr_err err;
    fill_row(x);
    cr_assert_eq(quantize(&scheme, x, &got, NULL, &err), TSR_OK, "%s", err.msg);
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(got.codes[i], codes[i], "kind %d, ModelOpt %d: byte %zu is %02x, not %02x", kind, modelopt, i,
                     got.codes[i], codes[i]);
    cr_assert_arr_eq(got.scales, scales, n);
}

Test(mx_weight, a_row_becomes_the_bytes_of_each_producer)
{
    expect(TSR_MXFP4, false, (const uint8_t[16]){0xf1, 0x83, 0x06, 0x60, [15] = 0xa0}, 16, (const uint8_t[]){0x7f}, 1);
    expect(TSR_MXFP4, true,
           (const uint8_t[16]){0xf1, 0x83, 0x85, 0x68, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                               0x98},
           16, (const uint8_t[]){0x7f}, 1);
    const uint8_t nvfp4[16] = {0xf1, 0x83, 0x06, 0x60, [15] = 0xf0};
    expect(TSR_NVFP4, false, nvfp4, 16, (const uint8_t[]){0x7e, 0x66}, 2);
    expect(TSR_NVFP4, true, nvfp4, 16, (const uint8_t[]){0x7e, 0x66}, 2);
    expect(TSR_MXFP8, false, (const uint8_t[32]){0x60, 0xfc, 0x6c, 0xd8, 0x76, 0x00, 0x80, 0x7a, [31] = 0xe4}, 32,
           (const uint8_t[]){0x79}, 1);
}

Test(mx_weight, globals_are_those_of_the_producers)
{
    const tsr_mx_scheme ct = tsr_mx_scheme_of(TSR_NVFP4, false);
    const tsr_mx_scheme modelopt = tsr_mx_scheme_of(TSR_NVFP4, true);
    cr_assert_eq(tsr_nvfp4_global(&ct, TSR_BF16, (const float[]){6}, 1), 448.0f);
    cr_assert_eq(tsr_f32_bits(tsr_nvfp4_global(&modelopt, TSR_BF16, (const float[]){6}, 1)), 0x3b124925u);
    cr_assert_eq(tsr_nvfp4_global(&ct, TSR_F32, (const float[]){3, 6, 0}, 3), 1.0f / 6 * 2688);
    cr_assert_eq(tsr_nvfp4_global(&modelopt, TSR_BF16, (const float[]){3, 6, 0}, 3), 6.0f / 2688);
    cr_assert_eq(tsr_nvfp4_global(&ct, TSR_BF16, (const float[]){0}, 1), 1.0f);
    cr_assert_eq(tsr_nvfp4_global(&modelopt, TSR_BF16, (const float[]){0}, 1), 1.0f);
}

static tsr_mx_span span_of(const tsr_mx_scheme *scheme, const tsr_tensor *t, const made *m)
{
    tsr_mx_span span = {.codes_of = t, .scales_of = t, .rows = 1, .cols = COLS, .group = scheme->group};
    span.element = scheme->element;
    span.scale = scheme->scale;
    span.global = m->global;
    span.codes = m->codes;
    span.scales = m->scales;
    return span;
}

/* The statistics equal those of the decoded values. */
Test(mx_weight, statistics_are_those_of_the_decoded_row)
{
    static const tsr_mx_kind kKinds[] = {TSR_MXFP4, TSR_MXFP8, TSR_NVFP4};
    for (unsigned i = 0; i < 12; i++) {
        const tsr_cpu_kernels k = kernels();
        tsr_mx_scheme scheme = tsr_mx_scheme_of(kKinds[i % 3], i / 3 % 2 == 1);
        const tsr_tensor t = bf16_row();
        scheme.search = i >= 6;
        uint16_t x[COLS];
        float y[COLS], scratch[SCRATCH / 4];
        made m;
        tsr_err err;
        tsr_quant_stats stats = {0};
        for (unsigned c = 0; c < COLS; c++)
            x[c] = tsr_bf16_from_f32(sinf((float)(c * c + i)) * 0.03f);
        cr_assert_eq(quantize(&scheme, x, &m, &stats, &err), TSR_OK, "%s", err.msg);
        const tsr_mx_span span = span_of(&scheme, &t, &m);
        cr_assert_eq(tsr_mx_decode(&k, &span, TSR_F32, y, scratch, &err), TSR_OK, "%s", err.msg);
        double d2 = 0, x2 = 0, most = 0;
        for (unsigned c = 0; c < COLS; c++) {
            const double value = (double)tsr_f32_from_bf16(x[c]), d = value - (double)y[c];
            d2 += d * d;
            x2 += value * value;
            most = fmax(most, fabs(d));
        }
        cr_assert_float_eq(stats.sum_d2, d2, 1e-5 * d2);
        cr_assert_float_eq(stats.sum_x2, x2, 1e-5 * x2);
        cr_assert_float_eq(stats.max_error, most, 1e-5 * most);
        cr_assert_eq(stats.elements, COLS);
        cr_assert_eq(stats.blocks, COLS / scheme.group);
    }
}

Test(mx_weight, a_search_never_costs_more)
{
    for (unsigned i = 0; i < 300; i++) {
        tsr_mx_scheme scheme = tsr_mx_scheme_of((tsr_mx_kind)(i % 3), i / 3 % 2 == 1);
        uint16_t x[COLS];
        made m;
        tsr_err err;
        tsr_quant_stats plain = {0}, searched = {0};
        for (unsigned c = 0; c < COLS; c++)
            x[c] = tsr_bf16_from_f32(powf(sinf((float)(c * c * c + i * 7)), 3) * 0.03f);
        cr_assert_eq(quantize(&scheme, x, &m, &plain, &err), TSR_OK);
        scheme.search = true;
        cr_assert_eq(quantize(&scheme, x, &m, &searched, &err), TSR_OK);
        cr_assert_leq(searched.sum_d2, plain.sum_d2);
    }
}

Test(mx_weight, what_has_no_code_is_refused_with_its_place)
{
    for (tsr_mx_kind kind = TSR_MXFP4; kind <= TSR_NVFP4; kind++) {
        const tsr_mx_scheme scheme = tsr_mx_scheme_of(kind, false);
        uint16_t x[COLS] = {0};
        made m;
        tsr_err err;
        x[5] = 0x7FC0;
        cr_assert_eq(quantize(&scheme, x, &m, NULL, &err), TSR_E_VALUE);
        cr_assert_not_null(strstr(err.msg, "'w': NaN at [0, 5], file offset 1010"), "%s", err.msg);
        x[5] = 0xFF80;
        cr_assert_eq(quantize(&scheme, x, &m, NULL, &err), TSR_E_VALUE);
        cr_assert_not_null(strstr(err.msg, "'w': Inf at [0, 5]"), "%s", err.msg);
    }
    /* From 1.75 * 2^127 on, the next code of a group would mean 2^128. */
    const tsr_mx_scheme mxfp4 = tsr_mx_scheme_of(TSR_MXFP4, false);
    uint16_t x[COLS] = {0};
    made m;
    tsr_err err;
    x[7] = tsr_bf16_from_f32(0x1.Ap127f);
    cr_assert_eq(quantize(&mxfp4, x, &m, NULL, &err), TSR_OK);
    x[7] = tsr_bf16_from_f32(-0x1.Cp127f);
    cr_assert_eq(quantize(&mxfp4, x, &m, NULL, &err), TSR_E_VALUE);
    cr_assert_not_null(strstr(err.msg, "'w': the weight at [0, 7], file offset 1014"), "%s", err.msg);
}

typedef struct damage {
    tsr_mx_kind kind;
    bool scale; /* or a code */
    uint8_t byte;
    float global;
    const char *says;
} damage;

Test(mx_decode, what_stands_for_no_number_is_refused_with_its_place)
{
    static const damage kDamages[] = {
        {TSR_MXFP4, true, 255, 0, "the scale at [0, 0], file offset 1000, is NaN (0xFF)"},
        {TSR_MXFP8, true, 255, 0, "is NaN (0xFF)"},
        {TSR_NVFP4, true, 0x7F, 1, "is NaN (0x7F)"},
        {TSR_NVFP4, true, 0xB8, 1, "is negative (0xB8)"},
        {TSR_MXFP8, false, 0xFF, 0, "code NaN at [0, 3], file offset 1003"},
        {TSR_MXFP4, true, 254, 0, "the value at [0, 6] is beyond the range of BF16"},
        {TSR_NVFP4, true, 0x7E, 0, "its global scale is 0"},
        {TSR_NVFP4, true, 0x7E, INFINITY, "its global scale is inf"},
        {TSR_NVFP4, true, 0x7E, 0x1p-126f, "the value at [0, 0] is beyond the range of BF16"},
    };
    for (size_t i = 0; i < sizeof kDamages / sizeof *kDamages; i++) {
        const damage *const d = &kDamages[i];
        const tsr_mx_scheme scheme = tsr_mx_scheme_of(d->kind, false);
        const tsr_cpu_kernels k = kernels();
        const tsr_tensor t = bf16_row();
        uint16_t y[COLS];
        float scratch[SCRATCH / 4];
        made m = {.scales = {100, 100}, .global = d->global};
        tsr_err err;
        m.codes[3] = 0x07;
        *(d->scale ? &m.scales[0] : &m.codes[3]) = d->byte;
        const tsr_mx_span span = span_of(&scheme, &t, &m);
        cr_assert_eq(tsr_mx_decode(&k, &span, TSR_BF16, y, scratch, &err), TSR_E_VALUE, "case %zu", i);
        cr_assert_not_null(strstr(err.msg, d->says), "case %zu: %s", i, err.msg);
    }
}
