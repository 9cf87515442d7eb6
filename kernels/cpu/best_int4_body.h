/* Implements best_int4 as TSR_BEST(name), for each form to include.
 *
 * The loss of a scale t is X2 - 2 t S1 + t^2 S2, where X2 = sum w x^2, S1 = sum w x c, S2 = sum w c^2, and c is the code
 * of x. Below, x denotes |x|. The limit is the largest code of the same sign. When t falls to x / (k - 1/2),
 * code k - 1 becomes k, unless k exceeds the limit. Then S1 grows by w x, and S2 by w (2 k - 1). For a range of scales,
 * all such changes are listed and added to the cells of the scales where they happen. Sums over the cells from above are
 * S1 and S2 of each scale. A few scales are measured before, to leave out what need not be listed.
 *
 * 1. Ranges. Let a <= t <= b, and let P(t) be the loss of t with the codes of b. A code k that begins at u in t .. b
 *    lowers it by w (2 k - 1) t (u - t). This is at most w (2 k - 1) t (u - a) (b - t) / (b - a). Let G be the sum of
 *    w (2 k - 1) a (u - a) for all codes that begin in a .. b, which is P(a) - loss(a). So the loss of t is at least
 *    P(t) - G t (b - t) / (a (b - a)). This is a parabola. If it exceeds the best loss, the range is left out.
 *
 * 2. Rounding. The FP32 quotients of a list are off by 2^-22 relatively, and those of the definition by 2^-24, with a
 *    zero point by 2^-22 more. An element whose code differs for this reason is near a tie. Its loss is about w t^2 / 4,
 *    and off by less than 2^-15 of that. Sums are FP64, with less than 16 n additions of terms up to 4 X2. error_of()
 *    covers these. Measures are FP32, for which 2^-14 of the loss and 2^-20 of X2 are added: r^2 is off by at most
 *    2^-22 q |r|, which is less than 2^-16 r^2 + 2^-28 q^2, and a lane adds at most 64 terms. In 1, b is at most 2 a, so
 *    that errors at b and a count three times at most.
 *
 * 3. Small scales. Let d >= 0. An element beyond limit t costs (x - limit t)^2, which is at least d (2 x - d) - 2 d limit
 *    t. If d is what another scale clips, the sum over the group is a bound that is linear in t.
 *
 * 4. Large scales. Let t clip nothing with some zero point. Values of codes under 2 t are then values of codes under t,
 *    as far as x reaches. So no code under 2 t is nearer. If the bound for t excludes it, 2 t is excluded, with any
 *    zero point. Otherwise 2 t is compared, too. It suffices to search the first octave in which nothing is clipped, and
 *    scales whose half cannot be stored.
 *
 * 5. Zero points. Without limits, codes are at least as near as with those of any zero point. Ranges that are excluded
 *    without limits are excluded for all zero points. So are scales for which clipping on one side of 0 costs too much.
 *    Limits change only the codes of elements that they clip. So the measures of a zero point are those without limits,
 *    plus the changes of these elements. A change has up to 3 times the error of a term, and is never below 0. */
#include "kernels/cpu/best_int4_cells_body.h"

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

/* Leaves the candidates whose exact loss may be the smallest. */
static void compare(int4_search *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_left; i++) {
        if (s->left[i].loss <= s->most)
            s->left[n++] = s->left[i];
    }
    s->n_left = n;
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

/* Searches a range with a zero point. */
static void search_range(int4_search *s, int zero, int4_range range)
{
    if (s->candidates->zero_points && (range.last >> 16) - (range.first >> 16) > FEW_SCALES) {
        set_zero_point(s, zero);
        measure_range(s, false, tsr_f32_from_bits(range.first), &range);
    }
    if (range.first > range.last)
        return;
    const int shift = 16;
    list_codes(s, zero, range.first >> shift << shift, ((range.last >> shift) + 1) << shift);
    if (s->candidates->f16) {
        narrow(s, shift, &range);
        if (range.first > range.last)
            return;
        shorten_list(s, range.first, s->top);
    }
    note_range(s, zero, &range);
}

/* Excludes scales below one. */
static void begin_at(int4_search *s, double scale, int4_range *range)
{
    const uint32_t first = tsr_f32_bits((float)(scale * (1 - 0x1p-20)));
    range->first = scale > (double)tsr_f32_from_bits(range->last) ? UINT32_MAX
                   : first > range->first                         ? first
                                                                  : range->first;
    s->many = s->many || range->first <= tsr_f32_bits(LEAST_SCALE);
}

/* Searches a range without zero points. */
static void search_scales(int4_search *s, float low, int4_range *range)
{
    set_zero_point(s, 0);
    measure_range(s, true, low, range);
    if (s->n <= 64) /* measures take little time */
        measure_range(s, true, low, range);
    begin_at(s, clipped_below(s, 0.9 * (double)low), range);
    search_range(s, 0, *range);
}

/* Bounds of the largest code times the scale on each side of 0. Below a bound, clipping on that side costs too much. */
typedef struct int4_sides {
    double above, below;
} int4_sides;

static int4_sides clip_sides(int4_search *s)
{
    int4_sides sides = {0, 0};
    if (s->high > 0) {
        set_limits(s, 1, ANY_LIMIT);
        sides.above = clipped_below(s, 0.75 * s->high);
    }
    if (s->low > 0) {
        set_limits(s, ANY_LIMIT, 1);
        sides.below = clipped_below(s, 0.75 * s->low);
    }
    return sides;
}

/* Returns a scale below which clipping with a zero point costs too much. */
static double least_scale(const int4_sides *sides, int zero)
{
    const double up = sides->above == 0 ? 0 : sides->above / (7 - zero),
                 down = sides->below == 0 ? 0 : sides->below / (8 + zero);
    return up > down ? up : down;
}

/* Returns the given zero point and those that do not clip too much under the last scale of a range. */
static int4_zeros zeros_of(const int4_sides *sides, int given, const int4_range *range)
{
    const double last = (double)tsr_f32_from_bits(range->last);
    int4_zeros zeros = {given, given};
    while (zeros.least > -8 && sides->below <= last * (7 + zeros.least))
        zeros.least--;
    while (zeros.most < 7 && sides->above <= last * (6 - zeros.most))
        zeros.most++;
    return zeros;
}

/* Sets the points of a zero point from measures without limits, with the elements of a part that it may clip. */
static void measure_zero_point(int4_search *s, const int4_measures *m, const int4_part *part, int zero,
                               int4_points *points)
{
    const int4_part list = {s->next_x, s->next_share, 0};
    const int4_part clipped = keep_clipped(s, part, m, (int4_zeros){zero, zero}, list);
    set_points(s, m, &clipped, zero, points);
    lower_most(s, points);
}

/* Measures scales without limits, from the last one of a range down to `low`. Lowers the upper bound of the smallest loss
 * by the given zero point. Leaves out what is excluded for all zero points. Returns what some of them may clip. */
static int4_part measure_unlimited(int4_search *s, bool dense, float low, int4_zeros zeros, int given,
                                   int4_range *range, int4_measures *m)
{
    int4_points points;
    const int4_part group = {s->value, s->share, s->n}, list = {s->part, s->part_share, 0};
    set_no_limits(s);
    place_scales(s, dense, low, range, m);
    measure(s, m);
    const int4_part clipped = keep_clipped(s, &group, m, zeros, list);
    measure_zero_point(s, m, &clipped, given, &points);
    set_points(s, m, &(int4_part){NULL, NULL, 0}, 0, &points);
    shrink_range(s, &points, range);
    return clipped;
}

/* Searches a range with all zero points, first with few measures of each. */
static void search_zero_points(int4_search *s, int given, float low, int4_range *range)
{
    int4_measures m;
    int4_points points[16];
    measure_unlimited(s, true, low, (int4_zeros){given, given}, given, range, &m);
    if (range->first > range->last)
        return;
    const int4_sides sides = clip_sides(s);
    int4_zeros zeros = zeros_of(&sides, given, range);
    double begin = (double)tsr_f32_from_bits(range->last);
    for (int zero = zeros.least; zero <= zeros.most; zero++)
        begin = least_scale(&sides, zero) < begin ? least_scale(&sides, zero) : begin;
    const float first = tsr_f32_from_bits(range->first);
    low = (float)begin > first ? (float)begin : first;
    const int4_part clipped = measure_unlimited(s, false, low, zeros, given, range, &m);
    if (range->first > range->last)
        return;
    zeros = zeros_of(&sides, given, range);
    for (int zero = zeros.least; zero <= zeros.most; zero++)
        measure_zero_point(s, &m, &clipped, zero, &points[zero + 8]);
    for (int zero = zeros.least; zero <= zeros.most; zero++) {
        int4_range part = *range;
        begin_at(s, least_scale(&sides, zero), &part);
        if (part.first <= part.last)
            shrink_range(s, &points[zero + 8], &part);
        if (part.first <= part.last)
            search_range(s, zero, part);
    }
}

/* Returns whether an earlier candidate than `at` has its scale. */
static bool is_repeated(const int4_search *s, size_t at)
{
    size_t i = 0;
    while (s->left[i].t != s->left[at].t)
        i++;
    return i < at;
}

/* Notes the doubles of the candidates that are left and clip nothing with some zero point: see 4. */
static void note_doubles(int4_search *s, double from, double to)
{
    for (size_t i = 0; i < s->n_left; i++) { /* doubles are appended */
        const double t = 2 * s->left[i].t;
        if (s->left[i].loss > s->most || t < 2 * from || t > to || is_repeated(s, i))
            continue;
        int4_measures m;
        int4_points points;
        for (int j = 0; j < SCALES; j++)
            m.t[j] = (float)t;
        set_no_limits(s);
        measure(s, &m);
        set_points(s, &m, &(int4_part){NULL, NULL, 0}, 0, &points);
        if (points.loss[0] * (1 - 0x1p-14) - 0x1p-20 * s->sum_x2 > s->most)
            continue;
        for (int zero = least_zero(s); zero <= most_zero(s); zero++)
            note(s, t, zero, exact_loss(s, t, zero));
    }
}

/* ---- a group ---- */

/* Returns the exponent of a positive number. */
static inline int exponent_of(float x)
{
    return x >= 0x1p-126f ? (int)(tsr_f32_bits(x) >> 23) - 127 : ilogbf(x);
}

static inline float power(int exponent)
{
    return tsr_f32_from_bits((uint32_t)(exponent + 127) << 23);
}

/* Copies the group. Returns false if all losses are equal. */
static bool load_group(int4_search *s, float *scratch)
{
    const size_t n = s->n, each = n + LANES;
    s->value = scratch;
    s->size = s->value + each;
    s->limit = s->size + each;
    s->part = s->limit + each;
    s->share = s->part + each;
    s->part_share = s->share + each;
    s->next_scale = s->part_share + each;
    s->next_x = s->next_scale + UNLIMITED * n + LANES;
    s->next_square = s->next_x + UNLIMITED * n + LANES;
    s->next_share = s->next_square + UNLIMITED * n + LANES;
    float most_weight = 0;
    for (size_t i = 0; i < n; i++) {
        s->value[i] = s->weight == NULL || s->weight[i] > 0 ? s->x[i] : 0;
        if (s->weight != NULL)
            most_weight = s->weight[i] > most_weight ? s->weight[i] : most_weight;
    }
    const vf zero = f_set1(0);
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
    if (s->weight != NULL) {
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
    vd squares = d_set1(0);
    for (size_t i = 0; i < n; i += LANES) {
        const vf value = f_mul(f_mul(f_load(s->value + i), first), second);
        f_store(s->value + i, value);
        f_store(s->size + i, f_size(value));
        for (int part = 0; part < HALVES; part++) {
            const vd of_x = f_widen(value, part);
            vd square = of_x * of_x;
            if (s->weight != NULL)
                square *= f_widen(f_load(s->share + i), part);
            squares += square;
        }
    }
    s->sum_x2 = d_sum(squares);
    f_store(s->size + n, zero);
    f_store(s->limit + n, zero);
    s->error = (double)(n + 128) * 0x1p-45 * s->sum_x2;
    return true;
}

/* Returns the scales to search. The last may be that of 4, or the first with which all codes are 0. */
static int4_range range_of(const int4_search *s, double whole)
{
    const double amax = s->high > s->low ? s->high : s->low;
    const double smallest = scale_value(s->candidates, 1) * s->unit;
    const double largest = scale_value(s->candidates, largest_scale(s->candidates)) * s->unit;
    const double halved = (s->candidates->f16 ? 0x1p-13 : 0x1p-125) * s->unit;
    double last = 2 * whole > halved ? 2 * whole * (1 + 0x1p-20) : halved;
    last = last < 2.002 * amax ? last : 2.002 * amax;
    last = last < largest ? last : largest;
    last = last > smallest ? last : smallest;
    const double first = smallest < LEAST_SCALE ? LEAST_SCALE : smallest;
    return (int4_range){tsr_f32_bits((float)first), tsr_f32_bits((float)last)};
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
    s.n_left = 0;
    s.many = false;
    if (!load_group(&s, scratch))
        return;
    const double amax = s.high > s.low ? s.high : s.low;
    if (scale_value(candidates, 1) * s.unit > 2.002 * amax)
        return;
    double whole = INFINITY;
    for (int z = least_zero(&s); z <= most_zero(&s); z++) {
        const double of = unclipped(&s, z);
        whole = of < whole ? of : whole;
    }
    const int given_zero = (int)*zero;
    int4_range range = range_of(&s, whole);
    const float last = tsr_f32_from_bits(range.last), low = (candidates->zero_points ? 0.9f : 0.86f) * (float)whole;
    int4_range part = range;
    s.many = range.last <= tsr_f32_bits(LEAST_SCALE);
    if (candidates->zero_points)
        search_zero_points(&s, given_zero, low < last ? low : last, &part);
    else
        search_scales(&s, low < last ? low : last, &part);
    if ((double)*scale * s.unit > (double)tsr_f32_from_bits(range.last))
        note(&s, (double)*scale * s.unit, given_zero, exact_loss(&s, (double)*scale * s.unit, given_zero));
    note_doubles(&s, whole, scale_value(candidates, largest_scale(candidates)) * s.unit);
    if (s.many || s.sum_x2 < LEAST_SUM)
        search_by_definition(&s, 0, 2.002 * amax / s.unit, scale, zero);
    else
        settle(&s, scale, zero);
}
