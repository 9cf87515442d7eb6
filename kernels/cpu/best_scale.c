/* Defines the search for the best scale: the losses of all candidates, one after another. */
#include "kernels/cpu/best_scale.h"

#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

#include <math.h>

/* ---- small groups ---- */

double tsr_best_group_loss(const float *x, const float *weight, const tsr_best_groups *candidates, int scale)
{
    const float t = candidates->t[scale];
    double loss = 0;
    for (size_t i = 0; i < candidates->group; i++) {
        const float v = candidates->e4m3 ? tsr_e4m3_to_f32(tsr_e4m3_from_f32(x[i] / t))
                                         : tsr_e2m1_to_f32(tsr_e2m1_from_f32(x[i] / t));
        const double e = (double)x[i] - (double)v * (double)t;
        loss += (weight == NULL ? 1.0 : (double)weight[i]) * (e * e);
    }
    return loss;
}

static uint8_t best_group(const float *x, const float *weight, const tsr_best_groups *candidates, uint8_t given)
{
    int best = -1;
    double least = 0;
    for (int scale = candidates->least; scale <= candidates->most; scale++) {
        const double loss = tsr_best_group_loss(x, weight, candidates, scale);
        if (best >= 0 && (loss > least || (loss == least && scale != given)))
            continue;
        best = scale;
        least = loss;
    }
    return best < 0 ? given : (uint8_t)best;
}

void tsr_best_groups_ref(const float *x, const float *weight, size_t n, const tsr_best_groups *candidates,
                         uint8_t *scales)
{
    const size_t group = candidates->group;
    for (size_t i = 0; i < n / group; i++) {
        bool zeros = true;
        for (size_t j = i * group; j < (i + 1) * group; j++)
            zeros = zeros && x[j] == 0;
        if (!zeros)
            scales[i] = best_group(x + i * group, weight == NULL ? NULL : weight + i * group, candidates, scales[i]);
    }
}

/* ---- FP8 blocks ---- */

double tsr_best_fp8_loss(const float *x, const float *weight, size_t rows, size_t cols, float scale)
{
    double loss = 0;
    for (size_t i = 0; i < rows * cols; i++) {
        const double e = (double)x[i] - (double)tsr_e4m3_to_f32(tsr_e4m3_from_f32(x[i] / scale)) * (double)scale;
        loss += (weight == NULL ? 1.0 : (double)weight[i % cols]) * (e * e);
    }
    return loss;
}

void tsr_best_fp8_ref(const float *x, const float *weight, size_t rows, size_t cols, bool bf16, float *scale)
{
    double amax = 0, counted = 0;
    for (size_t i = 0; i < rows * cols; i++) {
        const double a = fabs((double)x[i]);
        amax = a > amax ? a : amax;
        counted += weight == NULL ? a : a * (double)weight[i % cols];
    }
    if (counted == 0)
        return;
    double least = tsr_best_fp8_loss(x, weight, rows, cols, *scale);
    const int step = bf16 ? 1 : 128;
    for (int bits = step; bits <= TSR_BEST_FP8_MOST(bf16); bits += step) {
        const float candidate = tsr_f32_from_bf16((uint16_t)bits);
        const double beyond = amax - 448 * (double)candidate; /* the error of clipping amax */
        if (weight == NULL && beyond > 0 && beyond * beyond * (1 - 0x1p-40) > least)
            continue;
        const double loss = tsr_best_fp8_loss(x, weight, rows, cols, candidate);
        *scale = loss < least ? candidate : *scale;
        least = loss < least ? loss : least;
        if ((double)candidate > 0x1p11 * amax) /* all codes are 0, under larger ones too */
            return;
    }
}

/* ---- int4 ---- */

static float rounded(float x, bool away)
{
    return away ? roundf(x) : rintf(x);
}

double tsr_best_int4_loss(const float *x, const float *weight, size_t n, const tsr_best_int4 *candidates, float scale,
                          float zero)
{
    double loss = 0;
    for (size_t i = 0; i < n; i++) {
        const float shifted = x[i] / scale + zero, clamped = shifted < -8 ? -8 : shifted > 7 ? 7 : shifted;
        const double e = (double)x[i] - (double)(rounded(clamped, candidates->away) - zero) * (double)scale;
        loss += (weight == NULL ? 1.0 : (double)weight[i]) * (e * e);
    }
    return loss;
}

/* One element at a time. */
enum { LANES = 1, HALVES = 1 };
typedef float vf;
typedef double vd;
#define TSR_BEST(name)      tsr_##name##_ref
#define f_set1(x)           (x)
#define f_load(p)           (*(p))
#define f_store(p, x)       (*(p) = (x))
#define f_mul(a, b)         ((a) * (b))
#define f_add(a, b)         ((a) + (b))
#define f_sub(a, b)         ((a) - (b))
#define f_div(a, b)         ((a) / (b))
#define f_min(a, b)         ((a) < (b) ? (a) : (b))
#define f_max(a, b)         ((a) > (b) ? (a) : (b))
#define f_fmadd(a, b, c)    ((float)((double)(a) * (double)(b) + (double)(c)))
#define f_fnmadd(a, b, c)   ((float)((double)(c) - (double)(a) * (double)(b)))
#define f_round(x)          ((x) + 0x1.8p23f - 0x1.8p23f) /* |x| is below 2^22 */
#define f_sum(x)            (x)
#define f_largest(x)        (x)
#define f_less(a, b)        ((unsigned)((a) < (b)))
#define f_keep(to, x, mask) (*(to) = (x))
#define d_set1(x)           ((double)(x))
#define d_sum(x)            (x)
#define f_widen(x, half)    ((double)(x))
#include "kernels/cpu/best_int4_body.h"
