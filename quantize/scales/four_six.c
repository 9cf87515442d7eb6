/* Chooses between largest elements of 6 and of 4 for NVFP4 groups. */
#include "quantize/scales/four_six.h"

#include "common/float_bits.h"

#include <math.h>
#include <string.h>

enum { GROUP = 16 };

/* ---- scales ---- */

/* Computes both scales of compressed-tensors: `four` from `six`. */
static void divide(const tsr_four_six *r)
{
    for (size_t g = 0; g < r->n / GROUP; g++) {
        r->four[g] = tsr_e4m3_from_f32(fminf(tsr_e4m3_to_f32(r->six[g]) * 1.5f, TSR_E4M3_MAX));
        r->six_t[g] = tsr_e4m3_to_f32(r->six[g]) / r->global;
        r->four_t[g] = tsr_e4m3_to_f32(r->four[g]) / r->global;
    }
}

/* Returns the scale that ModelOpt stores for a group with this amax. */
static uint8_t stored(const tsr_four_six *r, float amax)
{
    const float scale = amax / 6 * TSR_FOUR_SIX_LARGEST_SCALE / (r->amax / 6);
    return tsr_e4m3_from_f32(fminf(fmaxf(scale, 0x1p-9f), TSR_E4M3_MAX));
}

/* Computes both scales of ModelOpt. */
static void multiply(const tsr_four_six *r)
{
    for (size_t g = 0; g < r->n / GROUP; g++) {
        const float six = tsr_f32_from_bits(r->group_amax[g]), four = six * 1.5f;
        r->six[g] = six == 0 ? tsr_e4m3_from_f32(1) : stored(r, six);
        r->four[g] = six == 0 ? tsr_e4m3_from_f32(1) : stored(r, four);
        r->six_t[g] = tsr_e4m3_to_f32(r->six[g]) * r->global;
        r->four_t[g] = tsr_e4m3_to_f32(r->four[g]) * r->global;
    }
}

/* ---- losses ---- */

static void encode(const tsr_cpu_kernels *k, const tsr_four_six *r, const float *t, uint8_t *codes)
{
    if (r->bf16 != NULL)
        k->encode_e2m1_bf16(r->bf16, r->n, GROUP, t, TSR_E2M1_EVEN, codes);
    else
        k->encode_e2m1_f32(r->f32, r->n, GROUP, t, TSR_E2M1_EVEN, codes);
}

static void measure(const tsr_cpu_kernels *k, const tsr_four_six *r, const float *t, const uint8_t *codes,
                    tsr_mx_error *error)
{
    if (r->bf16 != NULL)
        k->error_e2m1_bf16(r->bf16, r->n, GROUP, t, codes, error);
    else
        k->error_e2m1_f32(r->f32, r->n, GROUP, t, codes, error);
}

static double loss(const tsr_four_six *r, size_t g, float t, const uint8_t *codes)
{
    double sum = 0;
    for (size_t i = g * GROUP; i < (g + 1) * GROUP; i++) {
        const float x = r->bf16 != NULL ? tsr_f32_from_bf16(r->bf16[i]) : r->f32[i];
        const float e = tsr_e2m1_to_f32(codes[i / 2] >> i % 2 * 4) * t - x;
        sum += (double)e * (double)e;
    }
    return sum;
}

/* Returns a bound on the difference between the root of a group's loss and `norm`, which is t times the root of e2
 * (kernels/cpu/mx_error.h). The kernel's quotients are at most 9 and an ulp off, and the products of the loss half an
 * ulp: each element is less than 2^-18 t off, and the group less than 4 times that. The squares and sums of e2 are less
 * than 2^-21 of their value off. Both bounds are four times as large here. */
static double doubt(double t, double norm)
{
    return 0x1p-14 * t + 0x1p-19 * norm;
}

static bool is_four(const tsr_four_six *r, size_t g, double six, double four)
{
    const double difference = fabs(six - four);
    const float least = 0x1p-60f;
    if (r->six_t[g] > least && r->four_t[g] > least &&
        difference > doubt((double)r->six_t[g], six) + doubt((double)r->four_t[g], four))
        return four < six;
    return loss(r, g, r->four_t[g], r->four_codes) < loss(r, g, r->six_t[g], r->six_codes);
}

void tsr_four_six_choose(const tsr_cpu_kernels *kernels, const tsr_four_six *row)
{
    const size_t groups = row->n / GROUP;
    tsr_mx_error error = row->error;
    if (row->multiplies)
        multiply(row);
    else
        divide(row);
    encode(kernels, row, row->six_t, row->six_codes);
    encode(kernels, row, row->four_t, row->four_codes);
    measure(kernels, row, row->six_t, row->six_codes, &error);
    for (size_t g = 0; g < groups; g++)
        row->norms[g] = sqrt((double)error.e2[g]) * (double)row->six_t[g];
    measure(kernels, row, row->four_t, row->four_codes, &error);
    for (size_t g = 0; g < groups; g++) {
        if (row->group_amax[g] == 0 ||
            !is_four(row, g, row->norms[g], sqrt((double)error.e2[g]) * (double)row->four_t[g]))
            continue;
        row->six[g] = row->four[g];
        row->six_t[g] = row->four_t[g];
        memcpy(row->six_codes + g * GROUP / 2, row->four_codes + g * GROUP / 2, GROUP / 2);
    }
}
