/* Implements best_fp8 as TSR_BEST(name), for each form to include.
 *
 * Candidates are numbered by their bits as BF16; powers of two are every 128th. Losses are computed in FP32 first. Two
 * bounds of best_groups_body.h apply, since codes are E4M3 and ties go to even: a candidate that clips nothing is no
 * worse than its double, and small candidates are excluded by what one element loses by clipping.
 *
 * The FP32 quotient is that of the definition, because x and t are multiplied by the same power of two. So the codes
 * are the same, and FP32 losses differ by less than (CHUNK + 10) * 2^-24 of themselves. Elements that underflow when
 * they are multiplied have a code of 0, and add less than MARGIN. */
#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum {
    FP8_CHUNK = 32, /* vectors whose terms are added in FP32 */
    FP8_TRIED = 512,
    FP8_OCTAVE = 128 /* from a normal BF16 number to its double */
};

#define FP8_NEAR   (1 + 0x1p-16)
#define FP8_MARGIN 0x1p-100

typedef struct fp8_search {
    const float *x, *weight; /* [rows, cols], [cols] or NULL */
    size_t rows, cols;
    float factor;                /* x * factor is near 1 */
    double amax, end, end_share; /* the largest |x| * factor; an element that is clipped, and its weight */
    int given, first, step, most;
    int tried[FP8_TRIED];
    double loss[FP8_TRIED], least;
    size_t n;
} fp8_search;

static double fp8_value(int bits)
{
    return (double)tsr_f32_from_bf16((uint16_t)bits);
}

/* Adds the squared errors of a vector. */
ALWAYS_INLINE vf fp8_add(vf x, vf w, vf factor, vf t, bool weighted, vf sum)
{
    const vf size = f_mul(f_size(x), factor), e = f_fnmadd(f_e4m3(f_div(size, t)), t, size);
    return f_fmadd(weighted ? f_mul(w, e) : e, e, sum);
}

/* Returns the FP32 loss of a scale, times factor^2. */
ALWAYS_INLINE double fp8_measure(const fp8_search *s, int bits, bool weighted)
{
    const vf factor = f_set1(s->factor), t = f_set1((float)(fp8_value(bits) * (double)s->factor)), one = f_set1(1);
    double total = 0;
    for (size_t row = 0; row < s->rows; row++) {
        const float *const x = s->x + row * s->cols;
        for (size_t first = 0; first < s->cols; first += FP8_CHUNK * LANES) {
            const size_t end = s->cols - first < FP8_CHUNK * LANES ? s->cols : first + FP8_CHUNK * LANES;
            vf sum = f_set1(0);
            size_t i = first;
            for (; i + LANES <= end; i += LANES)
                sum = fp8_add(f_load(x + i), weighted ? f_load(s->weight + i) : one, factor, t, weighted, sum);
            float last[LANES] = {0}, last_weight[LANES] = {0};
            for (size_t k = 0; i + k < end; k++) {
                last[k] = x[i + k];
                last_weight[k] = weighted ? s->weight[i + k] : 1;
            }
            if (i < end)
                sum = fp8_add(f_load(last), f_load(last_weight), factor, t, weighted, sum);
            total += (double)f_sum(sum);
        }
    }
    return total;
}

static void fp8_try(fp8_search *s, int bits)
{
    const double loss = s->weight != NULL ? fp8_measure(s, bits, true) : fp8_measure(s, bits, false);
    s->least = loss < s->least ? loss : s->least;
    s->tried[s->n] = bits;
    s->loss[s->n++] = loss;
}

/* Finds amax and the clipped element. Returns false if all losses are equal, or FP32 cannot compute them. */
static bool fp8_prepare(fp8_search *s)
{
    float amax = 0, most = 0;
    double largest = 0;
    for (size_t i = 0; i < s->rows * s->cols; i++) {
        const float a = fabsf(s->x[i]), w = s->weight == NULL ? 1 : s->weight[i % s->cols];
        const double cost = (double)w * (double)a * (double)a;
        amax = a > amax ? a : amax;
        most = w > most ? w : most;
        s->end = cost > largest ? (double)a : s->end;
        s->end_share = cost > largest ? (double)w : s->end_share;
        largest = cost > largest ? cost : largest;
    }
    if (largest == 0)
        return false;
    s->factor = ldexpf(1, -ilogbf(amax));
    s->amax = (double)amax * (double)s->factor;
    s->end *= (double)s->factor;
    return amax >= 0x1p-90f && amax <= 0x1p90f && most <= 0x1p60f && s->end >= 0x1p-20 && s->end_share >= 0x1p-40;
}

/* Tries the candidates that are not excluded. Returns false if there are too many. */
static bool fp8_try_all(fp8_search *s)
{
    int unclipped = s->first;
    while (unclipped < s->most && 448 * fp8_value(unclipped) * (double)s->factor < s->amax)
        unclipped += s->step;
    const int last = unclipped + FP8_OCTAVE - s->step < s->most ? unclipped + FP8_OCTAVE - s->step : s->most;
    if (unclipped < FP8_OCTAVE) /* a subnormal number may have no half */
        return false;
    fp8_try(s, s->given);
    for (int bits = unclipped; bits <= last; bits += s->step)
        fp8_try(s, bits);
    for (int bits = unclipped - s->step; bits >= s->first; bits -= s->step) {
        const double beyond = s->end * (1 - 0x1p-20) - 448 * fp8_value(bits) * (double)s->factor;
        if (beyond > 0 && s->end_share * beyond * beyond > s->least * FP8_NEAR + FP8_MARGIN)
            return true;
        if (s->n == FP8_TRIED)
            return false;
        fp8_try(s, bits);
    }
    return true;
}

/* Returns the best of the tried candidates: the only one that is near the smallest loss, or the best of those by the
 * definition. */
static int fp8_choose(const fp8_search *s)
{
    int best = 0, near = 0;
    double least = 0;
    for (size_t i = 0; i < s->n; i++)
        near += s->loss[i] <= s->least * FP8_NEAR + FP8_MARGIN && (i == 0 || s->tried[i] != s->given);
    for (size_t i = 0; i < s->n; i++) {
        const int bits = s->tried[i];
        if (!(s->loss[i] <= s->least * FP8_NEAR + FP8_MARGIN))
            continue;
        if (near == 1)
            return bits;
        const double loss = tsr_best_fp8_loss(s->x, s->weight, s->rows, s->cols, (float)fp8_value(bits));
        const bool before = bits == s->given || (best != s->given && bits < best);
        if (best != 0 && (loss > least || (loss == least && !before)))
            continue;
        best = bits;
        least = loss;
    }
    return best;
}

void TSR_BEST(best_fp8)(const float *x, const float *weight, size_t rows, size_t cols, bool bf16, float *scale)
{
    fp8_search s = {.x = x, .weight = weight, .rows = rows, .cols = cols, .least = INFINITY};
    s.given = (int)(tsr_f32_bits(*scale) >> 16);
    s.first = bf16 ? 1 : FP8_OCTAVE;
    s.step = bf16 ? 1 : FP8_OCTAVE;
    s.most = TSR_BEST_FP8_MOST(bf16);
    if (fp8_prepare(&s) && s.given >= s.first && s.given <= s.most && fp8_try_all(&s))
        *scale = (float)fp8_value(fp8_choose(&s));
    else
        tsr_best_fp8_ref(x, weight, rows, cols, bf16, scale);
}
