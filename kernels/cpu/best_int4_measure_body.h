/* Measures groups under int4 scales, and sums their codes under all scales of a range, for best_int4_body.h. */
#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum {
    UNLIMITED = 16,                 /* more than any limit */
    SCALES = LANES > 8 ? LANES : 8, /* that are measured together */
    CHUNK = 64,                     /* elements whose terms are added in FP32 */
    FEW_SCALES = 64,                /* a range with so few scales of 7 mantissa bits is not measured before */
    MOST_CELLS = 512,
    MOST_LEFT = 256 /* candidates that wait for a comparison */
};

/* Groups with a smaller sum of w x^2, or where smaller scales may be the best, are left to the definition. */
#define LEAST_SUM   0x1p-60
#define LEAST_SCALE 0x1p-40f
#define ANY_LIMIT   0x1p42f /* more than |x| / LEAST_SCALE */

/* Measured scales. With the codes of t, the loss of t + d is loss - 2 d slope + d^2 c2. */
typedef struct int4_points {
    double t[SCALES + 1], loss[SCALES + 1], slope[SCALES + 1], c2[SCALES + 1]; /* the last one is repeated */
} int4_points;

/* The sums of w |x| c and w c^2 for codes c. */
typedef double int4_sums __attribute__((vector_size(16)));

typedef struct int4_candidate {
    double t;
    int zero;
    double loss; /* a lower bound, until losses are computed */
} int4_candidate;

/* Elements, weights and scales are multiplied by powers of two, so that the largest |x| and weight are 1 to 2. Scales
 * of type uint32_t are the bits of FP32 numbers. */
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

/* Adds the terms of codes. */
ALWAYS_INLINE void add_terms(vf q, vf limit, vf w, bool weighted, int4_terms *sums)
{
    const vf c = f_round(f_min(q, limit)), r = f_sub(q, c), wr = weighted ? f_mul(w, r) : r;
    sums->r2 = f_fmadd(wr, r, sums->r2);
    sums->rc = f_fmadd(wr, c, sums->rc);
}

/* Measured scales: t, 1 / t, and the sums of w q^2, w r^2 and w r c. */
typedef struct int4_measures {
    float t[SCALES], inverse[SCALES];
    double q2[SCALES], r2[SCALES], rc[SCALES];
} int4_measures;

/* Some elements and, if weighted, their weights. LANES zeros follow. */
typedef struct int4_part {
    float *x, *share;
    size_t n;
} int4_part;

/* The zero points from least to most. */
typedef struct int4_zeros {
    int least, most;
} int4_zeros;

/* The sums of w r^2 and w r c under LANES scales. */
typedef struct int4_lanes {
    vd r2[HALVES], rc[HALVES];
} int4_lanes;

/* Adds the terms of a chunk. */
ALWAYS_INLINE void add_chunk(const int4_terms *even, const int4_terms *odd, int4_lanes *sums)
{
    const vf r2 = f_add(even->r2, odd->r2), rc = f_add(even->rc, odd->rc);
    for (int half = 0; half < HALVES; half++) {
        sums->r2[half] += f_widen(r2, half);
        sums->rc[half] += f_widen(rc, half);
    }
}

/* Measures LANES scales, each in a lane, with the limits that are set. */
ALWAYS_INLINE void measure_lanes(const int4_search *s, size_t lanes, bool weighted, int4_measures *m)
{
    const vf zero = f_set1(0), inverse = f_load(m->inverse + lanes);
    int4_lanes sums;
    for (int half = 0; half < HALVES; half++)
        sums.r2[half] = sums.rc[half] = d_set1(0);
    for (size_t first = 0; first < s->n; first += CHUNK) {
        const size_t end = s->n - first < CHUNK ? s->n : first + CHUNK;
        int4_terms even = {zero, zero}, odd = {zero, zero};
        for (size_t i = first; i < end; i += 2) { /* a zero follows */
            const vf w = weighted ? f_set1(s->share[i]) : zero, next_w = weighted ? f_set1(s->share[i + 1]) : zero;
            add_terms(f_mul(f_set1(s->size[i]), inverse), f_set1(s->limit[i]), w, weighted, &even);
            add_terms(f_mul(f_set1(s->size[i + 1]), inverse), f_set1(s->limit[i + 1]), next_w, weighted, &odd);
        }
        add_chunk(&even, &odd, &sums);
    }
    for (size_t half = 0; half < HALVES; half++) {
        d_store(m->r2 + lanes + half * LANES / HALVES, sums.r2[half]);
        d_store(m->rc + lanes + half * LANES / HALVES, sums.rc[half]);
    }
}

/* Measures the scales with the limits that are set. */
static void measure(const int4_search *s, int4_measures *m)
{
    for (int i = 0; i < SCALES; i++) {
        const double t = (double)m->t[i];
        m->inverse[i] = 1 / m->t[i];
        m->q2[i] = s->sum_x2 / (t * t);
    }
    for (size_t i = 0; i < SCALES; i += LANES) {
        if (s->weight != NULL)
            measure_lanes(s, i, true, m);
        else
            measure_lanes(s, i, false, m);
    }
}

/* ---- zero points ---- */

/* Keeps the elements that get codes beyond the limits of any of some zero points under the smallest measured scale. */
static int4_part keep_clipped(const int4_search *s, const int4_part *from, const int4_measures *m, int4_zeros zeros,
                              int4_part to)
{
    const float t = m->t[SCALES - 1]; /* codes change where x / t is k + 1/2, but for rounding */
    const vf up = f_set1(t * (7.499f - (float)zeros.most)), down = f_set1(t * (8.499f + (float)zeros.least));
    to.n = 0;
    for (size_t i = 0; i < from->n; i += LANES) { /* zeros follow */
        const vf x = f_load(from->x + i);
        const unsigned clipped = f_less(f_where_negative(x, down, up), f_size(x));
        f_keep(to.x + to.n, x, clipped);
        if (s->weight != NULL)
            f_keep(to.share + to.n, f_load(from->share + i), clipped);
        to.n += (size_t)__builtin_popcount(clipped);
    }
    f_store(to.x + to.n, f_set1(0));
    if (s->weight != NULL)
        f_store(to.share + to.n, f_set1(0));
    return to;
}

/* Adds what a limit changes: the code c of q without limits becomes k, and r = q - c becomes q - k. */
ALWAYS_INLINE void add_limited(vf q, vf limit, vf w, bool weighted, int4_terms *sums)
{
    const vf c = f_round(f_min(q, f_set1(UNLIMITED))), k = f_min(c, limit), both = f_add(c, k), fewer = f_sub(c, k);
    const vf part = weighted ? f_mul(w, fewer) : fewer;
    sums->r2 = f_fmadd(part, f_sub(f_add(q, q), both), sums->r2);
    sums->rc = f_fmadd(part, f_sub(both, q), sums->rc);
}

/* Sets the points of LANES scales: see set_points. */
ALWAYS_INLINE void set_lanes(const int4_measures *m, const int4_part *clipped, int zero_point, size_t lanes,
                             bool weighted, int4_points *points)
{
    const vf zero = f_set1(0), t = f_load(m->t + lanes), inverse = f_load(m->inverse + lanes);
    const vf up = f_set1((float)(7 - zero_point)), down = f_set1((float)(8 + zero_point));
    int4_lanes sums;
    for (size_t half = 0; half < HALVES; half++) {
        sums.r2[half] = d_load(m->r2 + lanes + half * LANES / HALVES);
        sums.rc[half] = d_load(m->rc + lanes + half * LANES / HALVES);
    }
    for (size_t first = 0; first < clipped->n; first += CHUNK) {
        const size_t end = clipped->n - first < CHUNK ? clipped->n : first + CHUNK;
        int4_terms even = {zero, zero}, odd = {zero, zero};
        for (size_t i = first; i < end; i += 2) { /* a zero follows */
            const vf x = f_set1(clipped->x[i]), next = f_set1(clipped->x[i + 1]);
            const vf w = weighted ? f_set1(clipped->share[i]) : zero,
                     next_w = weighted ? f_set1(clipped->share[i + 1]) : zero;
            add_limited(f_mul(f_size(x), inverse), f_where_negative(x, down, up), w, weighted, &even);
            add_limited(f_mul(f_size(next), inverse), f_where_negative(next, down, up), next_w, weighted, &odd);
        }
        add_chunk(&even, &odd, &sums);
    }
    for (size_t half = 0; half < HALVES; half++) {
        const size_t at = lanes + half * LANES / HALVES;
        const vd scale = f_widen(t, half), r2 = sums.r2[half], rc = sums.rc[half];
        d_store(points->t + at, scale);
        d_store(points->loss + at, scale * scale * r2);
        d_store(points->slope + at, scale * rc);
        d_store(points->c2 + at, d_load(m->q2 + at) - r2 - rc - rc); /* c = q - r */
    }
}

/* Sets points from measures. With a part, they are measures without limits, and become those of a zero point that clips
 * only elements of that part. */
static void set_points(const int4_search *s, const int4_measures *m, const int4_part *clipped, int zero,
                       int4_points *points)
{
    for (size_t i = 0; i < SCALES; i += LANES) {
        if (s->weight != NULL)
            set_lanes(m, clipped, zero, i, true, points);
        else
            set_lanes(m, clipped, zero, i, false, points);
    }
    points->t[SCALES] = points->t[SCALES - 1];
    points->loss[SCALES] = points->loss[SCALES - 1];
    points->slope[SCALES] = points->slope[SCALES - 1];
    points->c2[SCALES] = points->c2[SCALES - 1];
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

/* Sets excluded[i] to 1 if no scale between i + 1 and i can be the best, else to 0: see 1. */
static void exclude_ranges(const int4_search *s, const int4_points *points, int64_t excluded[SCALES])
{
    const double most = s->most + 0x1p-20 * s->sum_x2;
    for (int i = 0; i < SCALES; i++) { /* without branches, for the compiler to use vectors */
        const double a = points->t[i + 1], b = points->t[i], width = b - a, part = a * width;
        const double of_a = points->loss[i + 1], of_b = points->loss[i], down = points->slope[i];
        const double c2 = points->c2[i], growth = width * width * c2;
        const double gain = of_b + 2 * width * down + growth - of_a; /* all times part */
        const double slope = gain * b - 2 * down * part, curve = gain + c2 * part;
        const double above = most + 0x1p-10 * (of_a + of_b + growth), over_a = of_a - above, over_b = of_b - above;
        const int64_t inside = (slope <= 0) | (4 * over_b * curve * part > slope * slope);
        excluded[i] = (b <= 2 * a) & (over_a > 0) & (over_b > 0) & inside;
    }
}

/* Returns the place of a measured scale between `low` and the last one, 0 to 1. Where 8 scales are measured once, these
 * places leave the fewest codes to list, on average over normal and heavy-tailed groups. */
static inline float place_of(const int4_search *s, float part)
{
    const bool once = s->n > 64 && !s->candidates->zero_points && SCALES == 8;
    return once ? part * (0.4f + 0.6f * part * part * part) : part * part;
}

/* Sets stored scales from the last one of a range down to `low`. `dense`: more of them near `low`. */
static void place_scales(const int4_search *s, bool dense, float low, const int4_range *range, int4_measures *m)
{
    const float last = tsr_f32_from_bits(range->last), smallest = (float)(scale_value(s->candidates, 1) * s->unit);
    for (int i = 0; i < SCALES; i++) {
        const float part = (float)(SCALES - 1 - i) / (float)(SCALES - 1);
        const uint32_t scale = tsr_f32_bits(low + (last - low) * (dense ? place_of(s, part) : part));
        const uint32_t below = scale & ~unstored_bits(s, scale);
        m->t[i] = below > 0 ? tsr_f32_from_bits(below) : smallest;
    }
}

/* Lowers the upper bound of the smallest loss to those of measured candidates. */
static void lower_most(int4_search *s, const int4_points *points)
{
    double least = points->loss[0];
    for (int i = 1; i < SCALES; i++)
        least = points->loss[i] < least ? points->loss[i] : least;
    const double most = least * (1 + 0x1p-14) + 0x1p-20 * s->sum_x2;
    s->most = most < s->most ? most : s->most;
}

/* Leaves out both ends of a range, as far as measured scales exclude them. */
static void shrink_range(const int4_search *s, const int4_points *points, int4_range *range)
{
    int64_t excluded[SCALES];
    const double first = (double)tsr_f32_from_bits(range->first), last = (double)tsr_f32_from_bits(range->last);
    int from = 0, to = SCALES - 1;
    exclude_ranges(s, points, excluded);
    while (from < to && excluded[from])
        from++;
    if (from > 0 && points->t[from] < last)
        range->last = tsr_f32_bits((float)points->t[from]);
    if (points->t[to] > first)
        return;
    if (from == to)
        range->last = 0;
    while (to > from && excluded[to - 1])
        to--;
    if (points->t[to] > first)
        range->first = tsr_f32_bits((float)points->t[to]);
}

/* Measures scales from the last one of a range down to `low` with the limits of a zero point, and leaves out what is
 * excluded between them. `dense`: more of them near `low`. */
static void measure_range(int4_search *s, bool dense, float low, int4_range *range)
{
    int4_measures m;
    int4_points points;
    place_scales(s, dense, low, range, &m);
    measure(s, &m);
    set_points(s, &m, &(int4_part){NULL, NULL, 0}, 0, &points);
    lower_most(s, &points);
    shrink_range(s, &points, range);
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
