/* Sums the codes of a group under all scales of a range, for best_int4_body.h, which has the proofs. */
#include "kernels/cpu/best_int4_measure_body.h"

/* ---- codes in a range of scales ---- */

/* Keeps some elements of x and, if weighted, their weights in `part`. Returns how many there are then. */
ALWAYS_INLINE size_t keep_part(const int4_search *s, vf x, vf w, unsigned mask, bool weighted, size_t n)
{
    f_keep(s->part + n, x, mask);
    if (weighted)
        f_keep(s->part_share + n, w, mask);
    return n + (size_t)__builtin_popcount(mask);
}

ALWAYS_INLINE void list_next(int4_search *s, int above, int below, uint32_t first, uint32_t top, bool weighted)
{
    const float highest = tsr_f32_from_bits(top), lowest = tsr_f32_from_bits(first);
    const vf into_top = f_set1(1 / highest), into_first = f_set1(1 / lowest), least = f_set1(lowest);
    const vf most = f_set1(tsr_f32_from_bits(top - 1)), middle = f_set1(0.5f), one = f_set1(1), zero = f_set1(0);
    const vf up = f_set1((float)above), down = f_set1((float)below);
    vd sums[2] = {d_set1(0), d_set1(0)};
    size_t left = 0, n_next = 0;
    for (size_t i = 0; i < s->n; i += LANES) {
        const vf x = f_load(s->value + i), size = f_load(s->size + i), limit = f_where_negative(x, down, up);
        const vf w = weighted ? f_load(s->share + i) : x;
        const vf c = f_round(f_min(f_mul(size, into_top), limit)),
                 last = f_round(f_min(f_mul(size, into_first), limit));
        for (int half = 0; half < HALVES; half++) {
            const vd of_c = f_widen(c, half);
            vd wc = of_c;
            if (weighted)
                wc *= f_widen(w, half);
            sums[0] += f_widen(size, half) * wc;
            sums[1] += of_c * wc;
        }
        left = keep_part(s, x, w, f_less(c, last), weighted, left);
    }
    for (vf steps = zero; left > 0; steps = f_add(steps, one)) {
        const size_t n = left;
        f_store(s->part + n, zero);
        left = 0;
        for (size_t i = 0; i < n; i += LANES) {
            const vf x = f_load(s->part + i), size = f_size(x), limit = f_where_negative(x, down, up);
            const vf w = weighted ? f_load(s->part_share + i) : x;
            const vf c = f_add(f_round(f_min(f_mul(size, into_top), limit)), steps), next = f_add(c, one);
            f_store(s->next_scale + n_next + i, f_max(f_min(f_div(size, f_add(c, middle)), most), least));
            f_store(s->next_x + n_next + i, size);
            f_store(s->next_square + n_next + i, f_add(c, next));
            if (weighted)
                f_store(s->next_share + n_next + i, w);
            const vf last = f_round(f_min(f_mul(size, into_first), limit));
            left = keep_part(s, x, w, f_less(next, last), weighted, left);
        }
        n_next += n;
    }
    s->top = top;
    s->start = (int4_sums){d_sum(sums[0]), d_sum(sums[1])};
    s->n_next = n_next;
}

/* Lists the codes of a zero point that follow those under the scale `top`, down to the scale `first`. */
static void list_codes(int4_search *s, int zero, uint32_t first, uint32_t top)
{
    if (s->weight != NULL)
        list_next(s, 7 - zero, 8 + zero, first, top, true);
    else
        list_next(s, 7 - zero, 8 + zero, first, top, false);
}

/* Leaves only the codes of the list from scales first .. top on. */
static void shorten_list(int4_search *s, uint32_t first, uint32_t top)
{
    const vf below = f_set1(tsr_f32_from_bits(first - 1)), highest = f_set1(tsr_f32_from_bits(top));
    const size_t n = s->n_next;
    size_t left = 0;
    f_store(s->next_scale + n, f_set1(0));
    for (size_t i = 0; i < n; i += LANES) {
        const vf scale = f_load(s->next_scale + i), x = f_load(s->next_x + i), square = f_load(s->next_square + i);
        const unsigned more = f_less(scale, highest) & f_less(below, scale);
        f_keep(s->next_scale + left, scale, more);
        f_keep(s->next_x + left, x, more);
        f_keep(s->next_square + left, square, more);
        if (s->weight != NULL)
            f_keep(s->next_share + left, f_load(s->next_share + i), more);
        left += (size_t)__builtin_popcount(more);
    }
    s->n_next = left;
}

/* Scales top, top - 1, .. in units of 1 << shift, and the sums of w x c and w c^2 and the losses under them. */
typedef struct int4_cells {
    int4_sums added[MOST_CELLS + 2]; /* from a scale to the next one; the last is for scales beyond */
    double t[MOST_CELLS + 1], wxc[MOST_CELLS + 2], wc2[MOST_CELLS + 2], loss[MOST_CELLS + 4];
} int4_cells;

/* Sums the codes of the list. `start` are the sums under the scale top. */
static void sum_cells(const int4_search *s, int4_sums start, uint32_t top, uint32_t n, int shift, int4_cells *cells)
{
    memset(cells->added, 0, (n + 2) * sizeof *cells->added);
    for (size_t i = 0; i < s->n_next; i++) {
        const uint32_t cell = top - (tsr_f32_bits(s->next_scale[i]) >> shift);
        int4_sums more = {(double)s->next_x[i], (double)s->next_square[i]};
        if (s->weight != NULL)
            more *= (double)s->next_share[i];
        cells->added[cell > n ? n + 1 : cell] += more;
    }
    /* Two halves, to wait less for additions. */
    int4_sums lower = start, upper = {0, 0};
    const uint32_t half = (n + 1) / 2;
    cells->wxc[0] = start[0];
    cells->wc2[0] = start[1];
    for (uint32_t i = 1; i <= half; i++) {
        lower += cells->added[i];
        upper += cells->added[half + i];
        cells->wxc[i] = lower[0];
        cells->wc2[i] = lower[1];
        cells->wxc[half + i] = upper[0];
        cells->wc2[half + i] = upper[1];
    }
    for (uint32_t i = half + 1; i <= n; i++) {
        cells->wxc[i] += lower[0];
        cells->wc2[i] += lower[1];
    }
    for (uint32_t i = 0; i <= n; i++) {
        const double t = (double)tsr_f32_from_bits((top - i) << shift);
        cells->t[i] = t;
        cells->loss[i] = s->sum_x2 - t * (2 * cells->wxc[i] - t * cells->wc2[i]);
    }
}

/* ---- cells ---- */

/* Sets over[i] to more than 0 if cell i, from scale i - 1 down to scale i, cannot hold the best scale: see 1. */
static void exclude_cells(const int4_search *s, const int4_cells *cells, uint32_t n, double *over)
{
    const double most = s->most + 8 * s->error;
    for (uint32_t i = 1; i <= n; i++) {
        const double a = cells->t[i], b = cells->t[i - 1], width = b - a, part = a * width, c2 = cells->wc2[i - 1];
        const double of_a = cells->loss[i], of_b = cells->loss[i - 1], down = cells->wxc[i - 1] - b * c2;
        const double growth = width * width * c2, gain = of_b + 2 * width * down + growth - of_a;
        const double slope = gain * b - 2 * down * part, curve = gain + c2 * part;
        const double above = most + 0x1p-11 * (fabs(of_a) + fabs(of_b) + growth), over_b = of_b - above;
        const double apart = 4 * over_b * curve * part - slope * slope,
                     ends = of_a - above < over_b ? of_a - above : over_b;
        const double inside = slope > 0 ? apart : 1;
        over[i] = inside < ends ? inside : ends;
    }
}

/* Shrinks a range to the cells that may hold the best scale. */
static void narrow(int4_search *s, int shift, int4_range *range)
{
    int4_cells cells;
    double excluded[MOST_CELLS + 1];
    int4_sums start = s->start;
    const uint32_t bottom = range->first >> shift;
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t top = s->top >> shift, n; top > bottom; top -= n) {
        n = top - bottom < MOST_CELLS ? top - bottom : MOST_CELLS;
        sum_cells(s, start, top, n, shift, &cells);
        for (uint32_t i = 0; i <= n; i++) {
            const uint32_t scale = (top - i) << shift;
            const double above = cells.loss[i] + error_of(s, cells.loss[i]);
            if (above < s->most && scale >= range->first && scale <= range->last && is_stored(s, scale))
                s->most = above;
        }
        exclude_cells(s, &cells, n, excluded);
        for (uint32_t i = 1; i <= n; i++) {
            if (excluded[i] > 0)
                continue;
            least = top - i;
            if (most == 0) {
                most = least;
                s->start = (int4_sums){cells.wxc[i - 1], cells.wc2[i - 1]};
            }
        }
        start = (int4_sums){cells.wxc[n], cells.wc2[n]};
    }
    if (least == UINT32_MAX) {
        range->last = 0;
        return;
    }
    s->top = (most + 1) << shift;
    range->first = least << shift > range->first ? least << shift : range->first;
    range->last = s->top - 1 < range->last ? s->top - 1 : range->last;
}

/* Returns the smallest of some losses. Sets the three behind them. */
static double least_of(double *loss, double *end)
{
    double least[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    end[0] = end[1] = end[2] = INFINITY;
    for (; loss < end; loss += 4) {
        for (int i = 0; i < 4; i++)
            least[i] = loss[i] < least[i] ? loss[i] : least[i];
    }
    const double low = least[0] < least[1] ? least[0] : least[1], high = least[2] < least[3] ? least[2] : least[3];
    return low < high ? low : high;
}

/* Notes the scales of a range with one zero point. */
static void note_range(int4_search *s, int zero, const int4_range *range)
{
    int4_cells cells;
    int4_sums start = s->start;
    const int shift = stored_shift(s);
    const uint32_t bottom = range->first >> shift, last = range->last >> shift;
    const bool normal = (int)(range->first >> 23) >= s->least_normal;
    for (uint32_t top = s->top >> shift, n; top > bottom; top -= n) {
        n = top - bottom < MOST_CELLS ? top - bottom : MOST_CELLS;
        sum_cells(s, start, top, n, shift, &cells);
        const uint32_t from = top > last + 1 ? top - last : 1;
        for (uint32_t i = from; !normal && i <= n; i++)
            cells.loss[i] = is_stored(s, (top - i) << shift) ? cells.loss[i] : INFINITY;
        const double least = least_of(cells.loss + from, cells.loss + n + 1);
        const double above = least + error_of(s, least);
        s->most = above < s->most ? above : s->most;
        const double most = (s->most + s->error) * (1 + 0x1p-12);
        for (uint32_t i = from; i <= n; i++) {
            if (cells.loss[i] <= most)
                note(s, cells.t[i], zero, cells.loss[i]);
        }
        start = (int4_sums){cells.wxc[n], cells.wc2[n]};
    }
}
