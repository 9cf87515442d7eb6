/* Implements best_int4 as TSR_BEST(name), for each form to include.
 *
 * Below, x denotes |x|, t a scale, and z a zero point. The limit of an element is the largest code of its sign: 7 - z
 * above 0, and 8 + z below 0. X2 is the sum of w x^2. Some scales are measured. Between them a bound excludes most
 * others. What is left is measured, too, and the last few candidates are compared by the definition.
 *
 * 1. Intervals. If code j replaces code j - 1, the error of an element falls by w (x - (j - 1) t)^2 - w (x - j t)^2 =
 *    2 t w (x - (j - 1/2) t). The nearest code is j or more where this is positive. So the loss is X2 - 2 t F(t), where
 *    F(t) is the sum of w max(x - (j - 1/2) t, 0) over all elements and all j from 1 to the limit. F is convex. Let t =
 *    (1 - v) a + v b with 0 <= v <= 1. Then F(t) <= (1 - v) F(a) + v F(b). Let A and B be the losses of a and b. So the
 *    loss of t is at least (1 - v)^2 A + 2 v (1 - v) M + v^2 B, where M = (A b / a + B a / b - X2 (b - a)^2 / (a b)) / 2.
 *    Let L be the best loss. If A > L and B > L, and M > L or (M - L)^2 < (A - L) (B - L), this exceeds L for all v, and
 *    no scale between a and b is the best.
 *
 * 2. Rounding. The FP32 quotients of a measure are off by 2^-22 relatively, and those of the definition by 2^-24, with a
 *    zero point by 2^-20 absolutely. An element whose code differs for this reason is near a tie, and its loss is off by
 *    less than 2^-16 of itself. x - c t is rounded once. A sum of n terms that are not negative is off by less than
 *    n 2^-24. So a measure is within 2^-15 + n 2^-24 of the definition, relatively. `rounding` has twice as much. Hence
 *    A and B in 1 are lowered by 2^-15 more than their errors, and M by 2^-16 (A b / a + B a / b). The other roundings
 *    of M are below 2^-21 (A b / a + B + X2 (b - a)^2 / (a b)). They are smaller, unless the last term exceeds twice the
 *    sum of the first two. Then M - L < 0, and (M - L)^2 exceeds A B, because the mean of A b / a and B a / b does.
 *
 * 3. Small scales. Let y be the limit times t on one side of 0, and d >= 0. An element beyond y costs (x - y)^2, which is
 *    at least d (2 x - d) - 2 d y. If d is what another y clips, the sum over the side is a bound that is linear in y. It
 *    exceeds L below some y. The limits of both sides add up to 15. So 15 t is at least the sum of both such y.
 *
 * 4. Zero points. The losses of all limits follow from those with the limit 15, which no zero point exceeds. By 1, a
 *    limit k adds 2 t times the sum of w max(x - (j - 1/2) t, 0) for j = k + 1 .. 15. All terms are positive, so that
 *    errors stay as in 2. An interval that is excluded with the limit 15 is excluded with all zero points.
 *
 * 5. Large scales. Let t clip nothing with some zero point. Values of codes under 2 t are then values of codes under t,
 *    as far as x reaches. So no code under 2 t is nearer. If the bound for t excludes it, 2 t is excluded, with any
 *    zero point. Otherwise 2 t is compared, too. It suffices to search the first octave in which nothing is clipped, and
 *    scales whose half cannot be stored. */
#include "kernels/cpu/best_int4_measure_body.h"

/* ---- candidates ---- */

/* Returns the smallest scale that clips nothing with a zero point. */
static double unclipped(const int4_search *s, int zero)
{
    const double up = s->high == 0 ? 0 : s->high / (7 - zero), down = s->low == 0 ? 0 : s->low / (8 + zero);
    return up > down ? up : down;
}

/* Returns the loss of a candidate with the codes of the definition, if ties round to even. */
static double exact_loss(const int4_search *s, double t, int zero_point)
{
    vd sum = d_set1(0);
    const vf divisor = f_set1((float)t), zero = f_set1((float)zero_point), low = f_set1(-8), high = f_set1(7);
    const vd scale = d_set1(t);
    for (size_t i = 0; i < s->n; i += LANES) {
        const vf x = f_load(s->value + i);
        const vf c = f_sub(f_round(f_min(f_max(f_add(f_div(x, divisor), zero), low), high)), zero);
        for (int half = 0; half < HALVES; half++) {
            const vd e = f_widen(x, half) - f_widen(c, half) * scale;
            vd square = e * e;
            if (s->weight != NULL)
                square *= f_widen(f_load(s->share + i), half);
            sum += square;
        }
    }
    return d_sum(sum);
}

/* Leaves the candidates that may still be the best. */
static void drop_worse(int4_search *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_left; i++) {
        if (s->left[i].loss <= s->most)
            s->left[n++] = s->left[i];
    }
    s->n_left = n;
}

/* Notes a candidate with its measured loss, unless it cannot be the best. */
static void note(int4_search *s, double t, int zero, double loss)
{
    if (loss > s->most * (double)s->rounding)
        return;
    if (s->n_left == MOST_LEFT)
        drop_worse(s);
    s->many = s->many || s->n_left == MOST_LEFT;
    if (!s->many)
        s->left[s->n_left++] = (int4_candidate){t, zero, loss / (double)s->rounding};
}

/* Leaves the candidates whose exact loss may be the smallest. */
static void compare(int4_search *s)
{
    drop_worse(s);
    const size_t n = s->n_left;
    if (n < 2 || s->candidates->away)
        return;
    double least = INFINITY;
    for (size_t i = 0; i < n; i++) {
        s->left[i].loss = exact_loss(s, s->left[i].t, s->left[i].zero);
        least = s->left[i].loss < least ? s->left[i].loss : least;
    }
    const double most = least * (1 + (double)(s->n + 16) * 0x1p-50) + 0x1p-125; /* weights may underflow */
    s->n_left = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->left[i].loss <= most)
            s->left[s->n_left++] = s->left[i];
    }
}

/* Compares the candidates that are left by the definition. Only one needs no comparison. */
static void settle(int4_search *s, float *scale, float *zero)
{
    const float given_scale = *scale, given_zero = *zero;
    double least = INFINITY;
    compare(s);
    for (size_t i = 0; i < s->n_left; i++) {
        const float t = (float)(s->left[i].t / s->unit), z = (float)s->left[i].zero;
        const double loss = s->n_left == 1 ? 0 : tsr_best_int4_loss(s->x, s->weight, s->n, s->candidates, t, z);
        const bool given = t == given_scale && z == given_zero;
        const bool held = least < INFINITY && *scale == given_scale && *zero == given_zero;
        const bool before = given || (!held && (t < *scale || (t == *scale && z < *zero)));
        if (loss > least || (loss == least && !before))
            continue;
        *scale = t;
        *zero = z;
        least = loss;
    }
}

/* Compares all scales from .. to by the definition. */
static void search_by_definition(const int4_search *s, double from, double to, float *scale, float *zero)
{
    double least = tsr_best_int4_loss(s->x, s->weight, s->n, s->candidates, *scale, *zero);
    for (int bits = 1; bits <= largest_scale(s->candidates); bits++) {
        const double value = scale_value(s->candidates, bits);
        if (value < from)
            continue;
        for (int z = least_zero(s); z <= most_zero(s); z++) {
            const double loss = tsr_best_int4_loss(s->x, s->weight, s->n, s->candidates, (float)value, (float)z);
            *scale = loss < least ? (float)value : *scale;
            *zero = loss < least ? (float)z : *zero;
            least = loss < least ? loss : least;
        }
        if (value > to)
            return;
    }
}

/* ---- intervals ---- */

/* Lowers the upper bound of the smallest loss to those of n measured candidates. */
ALWAYS_INLINE void lower_most(int4_search *s, const float *loss, size_t n)
{
    float least = INFINITY;
    for (size_t i = 0; i < n; i++)
        least = loss[i] < least ? loss[i] : least;
    const double most = (double)least * (double)s->rounding + UNDERFLOW;
    s->most = most < s->most ? most : s->most;
}

/* Returns the mask of the intervals a .. b that may hold the best scale: see 1. ratio is b / a, inverse a / b, and gap
 * X2 (b - a)^2 / (a b). */
ALWAYS_INLINE unsigned undecided(const int4_search *s, vf of_a, vf of_b, vf ratio, vf inverse, vf gap)
{
    const vf zero = f_set1(0), most = f_set1((float)s->most), least = f_set1(1 / s->rounding);
    const vf a = f_mul(of_a, least), b = f_mul(of_b, least), over_a = f_sub(a, most), over_b = f_sub(b, most);
    const vf middle = f_sub(f_mul(f_sub(f_fmadd(a, ratio, f_mul(b, inverse)), gap), f_set1(0.5f)), most);
    const unsigned ends = f_less(zero, over_a) & f_less(zero, over_b),
                   inside = f_less(zero, middle) | f_less(f_mul(middle, middle), f_mul(over_a, over_b));
    return ~(ends & inside) & ((1u << LANES) - 1);
}

/* Puts an interval on the stack, unless it has no scales inside. */
static inline void open_interval(int4_search *s, float a, float b, float of_a, float of_b, int zero)
{
    if (stored_scale(s, 0.5f * (a + b)) <= a)
        return;
    s->many = s->many || s->n_open == MOST_OPEN;
    if (!s->many)
        s->open[s->n_open++] = (int4_interval){a, b, of_a, of_b, zero};
}

/* Measures scales in the last open intervals, and opens the intervals between them that are undecided. */
static void divide(int4_search *s)
{
    enum { MOST_PARTS = 2 * GRID };
    int4_pairs p;
    float a[MOST_PARTS], b[MOST_PARTS], of_a[MOST_PARTS], of_b[MOST_PARTS];
    int zero[MOST_PARTS];
    size_t at[GRID], n = 0, n_parts = 0;
    const size_t taken = s->n_open < GRID ? s->n_open : GRID;
    const float step = 1 / (float)(GRID / taken + 1);
    for (size_t i = 0; i < taken; i++) {
        const int4_interval from = s->open[--s->n_open];
        a[n_parts] = from.a;
        of_a[n_parts] = from.of_a;
        zero[n_parts] = from.zero;
        for (size_t j = 1; j <= GRID / taken; j++) {
            const float t = stored_scale(s, from.a + (from.b - from.a) * ((float)j * step));
            if (!(t > a[n_parts]))
                continue;
            p.t[n] = t;
            p.above[n] = (float)(7 - from.zero);
            p.below[n] = (float)(8 + from.zero);
            at[n++] = n_parts;
            b[n_parts++] = t;
            a[n_parts] = t;
            zero[n_parts] = from.zero;
        }
        b[n_parts] = from.b;
        of_b[n_parts++] = from.of_b;
    }
    for (size_t i = n; i % LANES != 0; i++)
        p.t[i] = p.above[i] = p.below[i] = 1;
    measure(s, n, &p);
    lower_most(s, p.loss, n);
    for (size_t i = 0; i < n; i++) {
        of_b[at[i]] = of_a[at[i] + 1] = p.loss[i];
        note(s, (double)p.t[i], zero[at[i]], (double)p.loss[i]);
    }
    for (size_t i = n_parts; i % LANES != 0; i++)
        a[i] = b[i] = of_a[i] = of_b[i] = 1; /* has no scales inside */
    for (size_t first = 0; first < n_parts; first += LANES) {
        const vf from = f_load(a + first), to = f_load(b + first), width = f_sub(to, from);
        const vf by_a = f_div(width, from), by_b = f_div(width, to), one = f_set1(1);
        const vf gap = f_mul(f_mul(by_a, by_b), f_set1(s->sum_x2));
        unsigned left =
            undecided(s, f_load(of_a + first), f_load(of_b + first), f_add(one, by_a), f_sub(one, by_b), gap);
        for (; left != 0; left &= left - 1) {
            const size_t i = first + (size_t)__builtin_ctz(left);
            open_interval(s, a[i], b[i], of_a[i], of_b[i], zero[i]);
        }
    }
}

/* Scales that do not decrease, and what `undecided` takes for the intervals after them. LANES scales follow. */
typedef struct int4_grid {
    float t[GRID + LANES], ratio[GRID], inverse[GRID], gap[GRID];
} int4_grid;

/* Returns the mask of the intervals of a grid that may hold the best scale. */
ALWAYS_INLINE unsigned undecided_grid(const int4_search *s, const int4_grid *g, const float *loss)
{
    unsigned left = 0;
    for (int i = 0; i < GRID; i += LANES)
        left |= undecided(s, f_load(loss + i), f_load(loss + i + 1), f_load(g->ratio + i), f_load(g->inverse + i),
                          f_load(g->gap + i))
                << i;
    return left;
}

/* Opens the intervals of a grid that are undecided with a zero point, and notes the scales before them. */
ALWAYS_INLINE void open_grid(int4_search *s, const int4_grid *g, const float *loss, int zero)
{
    for (unsigned left = undecided_grid(s, g, loss); left != 0; left &= left - 1) {
        const int i = __builtin_ctz(left);
        if (g->t[i + 1] > g->t[i] || i == GRID - 1)
            note(s, (double)g->t[i], zero, (double)loss[i]);
        open_interval(s, g->t[i], g->t[i + 1], loss[i], loss[i + 1], zero);
    }
}

/* Sets a grid from `low` to `last`. */
static void set_grid(const int4_search *s, double low, double last, int4_grid *g)
{
    /* These places leave the fewest scales to measure, on average over normal and heavy-tailed groups. */
    static const float kPlaces[GRID] = {0,      0.042f, 0.074f, 0.102f, 0.128f, 0.154f, 0.178f, 0.203f,
                                        0.228f, 0.256f, 0.292f, 0.341f, 0.416f, 0.532f, 0.713f, 1};
    for (int i = 0; i < GRID + LANES; i++)
        g->t[i] = i < GRID ? usable_scale(s, (float)(low + (last - low) * (double)kPlaces[i])) : g->t[GRID - 1];
    for (int i = 0; i < GRID; i += LANES) {
        const vf a = f_load(g->t + i), b = f_load(g->t + i + 1), width = f_sub(b, a), one = f_set1(1);
        const vf by_a = f_div(width, a), by_b = f_div(width, b);
        f_store(g->ratio + i, f_add(one, by_a));
        f_store(g->inverse + i, f_sub(one, by_b));
        f_store(g->gap + i, f_mul(f_mul(by_a, by_b), f_set1(s->sum_x2)));
    }
}

/* Bounds of limit * t on each side of 0: see 3. */
typedef struct int4_sides {
    double above, below;
} int4_sides;

/* Returns a bound of the scale. Below it, clipping on one side of 0 costs too much, with any zero point. */
static double least_scale(const int4_search *s, int4_sides *sides)
{
    *sides = (int4_sides){clip_bound(s, &s->above, s->high), clip_bound(s, &s->below, s->low)};
    const double above = sides->above / 7, below = sides->below / 8;
    return s->candidates->zero_points ? (sides->above + sides->below) / 15 : above > below ? above : below;
}

/* Opens the intervals of a grid for the zero points from least to most. `unlimited` has the losses with MOST_CODE, which
 * decide the intervals from scale n on. */
ALWAYS_INLINE void open_zero_points(int4_search *s, const int4_grid *g, const float *unlimited, int n, int least,
                                    int most, bool weighted)
{
    int4_excess above, below;
    float loss[16][GRID + LANES];
    vf smallest = f_set1(INFINITY);
    add_excess(&s->above, g->t, n, 7 - most, weighted, &s->few, above);
    add_excess(&s->below, g->t, n, 8 + least, weighted, &s->few, below);
    for (int zero = least; zero <= most; zero++) {
        float *const of = loss[zero + 8];
        memcpy(of + n, unlimited + n, (size_t)(GRID + 1 - n) * sizeof *of);
        for (int i = 0; i < n; i += LANES) {
            const vf excess = f_add(f_load(above[7 - zero] + i), f_load(below[8 + zero] + i)),
                     sum = f_add(f_load(unlimited + i), excess);
            smallest = f_min(sum, smallest);
            f_store(of + i, sum);
        }
        if (n == GRID)
            of[GRID] = of[GRID - 1];
    }
    float losses[LANES];
    f_store(losses, smallest);
    lower_most(s, losses, LANES);
    for (int zero = least; zero <= most; zero++)
        open_grid(s, g, loss[zero + 8], zero);
}

/* Opens the intervals of a grid for all zero points that do not clip too much under the last scale that is left. */
static void search_zero_points(int4_search *s, const int4_grid *g, const int4_sides *sides, const float *unlimited)
{
    const unsigned left = undecided_grid(s, g, unlimited);
    const int after = left == 0 ? 0 : 32 - __builtin_clz(left), some = (after + LANES) / LANES * LANES;
    const int n = some < GRID ? some : GRID;
    const double last = (double)g->t[after] * (1 + 0x1p-20);
    const int from = (int)ceil(sides->below / last) - 8, to = 7 - (int)ceil(sides->above / last);
    const int least = from < -8 ? -8 : from, most = to > 7 ? 7 : to;
    if (s->weight != NULL)
        open_zero_points(s, g, unlimited, n, least, most, true);
    else
        open_zero_points(s, g, unlimited, n, least, most, false);
}

/* Searches all scales up to `last`. `whole` clips nothing with the zero point `middle`. */
static void search_scales(int4_search *s, double whole, int middle, double last)
{
    const bool zero_points = s->candidates->zero_points;
    const float usual = usable_scale(s, (float)(0.9 * whole < last ? 0.9 * whole : last));
    const float loss = loss_of(s, usual, 7 - middle, 8 + middle);
    lower_most(s, &loss, 1);
    int4_sides sides;
    int4_grid g;
    int4_pairs p;
    const double least = least_scale(s, &sides), low = least > LEAST_SCALE ? least : LEAST_SCALE;
    set_grid(s, low < last ? low : last, last, &g);
    for (int i = 0; i < GRID; i++) {
        p.t[i] = g.t[i];
        p.above[i] = zero_points ? MOST_CODE : 7;
        p.below[i] = zero_points ? MOST_CODE : 8;
    }
    measure(s, GRID, &p);
    p.loss[GRID] = p.loss[GRID - 1];
    if (zero_points) {
        search_zero_points(s, &g, &sides, p.loss);
    } else {
        lower_most(s, p.loss, GRID);
        open_grid(s, &g, p.loss, 0);
    }
    while (s->n_open > 0 && !s->many)
        divide(s);
    s->many = s->many || (least <= LEAST_SCALE && least_scale(s, &sides) <= LEAST_SCALE);
}

/* Returns whether an earlier candidate than `at` has its scale. */
static bool is_repeated(const int4_search *s, size_t at)
{
    size_t i = 0;
    while (s->left[i].t != s->left[at].t)
        i++;
    return i < at;
}

/* Notes the doubles of the candidates that are left and clip nothing with some zero point: see 5. */
static void note_doubles(int4_search *s, double from, double to)
{
    for (size_t i = 0; i < s->n_left; i++) { /* doubles are appended */
        const double t = 2 * s->left[i].t;
        if (s->left[i].loss > s->most || t < 2 * from || t > to || is_repeated(s, i))
            continue;
        const float unlimited = loss_of(s, (float)(t < 8 ? t : 8), MOST_CODE, MOST_CODE); /* codes are 0 from 4 on */
        if ((double)unlimited > s->most * (double)s->rounding)
            continue;
        for (int zero = least_zero(s); zero <= most_zero(s); zero++)
            note(s, t, zero, exact_loss(s, t, zero));
    }
}

/* ---- a group ---- */

/* Returns the last scale to search: that of 5, or the first with which all codes are 0. */
static float last_scale(const int4_search *s, double whole)
{
    const double amax = s->high > s->low ? s->high : s->low;
    const double smallest = scale_value(s->candidates, 1) * s->unit;
    const double largest = scale_value(s->candidates, largest_scale(s->candidates)) * s->unit;
    const double halved = (s->candidates->f16 ? 0x1p-13 : 0x1p-125) * s->unit;
    double last = 2 * whole > halved ? 2 * whole * (1 + 0x1p-20) : halved;
    last = last < 2.002 * amax ? last : 2.002 * amax;
    last = last < largest ? last : largest;
    return (float)(last > smallest ? last : smallest);
}

void TSR_BEST(best_int4)(const float *x, const float *weight, size_t n, const tsr_best_int4 *candidates, float *scratch,
                         float *scale, float *zero)
{
    int4_search s;
    s.candidates = candidates;
    s.x = x;
    s.weight = weight;
    s.n = n;
    s.most = INFINITY;
    s.n_open = s.n_left = 0;
    s.many = false;
    s.rounding = 1 + 0x1p-14f + (float)n * 0x1p-23f;
    if (!load_group(&s, scratch))
        return;
    const double amax = s.high > s.low ? s.high : s.low;
    if (scale_value(candidates, 1) * s.unit > 2.002 * amax)
        return;
    int middle = candidates->zero_points ? (int)rint(15 * s.low / (s.high + s.low)) - 8 : 0;
    middle = s.high > 0 && middle > 6 ? 6 : s.low > 0 && middle < -7 ? -7 : middle;
    const double whole = unclipped(&s, middle), given = (double)*scale * s.unit;
    const float last = last_scale(&s, whole);
    const int given_zero = (int)*zero;
    search_scales(&s, whole, middle, last);
    if (given > (double)last)
        note(&s, given, given_zero, exact_loss(&s, given, given_zero));
    note_doubles(&s, whole, scale_value(candidates, largest_scale(candidates)) * s.unit);
    if (s.many || s.sum_x2 < LEAST_SUM)
        search_by_definition(&s, 0, 2.002 * amax / s.unit, scale, zero);
    else
        settle(&s, scale, zero);
}
