/* Defines the product in small groups, in tiles of 8 x 8 results that decode each group once. */
#include "kernels/cpu/mx_gemm.h"

#include "common/float_bits.h"

enum { TILE = 8 };

static const struct {
    const char *name;
    size_t group, bits;
} kForms[] = {
    [TSR_MX_FORM_BF16] = {"BF16", 0, 16},           [TSR_MX_FORM_MXFP4] = {"MXFP4", 32, 4},
    [TSR_MX_FORM_MXFP8] = {"MXFP8", 32, 8},         [TSR_MX_FORM_NVFP4_TIMES] = {"NVFP4", 16, 4},
    [TSR_MX_FORM_NVFP4_DIVIDED] = {"NVFP4", 16, 4},
};

const char *tsr_mx_form_name(tsr_mx_form form)
{
    return kForms[form].name;
}

size_t tsr_mx_form_group(tsr_mx_form form)
{
    return kForms[form].group;
}

size_t tsr_mx_form_bytes(tsr_mx_form form, size_t k)
{
    return k * kForms[form].bits / 8;
}

size_t tsr_mx_gemm_roundings(size_t k, size_t group)
{
    const size_t groups = k / group;
    return group + (groups + TSR_MX_GEMM_LANES - 1) / TSR_MX_GEMM_LANES + 5;
}

/* One group of several rows: values of codes, and t. */
typedef struct rows {
    float values[TILE][TSR_MX_GROUP_MOST], t[TILE];
} rows;

static float scale_at(const tsr_mx_matrix *x, size_t at)
{
    switch (x->form) {
    case TSR_MX_FORM_BF16:
        return 1;
    case TSR_MX_FORM_NVFP4_TIMES:
        return tsr_e4m3_to_f32(x->scales[at]) * x->global;
    case TSR_MX_FORM_NVFP4_DIVIDED:
        return tsr_e4m3_to_f32(x->scales[at]) / x->global;
    default:
        return tsr_f32_from_e8m0(x->scales[at]);
    }
}

void tsr_mx_scales(const tsr_mx_matrix *matrix, size_t at, size_t n, float *t)
{
    for (size_t i = 0; i < n; i++)
        t[i] = scale_at(matrix, at + i);
}

static const float kE2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

/* Decodes n codes from code `at` on, which is even. */
static void values_at(const tsr_mx_matrix *x, size_t at, size_t n, float *values)
{
    const uint8_t *const bytes = x->codes;
    if (x->form == TSR_MX_FORM_BF16) {
        for (size_t i = 0; i < n; i++)
            values[i] = tsr_f32_from_bf16(((const uint16_t *)x->codes)[at + i]);
    } else if (x->form == TSR_MX_FORM_MXFP8) {
        for (size_t i = 0; i < n; i++)
            values[i] = tsr_e4m3_to_f32(bytes[at + i]);
    } else {
        for (size_t i = 0; i < n; i += 2) {
            values[i] = kE2m1[bytes[(at + i) / 2] & 15];
            values[i + 1] = kE2m1[bytes[(at + i) / 2] >> 4];
        }
    }
}

static void load(const tsr_mx_matrix *x, size_t row, size_t n, size_t k, size_t group, size_t g, rows *to)
{
    for (size_t i = 0; i < n; i++) {
        values_at(x, (row + i) * k + g * group, group, to->values[i]);
        to->t[i] = scale_at(x, (row + i) * (k / group) + g);
    }
}

static float dot(const float *a, const float *w, size_t group)
{
    float sum = 0;
    for (size_t x = 0; x < group; x++)
        sum += a[x] * w[x];
    return sum;
}

static float add_up(float sums[TSR_MX_GEMM_LANES])
{
    for (size_t half = TSR_MX_GEMM_LANES / 2; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    }
    return sums[0];
}

/* Computes results [i, i + m) x [j, j + n), both at most TILE. */
static void run_tile(const tsr_mx_gemm_args *args, size_t i, size_t m, size_t j, size_t n)
{
    const size_t group = tsr_mx_form_group(args->w.form);
    float sums[TILE][TILE][TSR_MX_GEMM_LANES] = {{{0}}};
    rows a, w;
    for (size_t g = 0; g < args->k / group; g++) {
        load(&args->a, i, m, args->k, group, g, &a);
        load(&args->w, j, n, args->k, group, g, &w);
        for (size_t p = 0; p < m; p++) {
            for (size_t q = 0; q < n; q++)
                sums[p][q][g % TSR_MX_GEMM_LANES] += a.t[p] * w.t[q] * dot(a.values[p], w.values[q], group);
        }
    }
    for (size_t p = 0; p < m; p++) {
        for (size_t q = 0; q < n; q++)
            args->d[(i + p) * args->ldd + j + q] = add_up(sums[p][q]);
    }
}

void tsr_mx_gemm_reference(const tsr_mx_gemm_args *args)
{
    for (size_t i = 0; i < args->m; i += TILE) {
        for (size_t j = 0; j < args->n; j += TILE)
            run_tile(args, i, args->m - i < TILE ? args->m - i : TILE, j, args->n - j < TILE ? args->n - j : TILE);
    }
}
