/* Measures groups under int4 scales, and sums their codes under all scales of a range, for best_int4_body.h. */
#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum {
    UNLIMITED = 16,                 /* more than any limit */
    SCALES = LANES > 8 ? LANES : 8, /* that are measured together */
    CHUNK = 64,                     /* elements whose terms are added in FP32 */
    FEW_SCALES = 32,                /* a range with so few scales of 7 mantissa bits is not measured before */
    MOST_CELLS = 512,
    MOST_LEFT = 256 /* candidates that wait for a comparison */
};

/* Groups with a smaller sum of w x^2, or where smaller scales may be the best, are left to the definition. */
#define LEAST_SUM   0x1p-60
#define LEAST_SCALE 0x1p-40f
#define ANY_LIMIT   0x1p42f /* more than |x| / LEAST_SCALE */

/* A measured scale. With its codes, the loss of t + d is loss - 2 d slope + d^2 c2. */
typedef struct int4_point {
    double t, loss, slope, c2;
} int4_point;

/* The sums of w |x| c and w c^2 for codes c. */
typedef double int4_sums __attribute__((vector_size(16)));

typedef struct int4_candidate {
    double t;
    int zero;
    double loss; /* a lower bound, until losses are computed */
} int4_candidate;

/* Elements, weights and scales are multiplied by powers of two, so that the largest |x| and weight are 1 to 2. Scales of
 * type uint32_t are the bits of FP32 numbers. */
typedef struct int4_search {
    const tsr_best_int4 *candidates;
    const float *x, *weight; /* as given */
    size_t n;
    /* x, |x|, limit, weight; x is 0 where the weight is. LANES zeros follow. `part` holds some of x and weight. */
    float *value, *size, *limit, *share, *part, *part_share;
    double unit;      /* scaled t = t * unit */
    double high, low; /* the largest |x| of positive and of negative x */
    double sum_x2;    /* the sum of w x^2 */
    double error;     /* more than the rounding errors of FP64 sums */
    double most;      /* an upper bound of the smallest loss */
    int least_normal; /* the FP32 exponent of the smallest normal scale */
    /* Under the scale `top` the codes have the sums `start`. Below it, an element of size next_x gets its next code, c,
     * from next_scale on. Then c^2 grows by next_square. */
    uint32_t top;
    int4_sums start;
    float *next_scale, *next_x, *next_square, *next_share;
    size_t n_next;
    int4_candidate left[MOST_LEFT];
    size_t n_left;
    bool many; /* all candidates are compared by the definition: `left` is full, or scales are too small */
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

/* Returns how many of the 23 bits of an FP32 mantissa a stored scale lacks. */
static int stored_shift(const int4_search *s)
{
    return s->candidates->f16 ? 13 : 16;
}

/* Returns the bits that are 0 in scales of this size that can be stored. */
static inline uint32_t unstored_bits(const int4_search *s, uint32_t scale)
{
    const int missing = s->least_normal - (int)(scale >> 23), bits = stored_shift(s) + (missing > 0 ? missing : 0);
    return bits <= 23 ? (1u << bits) - 1 : UINT32_MAX;
}

/* Returns whether a scale can be stored, if it is not too large. */
static inline bool is_stored(const int4_search *s, uint32_t scale)
{
    return (scale & unstored_bits(s, scale)) == 0 && scale > 0;
}

static int least_zero(const int4_search *s)
{
    return s->candidates->zero_points ? -8 : 0;
}

static int most_zero(const int4_search *s)
{
    return s->candidates->zero_points ? 7 : 0;
}

/* ---- limits ---- */

static void set_limits(int4_search *s, float above, float below)
{
    const vf high = f_set1(above), low = f_set1(below);
    for (size_t i = 0; i < s->n; i += LANES)
        f_store(s->limit + i, f_where_negative(f_load(s->value + i), low, high));
}

static void set_zero_point(int4_search *s, int zero)
{
    set_limits(s, (float)(7 - zero), (float)(8 + zero));
}

static void set_no_limits(int4_search *s)
{
    set_limits(s, UNLIMITED, UNLIMITED);
}

/* ---- measures ---- */

/* Sums of one vector of codes c of q: of w r^2 and w r c, r = q - c. */
typedef struct int4_terms {
    vf r2, rc;
} int4_terms;

/* Adds the terms of codes. Returns the codes. */
ALWAYS_INLINE vf add_terms(vf q, vf limit, vf w, bool weighted, int4_terms *sums)
{
    const vf large = f_set1(0x1.8p23f); /* adding it rounds to an integer */
    const vf c = f_sub(f_add(f_min(q, limit), large), large), r = f_sub(q, c), wr = weighted ? f_mul(w, r) : r;
    sums->r2 = f_fmadd(wr, r, sums->r2);
    sums->rc = f_fmadd(wr, c, sums->rc);
    return c;
}

/* Sets a point from the sums of r^2 and r c. */
static void set_point(const int4_search *s, double t, double r2, double rc, int4_point *point)
{
    const double c2 = s->sum_x2 / (t * t) - r2 - 2 * rc; /* c = q - r */
    *point = (int4_point){t, t * t * r2, t * rc, c2 > 0 ? c2 : 0};
}

/* Adds the terms of a chunk to the sums of each lane. */
ALWAYS_INLINE void add_chunk(const int4_terms *even, const int4_terms *odd, double r2[LANES], double rc[LANES])
{
    float sum_r2[LANES], sum_rc[LANES];
    f_store(sum_r2, f_add(even->r2, odd->r2));
    f_store(sum_rc, f_add(even->rc, odd->rc));
    for (size_t l = 0; l < LANES; l++) {
        r2[l] += (double)sum_r2[l];
        rc[l] += (double)sum_rc[l];
    }
}

/* Measures LANES scales, each in a lane. */
ALWAYS_INLINE void measure_lanes(const int4_search *s, const float *t, bool weighted, int4_point *points)
{
    const vf zero = f_set1(0), inverse = f_div(f_set1(1), f_load(t));
    double r2[LANES] = {0}, rc[LANES] = {0};
    for (size_t first = 0; first < s->n; first += CHUNK) {
        const size_t end = s->n - first < CHUNK ? s->n : first + CHUNK;
        int4_terms even = {zero, zero}, odd = {zero, zero};
        for (size_t i = first; i < end; i += 2) { /* a zero follows */
            const vf w = weighted ? f_set1(s->share[i]) : zero, next_w = weighted ? f_set1(s->share[i + 1]) : zero;
            add_terms(f_mul(f_set1(s->size[i]), inverse), f_set1(s->limit[i]), w, weighted, &even);
            add_terms(f_mul(f_set1(s->size[i + 1]), inverse), f_set1(s->limit[i + 1]), next_w, weighted, &odd);
        }
        add_chunk(&even, &odd, r2, rc);
    }
    for (size_t l = 0; l < LANES; l++)
        set_point(s, (double)t[l], r2[l], rc[l], &points[l]);
}

#ifdef f_pair
/* Measures LANES / 2 scales, each in two lanes, which take elements in turn. */
ALWAYS_INLINE void measure_pairs(const int4_search *s, const float *t, bool weighted, int4_point *points)
{
    float twice[LANES];
    for (size_t l = 0; l < LANES; l++)
        twice[l] = t[l / 2];
    const vf zero = f_set1(0), inverse = f_div(f_set1(1), f_load(twice));
    double r2[LANES] = {0}, rc[LANES] = {0};
    for (size_t first = 0; first < s->n; first += CHUNK) {
        const size_t end = s->n - first < CHUNK ? s->n : first + CHUNK;
        int4_terms even = {zero, zero}, odd = {zero, zero};
        for (size_t i = first; i < end; i += 4) { /* zeros follow */
            const vf w = weighted ? f_pair(s->share + i) : zero, next_w = weighted ? f_pair(s->share + i + 2) : zero;
            add_terms(f_mul(f_pair(s->size + i), inverse), f_pair(s->limit + i), w, weighted, &even);
            add_terms(f_mul(f_pair(s->size + i + 2), inverse), f_pair(s->limit + i + 2), next_w, weighted, &odd);
        }
        add_chunk(&even, &odd, r2, rc);
    }
    for (size_t l = 0; l < LANES; l += 2)
        set_point(s, (double)t[l / 2], r2[l] + r2[l + 1], rc[l] + rc[l + 1], &points[l / 2]);
}
#endif

/* Returns how many scales are measured together. With zero points there are many measures of narrow ranges. */
static int measured_scales(const int4_search *s)
{
    return s->candidates->zero_points && SCALES > 8 ? 8 : SCALES;
}

/* Measures that many scales with the limits that are set. */
static void measure(const int4_search *s, const float *t, int4_point *points)
{
#ifdef f_pair
    if (measured_scales(s) == LANES / 2) {
        if (s->weight != NULL)
            measure_pairs(s, t, true, points);
        else
            measure_pairs(s, t, false, points);
        return;
    }
#endif
    for (size_t i = 0; i < SCALES; i += LANES) {
        if (s->weight != NULL)
            measure_lanes(s, t + i, true, points + i);
        else
            measure_lanes(s, t + i, false, points + i);
    }
}

/* ---- candidates ---- */

/* Returns more than the rounding errors of a loss: see 2. */
static inline double error_of(const int4_search *s, double loss)
{
    return 0x1p-14 * fabs(loss) + s->error;
}

/* Notes a candidate with its loss, unless it cannot be the best. */
static void note(int4_search *s, double t, int zero, double loss)
{
    const double least = loss - error_of(s, loss), most = loss + error_of(s, loss);
    s->most = most < s->most ? most : s->most;
    if (least > s->most)
        return;
    if (s->n_left == MOST_LEFT) {
        size_t n = 0;
        for (size_t i = 0; i < MOST_LEFT; i++) {
            if (s->left[i].loss <= s->most)
                s->left[n++] = s->left[i];
        }
        s->n_left = n;
    }
    s->many = s->many || s->n_left == MOST_LEFT;
    if (!s->many)
        s->left[s->n_left++] = (int4_candidate){t, zero, least};
}

/* ---- ranges of scales ---- */

typedef struct int4_range {
    uint32_t first, last;
} int4_range;

/* Returns whether no scale between a and a larger one, b, can be the best: see 1. */
static inline bool is_excluded(const int4_search *s, const int4_point *a, const int4_point *b)
{
    const double width = b->t - a->t, part = a->t * width, growth = width * width * b->c2;
    const double gain = b->loss + 2 * width * b->slope + growth - a->loss; /* all times part */
    const double slope = gain * b->t - 2 * b->slope * part, curve = gain + b->c2 * part;
    const double error = 0x1p-10 * (a->loss + b->loss + growth) + 0x1p-20 * s->sum_x2;
    const double over_a = a->loss - error - s->most, over_b = b->loss - error - s->most;
    return b->t <= 2 * a->t && over_a > 0 && over_b > 0 && (slope <= 0 || 4 * over_b * curve * part > slope * slope);
}

/* Returns the place of a measured scale between `low` and the last one, 0 to 1. Where 8 scales are measured once, these
 * places leave the fewest codes to list, on average over normal and heavy-tailed groups. */
static inline float place_of(const int4_search *s, float part)
{
    const bool once = s->n > 64 && !s->candidates->zero_points && SCALES == 8;
    return once ? part * (0.4f + 0.6f * part * part * part) : part * part;
}

/* Measures scales from the last one of a range down to `low`, and leaves out what is excluded between them. `attained`:
 * their losses are those of candidates. `dense`: more of them near `low`. */
static void measure_range(int4_search *s, bool attained, bool dense, float low, int4_range *range)
{
    float t[SCALES];
    int4_point points[SCALES];
    const int n = measured_scales(s);
    const float last = tsr_f32_from_bits(range->last), first = tsr_f32_from_bits(range->first);
    for (int i = 0; i < n; i++) {
        const float part = (float)(n - 1 - i) / (float)(n - 1);
        const uint32_t scale = tsr_f32_bits(low + (last - low) * (dense ? place_of(s, part) : part));
        const uint32_t below = scale & ~unstored_bits(s, scale);
        t[i] = tsr_f32_from_bits(below > 0 ? below : scale);
    }
    measure(s, t, points);
    for (int i = 0; attained && i < n; i++) {
        const double most = points[i].loss * (1 + 0x1p-14) + 0x1p-20 * s->sum_x2;
        if (most < s->most && is_stored(s, tsr_f32_bits(t[i])))
            s->most = most;
    }
    int from = 0, to = n - 1;
    while (from < to && (t[from + 1] == t[from] || is_excluded(s, &points[from + 1], &points[from])))
        from++;
    if (from > 0)
        range->last = tsr_f32_bits(t[from]);
    if (t[to] > first)
        return;
    if (from == to && to > 0)
        range->last = 0;
    while (to > from && (t[to] == t[to - 1] || is_excluded(s, &points[to], &points[to - 1])))
        to--;
    if (to < n - 1)
        range->first = tsr_f32_bits(t[to]);
}

/* Adds, over the elements that t clips by d, w d (2 |x| - d) and w d limit. */
static void add_clipped(const int4_search *s, double t, double *costs, double *slopes)
{
    const vf at = f_set1((float)t), zero = f_set1(0);
    for (size_t first = 0; first < s->n; first += CHUNK * LANES) {
        const size_t end = s->n - first < CHUNK * LANES ? s->n : first + CHUNK * LANES;
        vf cost = zero, slope = zero;
        for (size_t i = first; i < end; i += LANES) {
            const vf size = f_load(s->size + i), limit = f_load(s->limit + i);
            const vf beyond = f_max(f_fnmadd(limit, at, size), zero);
            const vf part = s->weight != NULL ? f_mul(f_load(s->share + i), beyond) : beyond;
            cost = f_fmadd(part, f_sub(f_add(size, size), beyond), cost);
            slope = f_fmadd(limit, part, slope);
        }
        *costs += (double)f_sum(cost);
        *slopes += (double)f_sum(slope);
    }
}

/* Returns a scale below which clipping alone costs more than the best loss, with the limits that are set: see 3. Begins
 * at t. */
static double clipped_below(const int4_search *s, double t)
{
    double found = 0;
    while (t > (double)LEAST_SCALE) {
        double cost = 0, slope = 0;
        add_clipped(s, t, &cost, &slope);
        const double over = cost * (1 - 0x1p-16) - s->most;
        if (over > 0 && slope < 0x1p-120)
            return INFINITY;
        const double next = over > 0 ? over / (2 * slope) * (1 - 0x1p-16) : 0;
        found = next > found ? next : found;
        if (next > 0.8 * t)
            return found;
        t = next > 0 ? next : t / 4;
    }
    return found;
}
