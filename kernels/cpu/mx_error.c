/* Defines the errors of microscaling codes in plain C, one group at a time. */
#include "kernels/cpu/mx_error.h"

#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

#include <math.h>
#include <stdbool.h>

enum { LARGEST_GROUP = 32, MXFP8_GROUP = 32 };

/* A row of one kind, with functions that read its elements and codes. */
typedef struct row {
    const uint16_t *bf16;
    const float *f32;
    const uint8_t *codes;
    bool e4m3;
} row;

static float element(const row *r, size_t i)
{
    return r->bf16 != NULL ? tsr_f32_from_bf16(r->bf16[i]) : r->f32[i];
}

static float value(const row *r, size_t i)
{
    return r->e4m3 ? tsr_e4m3_to_f32(r->codes[i]) : tsr_e2m1_to_f32(r->codes[i / 2] >> i % 2 * 4);
}

static float sum_of_products(const float *a, const float *b, size_t group)
{
    float p[LARGEST_GROUP / 2];
    for (size_t l = 0; l < group / 2; l++)
        p[l] = fmaf(a[2 * l + 1], b[2 * l + 1], a[2 * l] * b[2 * l]);
    for (size_t l = 0; group == 32 && l < 8; l++)
        p[l] += p[l + 8];
    return ((p[0] + p[2]) + (p[1] + p[3])) + ((p[4] + p[6]) + (p[5] + p[7]));
}

static void measure(const row *r, size_t n, size_t group, const float *t, tsr_mx_error *error)
{
    error->largest = 0;
    error->nonzero = error->flushed = 0;
    for (size_t g = 0; g < n / group; g++) {
        const float unit = TSR_MX_UNIT(t[g]), boost = TSR_MX_BOOST(unit), inverse = 1 / (unit * boost);
        float q[LARGEST_GROUP], v[LARGEST_GROUP], e[LARGEST_GROUP];
        for (size_t i = 0; i < group; i++) {
            const float x = element(r, g * group + i);
            v[i] = value(r, g * group + i);
            q[i] = x * boost * inverse;
            e[i] = q[i] - v[i];
            error->largest = fmaxf(error->largest, fabsf(e[i]) * unit);
            error->nonzero += x != 0;
            error->flushed += x != 0 && v[i] == 0;
        }
        error->q2[g] = sum_of_products(q, q, group);
        error->e2[g] = sum_of_products(e, e, group);
        error->qv[g] = sum_of_products(q, v, group);
    }
}

void tsr_error_e2m1_bf16_ref(const uint16_t *x, size_t n, size_t group, const float *t, const uint8_t *packed,
                             tsr_mx_error *error)
{
    measure(&(row){.bf16 = x, .codes = packed}, n, group, t, error);
}

void tsr_error_e2m1_f32_ref(const float *x, size_t n, size_t group, const float *t, const uint8_t *packed,
                            tsr_mx_error *error)
{
    measure(&(row){.f32 = x, .codes = packed}, n, group, t, error);
}

void tsr_error_mxfp8_bf16_ref(const uint16_t *x, size_t n, const float *t, const uint8_t *codes, tsr_mx_error *error)
{
    measure(&(row){.bf16 = x, .codes = codes, .e4m3 = true}, n, MXFP8_GROUP, t, error);
}

void tsr_error_mxfp8_f32_ref(const float *x, size_t n, const float *t, const uint8_t *codes, tsr_mx_error *error)
{
    measure(&(row){.f32 = x, .codes = codes, .e4m3 = true}, n, MXFP8_GROUP, t, error);
}
