/* One pass over a weight, block by block, and the hypotheses that its factors are held to. */
#include "verify/weights/block_scan.h"

#include "common/checked.h"

#include <math.h>
#include <stdlib.h>

/* A factor found by least squares is uncertain by about 0.0265 / sqrt(16384), and biased by up to a per cent where
 * values were rounded twice. */
static const double kSameScale = 0.02, kSameScaleInt4 = 0.2; /* of as few as 32 coarse values */
/* Codes that belong to the values reach 0.9996; e4m3 with a bad scale that clips or flushes much, still more than this.
 */
static const double kRelated = 0.9;

enum { CHUNK = 1024 };

typedef struct block {
    double stored, right; /* scales; right is 0 where nothing can be said */
    double error, better; /* e4m3: relative, of the nearest codes under the stored scale and under amax / 448 */
    double d2, due;       /* integers: sum of squared errors, and what steps that reach amax cost in the mean */
    bool unrelated;
} block;

/* The nearest value of e4m3 to q >= 0, or the largest: steps of an eighth of its binade, no finer than 2^-9. */
static double round_to_e4m3(double q)
{
    int exponent;
    (void)frexp(q, &exponent);
    const double step = ldexp(1, (exponent - 1 < -6 ? -6 : exponent - 1) - 3);
    return fmin(nearbyint(q / step) * step, 448);
}

static double rounding_error2(double x, double scale)
{
    const double d = fabs(x) - round_to_e4m3(fabs(x) / scale) * scale;
    return d * d;
}

/* The scale that amax asks for: amax / 448, or the power of two that is not below it. */
static double scale_of(double amax, bool powers)
{
    int exponent;
    const double scale = amax > 0 ? amax / 448 : 1;
    if (!powers)
        return scale;
    return frexp(scale, &exponent) == 0.5 ? scale : ldexp(1, exponent);
}

/* What a block's values and codes add up to. */
typedef struct sums {
    double x2, y2, xy, amax, low, high; /* low, high: of y */
    double d2, x_low, x_high;           /* squared errors; the outermost of x, and 0 */
    uint64_t misrounded;                /* codes that are not the nearest under the stored scale */
} sums;

/* Integers that would not be the nearest if the scale were `factor` times the stored one; beyond the outermost values
 * of the block they count as clipped. */
static uint64_t misrounded_under(const tsr_weight_reader *x, const tsr_weight_reader *y, const sums *s, double stored,
                                 double factor)
{
    double a[CHUNK], b[CHUNK];
    const double half = 0.5 * stored * factor;
    uint64_t found = 0;
    for (uint64_t row = 0; row < x->piece.rows; row++) {
        for (uint64_t col = 0; col < x->piece.cols; col += CHUNK) {
            const size_t n = (size_t)tsr_min_u64(CHUNK, x->piece.cols - col);
            tsr_weight_reader_row(x, row, col, n, a);
            tsr_weight_reader_row(y, row, col, n, b);
            for (size_t i = 0; i < n; i++) {
                const double to = b[i] * factor;
                const bool clipped = (b[i] == s->low && a[i] < to) || (b[i] == s->high && a[i] > to);
                found += !clipped && fabs(a[i] - to) > half * (1 + 0x1p-5);
            }
        }
    }
    return found;
}

/* What least squares would multiply the scale by; 1 where it may not say so. Where every code is the nearest to its
 * value the scale is right, whatever a few coarse codes average to; and so it is where another scale would not make
 * more of them the nearest: codes that were chosen otherwise, as GPTQ does. */
static double factor_of(const tsr_weight_reader *x, const tsr_weight_reader *y, const sums *s, double stored)
{
    const double factor = s->xy / s->y2;
    if (s->misrounded == 0)
        return 1;
    if (y->view->weight.coding == TSR_CODED_E4M3)
        return factor;
    return 2 * misrounded_under(x, y, s, stored, factor) <= s->misrounded ? factor : 1;
}

static void add_up(const tsr_weight_reader *x, const tsr_weight_reader *y, sums *s)
{
    double a[CHUNK], b[CHUNK];
    size_t first;
    for (uint64_t row = 0; row < x->piece.rows; row++) {
        for (uint64_t col = 0; col < x->piece.cols; col += CHUNK) {
            const size_t n = (size_t)tsr_min_u64(CHUNK, x->piece.cols - col);
            tsr_weight_reader_row(x, row, col, n, a);
            tsr_weight_reader_row(y, row, col, n, b);
            s->misrounded += tsr_weight_reader_misrounded(y, row, col, n, a, b, &first);
            for (size_t i = 0; i < n; i++) {
                s->x2 += a[i] * a[i];
                s->y2 += b[i] * b[i];
                s->xy += a[i] * b[i];
                s->d2 += (a[i] - b[i]) * (a[i] - b[i]);
                s->amax = fmax(s->amax, fabs(a[i]));
                s->x_low = fmin(s->x_low, a[i]);
                s->x_high = fmax(s->x_high, a[i]);
                s->low = fmin(s->low, b[i]);
                s->high = fmax(s->high, b[i]);
            }
        }
    }
}

/* Squared error of the nearest codes under a scale. */
static double error_under(const tsr_weight_reader *x, double scale)
{
    double a[CHUNK], error = 0;
    for (uint64_t row = 0; row < x->piece.rows; row++) {
        for (uint64_t col = 0; col < x->piece.cols; col += CHUNK) {
            const size_t n = (size_t)tsr_min_u64(CHUNK, x->piece.cols - col);
            tsr_weight_reader_row(x, row, col, n, a);
            for (size_t i = 0; i < n; i++)
                error += rounding_error2(a[i], scale);
        }
    }
    return error;
}

/* The square of the step that reaches from `low` to `high`, spread evenly over a step: a twelfth of it. */
static double noise_of(const tsr_weight *w, double low, double high)
{
    const double codes = exp2(w->bits),
                 step = w->zero_point != NULL ? (high - low) / (codes - 1) : fmax(high, -low) / (codes / 2 - 1);
    return step * step / 12;
}

static block judge(const tsr_weight_reader *x, const tsr_weight_reader *y, double stored, bool powers)
{
    sums s = {0};
    double stored2 = 0, better2 = 0, due = 0;
    add_up(x, y, &s);
    if (y->view->weight.coding == TSR_CODED_E4M3) {
        stored2 = error_under(x, stored);
        better2 = error_under(x, scale_of(s.amax, powers));
    } else {
        due = noise_of(&y->view->weight, s.x_low, s.x_high) * (double)(x->piece.rows * x->piece.cols);
    }
    if (!(s.x2 > 0) || !isfinite(s.xy) || !isfinite(stored2))
        return (block){.stored = stored, .d2 = s.d2, .due = due};
    const bool related = s.xy > kRelated * sqrt(s.x2) * sqrt(s.y2);
    return (block){
        .stored = stored,
        .right = related ? stored * factor_of(x, y, &s, stored) : 0,
        .error = sqrt(stored2 / s.x2),
        .better = sqrt(better2 / s.x2),
        .unrelated = !related,
        .d2 = s.d2,
        .due = due,
    };
}

/* ---- naming the fault ---- */

typedef struct grid {
    const block *blocks;
    uint64_t matrices, rows, cols;
    double same; /* scales closer than this are the same */
} grid;

static bool is_same(const grid *g, double a, double b)
{
    return fabs(a - b) <= g->same * fabs(b);
}

static bool all_inverted(const grid *g)
{
    for (uint64_t i = 0; i < g->matrices * g->rows * g->cols; i++) {
        if (g->blocks[i].right != 0 && !is_same(g, g->blocks[i].stored * g->blocks[i].right, 1))
            return false;
    }
    return true;
}

static bool all_transposed(const grid *g)
{
    for (uint64_t i = 0; i < g->matrices * g->rows * g->cols; i++) {
        const uint64_t matrix = i / (g->rows * g->cols), row = i / g->cols % g->rows, col = i % g->cols;
        const block *const from = &g->blocks[matrix * g->rows * g->cols + col * g->rows + row];
        if (g->blocks[i].right != 0 && !is_same(g, from->stored, g->blocks[i].right))
            return false;
    }
    return true;
}

static bool all_shifted(const grid *g, int64_t by)
{
    const int64_t count = (int64_t)(g->matrices * g->rows * g->cols);
    int64_t seen = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i + by < 0 || i + by >= count || g->blocks[i].right == 0)
            continue;
        if (!is_same(g, g->blocks[i + by].stored, g->blocks[i].right))
            return false;
        seen++;
    }
    return seen > 1;
}

static tsr_scale_fault name_fault(const grid *g)
{
    const int64_t row = (int64_t)g->cols;
    if (all_transposed(g))
        return TSR_SCALES_TRANSPOSED;
    if (all_shifted(g, 1) || all_shifted(g, -1) || all_shifted(g, row) || all_shifted(g, -row))
        return TSR_SCALES_SHIFTED;
    return all_inverted(g) ? TSR_SCALES_INVERTED : TSR_SCALES_WRONG;
}

/* ---- the pass ---- */

static void count(tsr_block_scan *scan, const grid *g, const block *b, const tsr_piece *piece)
{
    scan->blocks++;
    if (b->right != 0 && !is_same(g, b->stored, b->right) && scan->wrong++ == 0) {
        scan->first_wrong = *piece;
        scan->factor = b->stored / b->right;
    }
    if (b->error < TSR_USUAL_BLOCK_ERROR || b->better * b->better > 0.8 * b->error * b->error)
        return;
    if (scan->improvable++ > 0 && b->error - b->better <= scan->error - scan->better)
        return;
    scan->most_improvable = *piece;
    scan->error = b->error;
    scan->better = b->better;
}

static tsr_status scan_all(const tsr_view *x, const tsr_view *y, bool powers, grid *g, block *blocks,
                           tsr_weight_reader readers[2], tsr_block_scan *scan, tsr_err *err)
{
    const tsr_weight *const w = &y->weight;
    uint64_t unrelated = 0;
    double d2 = 0, due = 0;
    for (uint64_t i = 0; i < g->matrices * g->rows * g->cols; i++) {
        tsr_piece p = {.matrix = i / (g->rows * g->cols),
                       .row = i / g->cols % g->rows * w->block_rows,
                       .col = i % g->cols * w->block_cols};
        p.rows = tsr_min_u64(w->block_rows, w->rows - p.row);
        p.cols = tsr_min_u64(w->block_cols, w->cols - p.col);
        TSR_TRY(tsr_weight_reader_load(&readers[0], x, &p, err));
        TSR_TRY(tsr_weight_reader_load(&readers[1], y, &p, err));
        blocks[i] = judge(&readers[0], &readers[1], readers[1].scales[0], powers);
        count(scan, g, &blocks[i], &p);
        unrelated += blocks[i].unrelated;
        d2 += blocks[i].d2;
        due += blocks[i].due;
    }
    scan->cost = due > 0 ? d2 / due : 0;
    if (unrelated > scan->blocks / 10)
        scan->fault = TSR_CODES_UNRELATED;
    else if (scan->wrong > 0)
        scan->fault = name_fault(g);
    return TSR_OK;
}

tsr_status tsr_scan_blocks(const tsr_view *x, const tsr_view *y, bool powers, tsr_block_scan *scan, tsr_err *err)
{
    const tsr_weight *const w = &y->weight;
    const tsr_piece whole = {.rows = tsr_min_u64(w->block_rows, w->rows), .cols = tsr_min_u64(w->block_cols, w->cols)};
    *scan = (tsr_block_scan){0};
    if (tsr_weight_reader_memory(x, &whole) > TSR_SCAN_BYTES || tsr_weight_reader_memory(y, &whole) > TSR_SCAN_BYTES) {
        scan->fault = TSR_NOT_SCANNED;
        return TSR_OK;
    }
    grid g = {.matrices = w->matrices,
              .rows = tsr_ceil_div(w->rows, w->block_rows),
              .cols = tsr_ceil_div(w->cols, w->block_cols),
              .same = w->bits == 4 ? kSameScaleInt4 : kSameScale};
    block *const blocks = calloc(g.matrices * g.rows * g.cols + 1, sizeof *blocks);
    if (blocks == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the blocks of '%s'", w->values->name);
    g.blocks = blocks;
    tsr_weight_reader readers[2] = {{0}};
    const tsr_status status = scan_all(x, y, powers, &g, blocks, readers, scan, err);
    tsr_weight_reader_free(&readers[0]);
    tsr_weight_reader_free(&readers[1]);
    free(blocks);
    return status;
}
