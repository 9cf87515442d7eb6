/* Loads groups and measures the losses of int4 scales and zero points, for best_int4_body.h, which has the proofs. */
#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum {
    GRID = 16,                      /* scales and zero points that are measured together, at most */
    VECTORS = LANES < GRID ? 2 : 1, /* vectors that are measured together, to wait less for additions */
    MOST_CODE = 15,                 /* the largest limit of a zero point */
    BLOCK = 4,                      /* limits that are added together */
    MOST_OPEN = 512,
    MOST_LEFT = 256 /* candidates that wait for a comparison */
};

/* Groups with a smaller sum of w x^2, or where smaller scales may be the best, are left to the definition. */
#define LEAST_SUM   0x1p-60
#define LEAST_SCALE 0x1p-40
#define UNDERFLOW   0x1p-120 /* more than the errors of underflow */

/* Some |x| and, if weighted, their weights. LANES zeros follow. */
typedef struct int4_part {
    float *x, *share;
    size_t n;
} int4_part;

typedef struct int4_candidate {
    double t;
    int zero;
    double loss; /* a lower bound, until losses are computed */
} int4_candidate;

/* The scales between a and b with a zero point. */
typedef struct int4_interval {
    float a, b, of_a, of_b; /* the losses of a and b are of_a and of_b */
    int zero;
} int4_interval;

/* Elements, weights and scales are multiplied by powers of two, so that the largest |x| and weight are 1 to 2. */
typedef struct int4_search {
    const tsr_best_int4 *candidates;
    const float *x, *weight; /* as given */
    size_t n;
    float *value, *share;        /* x and weight; x is 0 where the weight is. LANES zeros follow */
    int4_part above, below, few; /* the elements above 0, those below 0, and some of either */
    double unit;                 /* scaled t = t * unit */
    double high, low;            /* the largest |x| of positive and of negative x */
    float sum_x2;                /* more than the sum of w x^2 */
    float rounding;              /* 1 and more than the relative errors of two measures: see 2 */
    double most;                 /* an upper bound of the smallest loss */
    int least_normal;            /* the FP32 exponent of the smallest normal scale */
    int4_interval open[MOST_OPEN];
    size_t n_open;
    int4_candidate left[MOST_LEFT];
    size_t n_left;
    bool many; /* all candidates are compared by the definition: too many are left, or scales are too small */
} int4_search;

/* ---- scales ---- */

static double scale_value(const tsr_best_int4 *candidates, int bits)
{
    return (double)(candidates->f16 ? tsr_f32_from_f16((uint16_t)bits) : tsr_f32_from_bf16((uint16_t)bits));
}

static int largest_scale(const tsr_best_int4 *candidates)
{
    return candidates->f16 ? 0x7BFF : 0x7F7F;
}

/* Returns the largest scale up to t that can be stored, or 0. t is not above all scales. */
static inline float stored_scale(const int4_search *s, float t)
{
    const uint32_t scale = tsr_f32_bits(t);
    const int missing = s->least_normal - (int)(scale >> 23), bits = s->candidates->f16 ? 13 : 16;
    const int unstored = bits + (missing > 0 ? missing : 0);
    return unstored > 23 ? 0 : tsr_f32_from_bits(scale >> unstored << unstored);
}

/* Returns the largest scale up to t that can be stored, or the smallest of all. */
static inline float usable_scale(const int4_search *s, float t)
{
    const float scale = stored_scale(s, t);
    return scale > 0 ? scale : (float)(scale_value(s->candidates, 1) * s->unit);
}

static int least_zero(const int4_search *s)
{
    return s->candidates->zero_points ? -8 : 0;
}

static int most_zero(const int4_search *s)
{
    return s->candidates->zero_points ? 7 : 0;
}

/* ---- elements ---- */

/* Returns the exponent of a positive number. */
static inline int exponent_of(float x)
{
    return x >= 0x1p-126f ? (int)(tsr_f32_bits(x) >> 23) - 127 : ilogbf(x);
}

static inline float power(int exponent)
{
    return tsr_f32_from_bits((uint32_t)(exponent + 127) << 23);
}

/* Splits x by signs, and sets the sum of w x^2. */
ALWAYS_INLINE void split(int4_search *s, bool weighted)
{
    const vf zero = f_set1(0);
    vf squares = zero;
    size_t above = 0, below = 0;
    for (size_t i = 0; i < s->n; i += LANES) {
        const vf x = f_load(s->value + i), w = weighted ? f_load(s->share + i) : zero;
        const unsigned is_above = f_less(zero, x), is_below = f_less(x, zero);
        f_keep(s->above.x + above, x, is_above);
        f_keep(s->below.x + below, f_sub(zero, x), is_below);
        if (weighted) {
            f_keep(s->above.share + above, w, is_above);
            f_keep(s->below.share + below, w, is_below);
        }
        above += (size_t)__builtin_popcount(is_above);
        below += (size_t)__builtin_popcount(is_below);
        squares = f_fmadd(weighted ? f_mul(w, x) : x, x, squares);
    }
    s->above.n = above;
    s->below.n = below;
    s->sum_x2 = f_sum(squares) * s->rounding;
    f_store(s->above.x + above, zero);
    f_store(s->below.x + below, zero);
    if (weighted) {
        f_store(s->above.share + above, zero);
        f_store(s->below.share + below, zero);
    }
}

/* Copies the group. Returns false if all losses are equal. */
static bool load_group(int4_search *s, float *scratch)
{
    const size_t n = s->n, each = n + LANES;
    const bool weighted = s->weight != NULL;
    s->value = scratch;
    s->share = scratch + each;
    s->above = (int4_part){scratch + 2 * each, weighted ? scratch + 3 * each : NULL, 0};
    s->below = (int4_part){scratch + 4 * each, weighted ? scratch + 5 * each : NULL, 0};
    s->few = (int4_part){scratch + 6 * each, weighted ? scratch + 7 * each : NULL, 0};
    const vf zero = f_set1(0);
    float most_weight = 0;
    for (size_t i = 0; i < n; i++) {
        s->value[i] = !weighted || s->weight[i] > 0 ? s->x[i] : 0;
        if (weighted)
            most_weight = s->weight[i] > most_weight ? s->weight[i] : most_weight;
    }
    f_store(s->value + n, zero);
    vf highest = zero, lowest = zero;
    for (size_t i = 0; i < n; i += LANES) {
        const vf x = f_load(s->value + i);
        highest = f_max(highest, x);
        lowest = f_max(lowest, f_sub(zero, x));
    }
    const float high = f_largest(highest), low = f_largest(lowest), amax = high > low ? high : low;
    if (amax == 0)
        return false;
    if (weighted) {
        const int raise = -exponent_of(most_weight), part = raise / 2;
        const float one = power(part), other = power(raise - part);
        for (size_t i = 0; i < n; i++)
            s->share[i] = s->weight[i] * one * other;
        f_store(s->share + n, zero);
    }
    const int exponent = -exponent_of(amax), half = exponent / 2; /* 2^exponent may exceed FP32 */
    s->unit = (double)power(half) * (double)power(exponent - half);
    s->high = (double)high * s->unit;
    s->low = (double)low * s->unit;
    s->least_normal = exponent + (s->candidates->f16 ? -14 : -126) + 127;
    const vf first = f_set1(power(half)), second = f_set1(power(exponent - half));
    for (size_t i = 0; i < n; i += LANES)
        f_store(s->value + i, f_mul(f_mul(f_load(s->value + i), first), second));
    if (weighted)
        split(s, true);
    else
        split(s, false);
    return true;
}

/* ---- measures ---- */

/* Scales with the limits on each side of 0, and their losses. LANES losses may follow. */
typedef struct int4_pairs {
    float t[GRID], above[GRID], below[GRID], loss[GRID + LANES];
} int4_pairs;

/* Adds w e^2 of an element with the nearest code up to a limit. */
ALWAYS_INLINE vf add_error(vf x, vf t, vf inverse, vf limit, vf w, bool weighted, vf sum)
{
    const vf c = f_round(f_min(f_mul(x, inverse), limit)), e = f_fnmadd(c, t, x);
    return f_fmadd(weighted ? f_mul(w, e) : e, e, sum);
}

/* Adds the errors of a part under some vectors of scales. */
ALWAYS_INLINE void add_errors(const int4_part *part, const float *scales, const float *limits, int vectors,
                              bool weighted, vf sums[VECTORS])
{
    vf t[VECTORS], inverse[VECTORS], limit[VECTORS], odd[VECTORS];
    for (int v = 0; v < vectors; v++) {
        t[v] = f_load(scales + v * LANES);
        inverse[v] = f_div(f_set1(1), t[v]);
        limit[v] = f_load(limits + v * LANES);
        odd[v] = f_set1(0);
    }
    for (size_t i = 0; i < part->n; i += 2) { /* a zero follows */
        const vf x = f_set1(part->x[i]), w = weighted ? f_set1(part->share[i]) : x;
        const vf next = f_set1(part->x[i + 1]), next_w = weighted ? f_set1(part->share[i + 1]) : x;
        for (int v = 0; v < vectors; v++) {
            sums[v] = add_error(x, t[v], inverse[v], limit[v], w, weighted, sums[v]);
            odd[v] = add_error(next, t[v], inverse[v], limit[v], next_w, weighted, odd[v]);
        }
    }
    for (int v = 0; v < vectors; v++)
        sums[v] = f_add(sums[v], odd[v]);
}

ALWAYS_INLINE void measure_vectors(const int4_search *s, size_t at, int vectors, bool weighted, int4_pairs *p)
{
    vf sums[VECTORS];
    for (int v = 0; v < vectors; v++)
        sums[v] = f_set1(0);
    add_errors(&s->above, p->t + at, p->above + at, vectors, weighted, sums);
    add_errors(&s->below, p->t + at, p->below + at, vectors, weighted, sums);
    for (int v = 0; v < vectors; v++)
        f_store(p->loss + at + v * LANES, sums[v]);
}

ALWAYS_INLINE void measure_pairs(const int4_search *s, size_t n, bool weighted, int4_pairs *p)
{
    size_t at = 0;
    for (; at + LANES < n; at += VECTORS * LANES)
        measure_vectors(s, at, VECTORS, weighted, p);
    if (at < n)
        measure_vectors(s, at, 1, weighted, p);
}

/* Measures the first n pairs. Those behind them, up to a multiple of LANES, are any. */
static void measure(const int4_search *s, size_t n, int4_pairs *p)
{
    if (s->weight != NULL)
        measure_pairs(s, n, true, p);
    else
        measure_pairs(s, n, false, p);
}

/* Returns the loss of one scale, from LANES elements at once. */
static float loss_of(const int4_search *s, float scale, int above, int below)
{
    const vf t = f_set1(scale), inverse = f_set1(1 / scale);
    vf sum = f_set1(0);
    for (int side = 0; side < 2; side++) {
        const int4_part *const part = side == 0 ? &s->above : &s->below;
        const vf limit = f_set1((float)(side == 0 ? above : below));
        for (size_t i = 0; i < part->n; i += LANES) { /* zeros follow */
            const vf x = f_load(part->x + i), w = s->weight != NULL ? f_load(part->share + i) : x;
            sum = add_error(x, t, inverse, limit, w, s->weight != NULL, sum);
        }
    }
    return f_sum(sum);
}

/* ---- limits ---- */

/* Keeps the elements above a limit. `to` may be `from`. */
ALWAYS_INLINE void keep_above(const int4_part *from, float limit, bool weighted, int4_part *to)
{
    const vf least = f_set1(limit), zero = f_set1(0);
    size_t n = 0;
    for (size_t i = 0; i < from->n; i += LANES) { /* zeros follow */
        const vf x = f_load(from->x + i), w = weighted ? f_load(from->share + i) : zero;
        const unsigned more = f_less(least, x);
        f_keep(to->x + n, x, more);
        if (weighted)
            f_keep(to->share + n, w, more);
        n += (size_t)__builtin_popcount(more);
    }
    f_store(to->x + n, zero);
    if (weighted)
        f_store(to->share + n, zero);
    to->n = n;
}

/* Differences of the losses of GRID scales with each limit from those with MOST_CODE. */
typedef float int4_excess[MOST_CODE + BLOCK][GRID];

/* Sets the excess of limits from `least` on under the first n scales, for elements on one side of 0. The scales do not
 * decrease: see 4. */
ALWAYS_INLINE void add_excess(const int4_part *side, const float *scales, int n, int least, bool weighted,
                              int4_part *few, int4_excess excess)
{
    const vf zero = f_set1(0);
    int k = least;
    keep_above(side, scales[0] * ((float)k + 0.499f), weighted, few);
    while (k < MOST_CODE && few->n > 0) {
        for (int at = 0; at < n; at += LANES) {
            const vf t = f_load(scales + at);
            vf sums[BLOCK] = {zero, zero, zero, zero};
            for (size_t i = 0; i < few->n; i++) {
                const vf x = f_set1(few->x[i]), w = weighted ? f_set1(few->share[i]) : x;
                for (int j = 0; j < BLOCK; j++) {
                    const vf beyond = f_max(f_fnmadd(f_set1((float)(k + j) + 0.5f), t, x), zero);
                    sums[j] = weighted ? f_fmadd(w, beyond, sums[j]) : f_add(beyond, sums[j]);
                }
            }
            for (int j = 0; j < BLOCK; j++)
                f_store(excess[k + j] + at, f_mul(f_add(t, t), sums[j]));
        }
        k += BLOCK;
        keep_above(few, scales[0] * ((float)k + 0.499f), weighted, few);
    }
    for (k = k < MOST_CODE ? k : MOST_CODE; k <= MOST_CODE; k++)
        memset(excess[k], 0, sizeof excess[k]);
    for (int at = 0; at < n; at += LANES) {
        vf sum = zero;
        for (k = MOST_CODE - 1; k >= least; k--) {
            sum = f_add(sum, f_load(excess[k] + at));
            f_store(excess[k] + at, sum);
        }
    }
}

/* Returns a bound of limit * t on one side of 0, whose largest |x| is `peak`. Below it, clipping costs more than the
 * best loss: see 3. */
static double clip_bound(const int4_search *s, const int4_part *side, double peak)
{
    double found = 0, at = 0.66 * peak;
    while (at > 0) {
        const vf end = f_set1((float)at), zero = f_set1(0);
        vf cost = zero, slope = zero;
        for (size_t i = 0; i < side->n; i += LANES) {
            const vf x = f_load(side->x + i), beyond = f_max(f_sub(x, end), zero);
            const vf part = s->weight != NULL ? f_mul(f_load(side->share + i), beyond) : beyond;
            cost = f_fmadd(part, f_sub(f_add(x, x), beyond), cost);
            slope = f_add(slope, part);
        }
        const double over = (double)f_sum(cost) / (double)s->rounding - s->most;
        const double next = over > 0 ? over / (2 * (double)f_sum(slope) * (double)s->rounding) : 0;
        found = next > found ? next : found;
        if (next > 0.9 * at && next < 1.1 * at)
            return found;
        at = next > 0 ? next : at > LEAST_SCALE ? at / 4 : 0;
    }
    return found;
}
