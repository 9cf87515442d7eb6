/* Implements best_int4 as TSR_BEST(name), for each form to include.
 *
 * A group is measured with one scale t at a time, in FP32 and in units of t: for q = x / t, its code c and r = q - c the
 * sums of r^2, r c and c^2. These sums give bounds for the losses of a whole range of scales. Ranges that cannot hold
 * the result are left out, and the other scales are measured one by one. Those whose loss may be the smallest are
 * compared by the definition. Below, |x| is meant by x, and "limit" is the largest code on the side of its sign.
 *
 * 1. Ranges. Let t' = t (1 + h) be in the range. With the codes of t the loss is t^2 P(h), P(h) = sum (r - h c)^2. A
 *    code of t' differs only if q' = q / (1 + h) is more than 1/2 from c. Let d be this distance. While d is at most
 *    3/2, the other code gains d^2 - (d - 1)^2 = 2 (d - 1/2). With p = min(q, limit) and reach = |h| / (1 - |h|), d is at
 *    most |p - c| + p reach: clipped elements have c = p, and come nearer only from above. So the loss is at least
 *    t^2 (P(h) - 2 (1 + h)^2 H), H = sum max(0, |p - c| + p reach - 1/2). Ranges with p reach > 1 are divided. With
 *    the codes of t the loss is also at most t^2 P(h).
 *
 * 2. Rounding. The FP32 quotient is off by at most 2^-22 q, so P is off by at most 2^-13 P + 2^-30 sum q^2. The sums
 *    have at most 64 terms per lane and chunk, and are off by 2^-17 relatively. If the definition
 *    rounds a quotient to a tie, its |e| is off by less than 2^-19 t, and its square by 2^-16. error_of() covers these.
 *
 * 3. Small scales. One element with x > limit * t costs w (x - limit t)^2 alone. So t is at least (x - sqrt(loss / w)) /
 *    limit, where loss is any upper bound of the smallest one.
 *
 * 4. Large scales. Let t clip nothing with some zero point. Values of codes under 2 t are then values of codes under t,
 *    as far as x reaches. So no code under 2 t is nearer. If the bound for t excludes it, 2 t is excluded, with any
 *    zero point. Otherwise 2 t is measured, without limits. It suffices to search the first octave in which nothing is
 *    clipped, and scales whose half cannot be stored.
 *
 * 5. Zero points. Without limits, codes are at least as near as with those of any zero point. Ranges that are excluded
 *    without limits are excluded for all zero points. */
#include "kernels/cpu/best_int4_measure_body.h"

/* ---- ranges ---- */

/* The scales first .. last, with the limits that are set for a zero point. */
typedef struct int4_range {
    int first, last, zero;
    uint8_t *open; /* if not NULL: marks the scales that are not excluded, from open[0] for open_from on */
    int open_from;
} int4_range;

/* Processes the scales from .. to of a range together. Returns how much wider a range could be excluded, about. If it
 * is less than 1, there were too many scales, and nothing was done. */
static double try_range(int4_search *s, const int4_range *range, int from, int to)
{
    const int middle = from + (to - from) / 2;
    const double t = scale_value(s, middle) * s->unit, amax = s->high > s->low ? s->high : s->low;
    const double low = scale_value(s, from) * s->unit / t - 1, high = scale_value(s, to) * s->unit / t - 1;
    const double widest = high > -low ? high : -low, reach = widest / (1 - widest);
    const double largest = amax / t < UNLIMITED ? amax / t : UNLIMITED;
    if (from != to && (widest > 0.25 || largest * reach > 0.999))
        return 0.5;
    const int4_sums sums = measure_range(s, t, reach + 0x1p-20);
    const double vertex = sums.c2 > 0 ? sums.rc / sums.c2 : 0;
    const double h = vertex < low ? low : vertex > high ? high : vertex;
    const double gain = 2 * (1 + high) * (1 + high) * sums.hinge * (1 + 0x1p-16);
    const double error = error_of(s, &sums, t, widest), most = s->most / (t * t);
    const double excess = loss_at(&sums, h) - error - most;
    if (excess > gain)
        return sqrt(excess / (gain + 1e-9));
    if (to - from >= FEW)
        return excess > 0 ? 0.99 * sqrt(excess / gain) : 0;
    for (int scale = from; scale <= to; scale++) {
        const double at = scale_value(s, scale) * s->unit / t - 1;
        /* H is convex in the reach, and 0 without it, but for 2^-20. */
        const double part = widest > 0 ? fabs(at) / (1 - fabs(at)) / reach + 0x1p-10 : 1;
        if (t * t * (loss_at(&sums, at) - gain * (part < 1 ? part : 1) - error) > s->most)
            continue;
        if (range->open != NULL)
            range->open[scale - range->open_from] = 1;
        else if (scale == middle)
            note(s, scale, range->zero, t * t * (sums.r2 - error), t * t * (sums.r2 + error));
        else
            visit(s, scale, range->zero);
    }
    return 1;
}

/* Returns the smallest scale that 3 does not exclude with a zero point; more than the largest one if there is none. */
static int first_scale(const int4_search *s, int zero)
{
    const double caution = 1 - 0x1p-20;
    const int limits[2] = {7 - zero, 8 + zero};
    int first = 1;
    for (int side = 0; side < 2; side++) {
        const double over = s->end[side] * caution - sqrt(s->most / s->end_share[side]) * (1 + 0x1p-20);
        if (!(over > 0))
            continue;
        if (limits[side] == 0)
            return largest_scale(s) + 1;
        const int scale = scale_below(s, over / limits[side] / s->unit * caution);
        first = scale > first ? scale : first;
    }
    return first;
}

/* Processes a range upward or downward, in steps as wide as they succeed. */
static void search_range(int4_search *s, const int4_range *range, bool upward)
{
    int width = s->candidates->f16 ? 64 : 8, first = range->first;
    double known = s->most;
    for (int at = upward ? range->first : range->last; at >= first && at <= range->last;) {
        int from = upward ? at : at - width + 1, to = upward ? at + width - 1 : at;
        from = from < first ? first : from;
        to = to > range->last ? range->last : to;
        const double ratio = try_range(s, range, from, to), next = 0.8 * ratio * (to - from + 1);
        const int narrow = ratio < 1 && to - from < FEW ? 1 : FEW;
        width = ratio > 4 ? 4 * (to - from + 1) : next > narrow && narrow > 1 ? (int)next : narrow;
        if (ratio < 1)
            continue;
        at = upward ? to + 1 : from - 1;
        if (upward || range->open != NULL || !(s->most < known))
            continue;
        const int least = first_scale(s, range->zero);
        first = least > first ? least : first;
        known = s->most;
    }
}

/* ---- a group ---- */

/* Chooses the elements of 3: those with the largest w x^2 on each side. */
static void choose_ends(int4_search *s)
{
    double largest[2] = {0, 0};
    s->end[0] = s->high;
    s->end[1] = s->low;
    s->end_share[0] = s->end_share[1] = 1;
    for (size_t i = 0; s->weight != NULL && i < s->n; i++) {
        const double a = (double)s->size[i], w = (double)s->share[i], cost = w * a * a;
        const bool negative = s->x[i] < 0;
        if (!(cost > largest[negative]))
            continue;
        largest[negative] = cost;
        s->end[negative] = a;
        s->end_share[negative] = w;
    }
    for (int side = 0; s->weight != NULL && side < 2; side++)
        s->end[side] = largest[side] > 0 ? s->end[side] : 0;
}

/* Scales the weights so that the largest is near 1. Returns false if all are 0. */
static bool load_weights(int4_search *s)
{
    float most = 0;
    for (size_t i = 0; i < s->n; i++)
        most = s->weight[i] > most ? s->weight[i] : most;
    if (most == 0)
        return false;
    for (size_t i = 0; i < s->padded; i++)
        s->share[i] = i < s->n ? ldexpf(s->weight[i], -ilogbf(most)) : 0;
    return true;
}

/* Copies the group, scaled so that its largest |x| is near 1. Returns false if all losses are equal. */
static bool load_group(int4_search *s, float *scratch)
{
    s->padded = (s->n + LANES - 1) / LANES * LANES;
    s->value = scratch;
    s->size = s->value + s->padded;
    s->limit = s->size + s->padded;
    s->share = s->limit + s->padded;
    memcpy(s->value, s->x, s->n * sizeof *s->x);
    for (size_t i = s->n; i < s->padded; i++)
        s->value[i] = 0;
    vf highest = f_set1(0), lowest = highest, sum = highest;
    for (size_t i = 0; i < s->padded; i += LANES) {
        highest = f_max(highest, f_load(s->value + i));
        lowest = f_min(lowest, f_load(s->value + i));
    }
    const float high = f_largest(highest), low = f_largest(f_sub(f_set1(0), lowest)), amax = high > low ? high : low;
    if (amax == 0 || (s->weight != NULL && !load_weights(s)))
        return false;
    const int exponent = -ilogbf(amax), half = exponent / 2; /* 2^exponent may exceed FP32 */
    const vf first = f_set1(ldexpf(1, half)), second = f_set1(ldexpf(1, exponent - half));
    for (size_t i = 0; i < s->padded; i += LANES) {
        const vf value = f_mul(f_mul(f_load(s->value + i), first), second), size = f_size(value);
        f_store(s->value + i, value);
        f_store(s->size + i, size);
        sum = f_fmadd(s->weight == NULL ? size : f_mul(size, f_load(s->share + i)), size, sum);
    }
    s->unit = ldexp(1, exponent);
    s->high = (double)high * s->unit;
    s->low = (double)low * s->unit;
    s->sum_x2 = (double)f_sum(sum);
    choose_ends(s);
    return s->sum_x2 > 0;
}

/* Returns the smallest scale that clips nothing with some zero point, or one more than the largest. */
static int first_unclipped(const int4_search *s)
{
    double least = INFINITY;
    for (int zero = s->candidates->zero_points ? -8 : 0; zero <= (s->candidates->zero_points ? 7 : 0); zero++) {
        const double up = s->high == 0 ? 0 : s->high / (7 - zero), down = s->low == 0 ? 0 : s->low / (8 + zero);
        const double needed = up > down ? up : down;
        least = needed < least ? needed : least;
    }
    const double needed = least * (1 + 0x1p-40) / s->unit;
    const int scale = scale_below(s, needed);
    return scale_value(s, scale) >= needed ? scale : scale + 1;
}

/* Tries scales near the given one, and returns the best of them. */
static int approach(int4_search *s)
{
    const double given = scale_value(s, s->given_scale);
    double next = visit(s, s->given_scale, s->given_zero);
    for (int i = 0; i < 2; i++) {
        const double to = i == 0 ? 0.9 * given : next > 0 ? next : given;
        next = visit(s, scale_below(s, to), s->given_zero);
    }
    for (int side = 0; s->weight != NULL && side < 2; side++) {
        if (s->end[side] > 0)
            visit(s, scale_below(s, s->end[side] / 7 / s->unit), s->given_zero);
    }
    int best = s->given_scale;
    double least = INFINITY;
    for (size_t i = 0; i < s->n_left; i++) {
        best = s->left[i].least < least ? s->left[i].scale : best;
        least = s->left[i].least < least ? s->left[i].least : least;
    }
    return best;
}

/* Searches the scales up to `last` with the given zero point, from `start` upward and downward. */
static void search_scales(int4_search *s, int start, int last)
{
    const int zero = s->given_zero, first = first_scale(s, zero), middle = start < last ? start : last;
    search_range(s, &(int4_range){.first = middle > first ? middle : first, .last = last, .zero = zero}, true);
    search_range(s, &(int4_range){.first = first_scale(s, zero), .last = middle - 1, .zero = zero}, false);
}

/* Searches the scales from .. last that are open with one zero point. */
static void search_open(int4_search *s, int zero, int from, int last, const uint8_t *open)
{
    const int first = first_scale(s, zero), least = first > from ? first : from;
    if (least > last)
        return;
    set_zero_point(s, zero);
    for (int end = last; end >= least; end--) {
        if (!open[end - from])
            continue;
        int begin = end;
        while (begin > least && open[begin - 1 - from])
            begin--;
        search_range(s, &(int4_range){.first = begin, .last = end, .zero = zero}, false);
        end = begin;
    }
}

/* Searches the scales from .. last with all zero points, at most MOST_SCALES. Those from `start` on are first searched
 * without limits. */
static void search_part(int4_search *s, int from, int start, int last)
{
    uint8_t open[MOST_SCALES];
    const int upper = start > from ? start : from;
    memset(open, 1, (size_t)(last - from + 1));
    if (upper <= last) {
        memset(open + (upper - from), 0, (size_t)(last - upper + 1));
        set_no_limits(s);
        search_range(s, &(int4_range){.first = upper, .last = last, .open = open, .open_from = from}, true);
    }
    for (int i = 0; i < 31; i++) { /* the given zero point, then its neighbours */
        const int zero = s->given_zero + (i % 2 == 0 ? i / 2 : -(i + 1) / 2);
        if (zero >= -8 && zero <= 7)
            search_open(s, zero, from, last, open);
    }
}

/* Searches the scales up to `last` with all zero points. */
static void search_zero_points(int4_search *s, int start, int last)
{
    int from = last + 1;
    for (int zero = -8; zero <= 7; zero++) {
        const int first = first_scale(s, zero);
        from = first < from ? first : from;
    }
    for (int end = last; end >= from; end -= MOST_SCALES)
        search_part(s, end - from < MOST_SCALES ? from : end - MOST_SCALES + 1, start, end);
}

static void search_up_to(int4_search *s, int start, int last)
{
    if (s->candidates->zero_points)
        search_zero_points(s, start, last);
    else
        search_scales(s, start, last);
}

/* Tries the doubles of the candidates that are left and clip nothing: see 4. */
static void try_doubles(int4_search *s, int unclipped, int most)
{
    const int lowest = s->candidates->zero_points ? -8 : 0, highest = s->candidates->zero_points ? 7 : 0;
    const size_t n = s->n_left;
    int scales[MOST_LEFT];
    for (size_t i = 0; i < n; i++)
        scales[i] = s->left[i].least <= s->most ? s->left[i].scale : 0;
    for (size_t i = 0; i < n; i++) {
        if (scales[i] < unclipped)
            continue;
        for (double value = 2 * scale_value(s, scales[i]); value <= scale_value(s, most); value *= 2) {
            const double t = value * s->unit;
            set_no_limits(s);
            const int4_sums sums = measure_one(s, t);
            if (t * t * (sums.r2 - error_of(s, &sums, t, 0)) > s->most)
                break;
            for (int zero = lowest; zero <= highest; zero++) {
                set_zero_point(s, zero);
                visit(s, scale_below(s, value), zero);
            }
        }
    }
}

void TSR_BEST(best_int4)(const float *x, const float *weight, size_t n, const tsr_best_int4 *candidates, float *scratch,
                         float *scale, float *zero)
{
    int4_search s = {.candidates = candidates, .x = x, .weight = weight, .n = n, .most = INFINITY};
    if (!load_group(&s, scratch))
        return;
    s.given_scale = scale_below(&s, (double)*scale);
    s.given_zero = (int)*zero;
    set_zero_point(&s, s.given_zero);
    const int start = approach(&s), unclipped = first_unclipped(&s);
    /* Above twice the largest |x| all codes are those of 0, as under the first such scale. */
    const int zeros = scale_below(&s, 2.001 * (s.high > s.low ? s.high : s.low) / s.unit);
    const int most = zeros < largest_scale(&s) ? zeros + 1 : zeros;
    /* Scales from the double of the smallest normal number on have halves. */
    const int halved = candidates->f16 ? 0x0800 : 0x0100;
    const int twice = unclipped > most ? most : scale_below(&s, 2 * scale_value(&s, unclipped));
    const int last = twice > halved ? twice : halved;
    search_up_to(&s, start, last < most ? last : most);
    try_doubles(&s, unclipped, most);
    if (s.many)
        search_up_to(&s, start, most);
    settle(&s, true);
    if (s.best_scale == 0)
        return;
    *scale = (float)scale_value(&s, s.best_scale);
    *zero = (float)s.best_zero;
}
