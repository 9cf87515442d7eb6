/* Measures groups with one int4 scale, and keeps the candidates for best_int4_body.h, which has the proofs. */
#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum {
    UNLIMITED = 16,    /* more than any limit */
    CHUNK = 32,        /* vectors whose terms are added in FP32 */
    FEW = 3,           /* candidates of a range that are measured one by one */
    MOST_LEFT = 128,   /* candidates that wait for the definition */
    MOST_SCALES = 4096 /* scales whose ranges are noted for all zero points */
};

/* Sums in units of t. */
typedef struct int4_sums {
    double r2, rc, c2, hinge;
} int4_sums;

typedef struct int4_candidate {
    int scale; /* the bits of the stored number */
    int zero;
    double least; /* less than its loss */
} int4_candidate;

typedef struct int4_search {
    const tsr_best_int4 *candidates;
    const float *x, *weight; /* as given */
    size_t n;
    /* Scaled by powers of two, and padded with zeros to `padded` elements. */
    float *value, *size, *limit, *share; /* x, |x|, limit, weight */
    size_t padded;
    double unit;                 /* scaled t = t * unit */
    double sum_x2;               /* the sum of share * size^2 */
    double high, low;            /* the largest |x| of positive and of negative x */
    double most;                 /* an upper bound of the smallest loss */
    double end[2], end_share[2]; /* |x| of 3 among positive and negative x, and their weights */
    int given_scale, given_zero;
    int best_scale, best_zero; /* the best by the definition so far; scale 0: none */
    double best_loss;
    int4_candidate left[MOST_LEFT];
    size_t n_left;
    bool many; /* some candidates were compared early: their doubles were not tried */
} int4_search;

/* ---- stored scales ---- */

static inline double scale_value(const int4_search *s, int bits)
{
    return (double)(s->candidates->f16 ? tsr_f32_from_f16((uint16_t)bits) : tsr_f32_from_bf16((uint16_t)bits));
}

static inline int largest_scale(const int4_search *s)
{
    return s->candidates->f16 ? 0x7BFF : 0x7F7F;
}

/* Returns the largest scale that is at most `value`, or 1. */
static int scale_below(const int4_search *s, double value)
{
    const int most = largest_scale(s);
    if (!(value < scale_value(s, most)))
        return most;
    const float rounded = (float)value;
    int bits = s->candidates->f16 ? tsr_f16_from_f32(rounded) : tsr_bf16_from_f32(rounded);
    bits = bits < 1 ? 1 : bits > most ? most : bits;
    while (bits > 1 && scale_value(s, bits) > value)
        bits--;
    while (bits < most && scale_value(s, bits + 1) <= value)
        bits++;
    return bits;
}

/* ---- measures ---- */

/* Adds one vector. */
ALWAYS_INLINE void measure_vector(const int4_search *s, size_t i, vf inverse, vf reach, bool weighted, bool ranged,
                                  vf *r2, vf *rc, vf *hinge)
{
    const vf half = f_set1(0.5f), large = f_set1(0x1.8p23f); /* adding 0x1.8p23 rounds to an integer */
    const vf q = f_mul(f_load(s->size + i), inverse), p = f_min(q, f_load(s->limit + i));
    const vf c = f_sub(f_add(p, large), large), r = f_sub(q, c);
    const vf w = weighted ? f_load(s->share + i) : half, wr = weighted ? f_mul(w, r) : r;
    *r2 = f_fmadd(wr, r, *r2);
    *rc = f_fmadd(wr, c, *rc);
    if (!ranged)
        return;
    const vf near = f_fmadd(p, reach, f_size(f_sub(p, c))), beyond = f_sub(f_max(near, half), half);
    *hinge = weighted ? f_fmadd(w, beyond, *hinge) : f_add(*hinge, beyond);
}

ALWAYS_INLINE int4_sums measure(const int4_search *s, double t, double reach_by, bool weighted, bool ranged)
{
    const vf inverse = f_set1((float)(1 / t)), reach = f_set1((float)reach_by), zero = f_set1(0);
    int4_sums sums = {0, 0, 0, 0};
    for (size_t first = 0; first < s->padded; first += CHUNK * LANES) {
        const size_t end = s->padded - first < CHUNK * LANES ? s->padded : first + CHUNK * LANES;
        vf r2[2] = {zero, zero}, rc[2] = {zero, zero}, hinge[2] = {zero, zero};
        size_t i = first;
        for (; i + LANES < end; i += 2 * LANES) {
            measure_vector(s, i, inverse, reach, weighted, ranged, &r2[0], &rc[0], &hinge[0]);
            measure_vector(s, i + LANES, inverse, reach, weighted, ranged, &r2[1], &rc[1], &hinge[1]);
        }
        if (i < end)
            measure_vector(s, i, inverse, reach, weighted, ranged, &r2[0], &rc[0], &hinge[0]);
        sums.r2 += (double)f_sum(f_add(r2[0], r2[1]));
        sums.rc += (double)f_sum(f_add(rc[0], rc[1]));
        sums.hinge += (double)f_sum(f_add(hinge[0], hinge[1]));
    }
    /* c = q - r */
    sums.c2 = s->sum_x2 / (t * t) - sums.r2 - 2 * sums.rc;
    sums.c2 = sums.c2 > 0 ? sums.c2 : 0;
    return sums;
}

static int4_sums measure_one(const int4_search *s, double t)
{
    return s->weight != NULL ? measure(s, t, 0, true, false) : measure(s, t, 0, false, false);
}

static int4_sums measure_range(const int4_search *s, double t, double reach)
{
    return s->weight != NULL ? measure(s, t, reach, true, true) : measure(s, t, reach, false, true);
}

/* Returns t^2 P(h) / t^2. */
static inline double loss_at(const int4_sums *sums, double h)
{
    return sums->r2 - 2 * h * sums->rc + h * h * sums->c2;
}

/* Returns more than all rounding errors of loss_at: see 2. */
static inline double error_of(const int4_search *s, const int4_sums *sums, double t, double h)
{
    return 0x1p-14 * (sums->r2 + h * h * sums->c2) + 0x1p-24 * s->sum_x2 / (t * t) + 0x1p-100;
}

/* ---- candidates ---- */

static bool is_before(const int4_search *s, int scale, int zero)
{
    const bool given = scale == s->given_scale && zero == s->given_zero;
    const bool held = s->best_scale == s->given_scale && s->best_zero == s->given_zero;
    return given || (!held && (scale < s->best_scale || (scale == s->best_scale && zero < s->best_zero)));
}

/* Compares the candidates that are left by the definition. Only one needs no comparison, if nothing was compared. */
static void settle(int4_search *s, bool last)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_left; i++) {
        if (s->left[i].least <= s->most)
            s->left[n++] = s->left[i];
    }
    s->n_left = n;
    if (!last && n < MOST_LEFT)
        return;
    s->n_left = 0;
    s->many = !last;
    if (n == 1 && s->best_scale == 0) {
        s->best_scale = s->left[0].scale;
        s->best_zero = s->left[0].zero;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const int scale = s->left[i].scale, zero = s->left[i].zero;
        const double loss =
            tsr_best_int4_loss(s->x, s->weight, s->n, s->candidates, (float)scale_value(s, scale), (float)zero);
        if (s->best_scale != 0 && (loss > s->best_loss || (loss == s->best_loss && !is_before(s, scale, zero))))
            continue;
        s->best_scale = scale;
        s->best_zero = zero;
        s->best_loss = loss;
    }
}

/* Notes a candidate whose loss at least and at most is given, unless it cannot be the best. */
static void note(int4_search *s, int scale, int zero, double least, double most)
{
    if (least > s->most)
        return;
    s->most = most < s->most ? most : s->most;
    for (size_t i = 0; i < s->n_left; i++) {
        if (s->left[i].scale == scale && s->left[i].zero == zero)
            return;
    }
    if (s->n_left == MOST_LEFT)
        settle(s, false);
    s->left[s->n_left++] = (int4_candidate){scale, zero, least};
}

/* Measures a candidate with the limits that are set. Returns the scale where the loss with its codes is smallest. */
static double visit(int4_search *s, int scale, int zero)
{
    const double t = scale_value(s, scale) * s->unit;
    const int4_sums sums = measure_one(s, t);
    const double error = error_of(s, &sums, t, 0);
    note(s, scale, zero, t * t * (sums.r2 - error), t * t * (sums.r2 + error));
    return sums.c2 > 0 ? t * (1 + sums.rc / sums.c2) / s->unit : 0;
}

static void set_limits(int4_search *s, int above, int below)
{
    const vf high = f_set1((float)above), low = f_set1((float)below);
    for (size_t i = 0; i < s->padded; i += LANES)
        f_store(s->limit + i, f_where_negative(f_load(s->value + i), low, high));
}

static void set_zero_point(int4_search *s, int zero)
{
    set_limits(s, 7 - zero, 8 + zero);
}

static void set_no_limits(int4_search *s)
{
    set_limits(s, UNLIMITED, UNLIMITED);
}
