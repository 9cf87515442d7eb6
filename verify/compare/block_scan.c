/* Scans a weight once, block by block, and tests hypotheses about its scales. */
#include "verify/compare/block_scan.h"

#include "common/checked.h"

#include <math.h>
#include <stdlib.h>

/* A least-squares factor has an uncertainty of about 0.0265 / sqrt(16384), and a bias of up to 1 % if values were
 * rounded twice. */
static const double kSameScale = 0.02, kSameScaleOfFew = 0.2; /* for blocks of as few as 16 coarse values */
/* Correlation: codes that belong to the values reach 0.9996; e4m3 with a bad scale that clips or flushes many values
 * still exceeds this. */
static const double kRelated = 0.9;

enum {
    CHUNK = 1024,
    BAND_CELLS = 1 << 18, /* values of the blocks that are read at a time */
    FEW = 64,             /* a block with fewer values has only a rough factor */
    EXCUSED = 50,         /* one in this many such blocks may contradict the name of a fault */
};

typedef struct block {
    double stored, right; /* scales; right is 0 if unknown */
    double error, better; /* e4m3: relative error of the nearest codes under the stored scale and under amax / 448 */
    double d2, due;       /* integers: sum of squared errors, and the average cost of steps that reach amax */
    double zero_off;      /* integers: stored minus right zero point, if known; else 0 */
    bool unrelated;
} block;

/* Returns the scale for this amax: amax / 448, or the next power of two not below it. */
static double scale_of(double amax, bool powers)
{
    int exponent;
    const double scale = amax > 0 ? amax / 448 : 1;
    if (!powers)
        return scale;
    return frexp(scale, &exponent) == 0.5 ? scale : ldexp(1, exponent);
}

/* Sums over a block's values and codes. */
typedef struct sums {
    double x2, y2, xy, amax, low, high; /* low, high: of y */
    double d, d2, x_low, x_high;        /* sums of errors and of squared errors; smallest and largest x, including 0 */
    uint64_t misrounded, nonzero;       /* codes that are not the nearest under the stored scale; codes that are not
                                         * 0 */
} sums;

/* A block of both sides, as rows and columns of the loaded pieces. */
typedef struct window {
    const tsr_weight_reader *x, *y;
    uint64_t row, col, rows, cols;
} window;

/* Up to CHUNK values of one row. */
typedef struct strip {
    double a[CHUNK], b[CHUNK];
    size_t n;
} strip;

static bool next_strip(const window *w, uint64_t *row, uint64_t *col, strip *s)
{
    if (*col >= w->cols) {
        *col = 0;
        ++*row;
    }
    if (*row >= w->rows || w->cols == 0)
        return false;
    s->n = (size_t)tsr_min_u64(CHUNK, w->cols - *col);
    tsr_weight_reader_row(w->x, w->row + *row, w->col + *col, s->n, s->a);
    tsr_weight_reader_row(w->y, w->row + *row, w->col + *col, s->n, s->b);
    return true;
}

/* Counts integers that would not be the nearest if the scale were `factor` times the stored one and the zero point
 * `zero_off` lower. Values beyond the outermost values of the block count as clipped. */
static uint64_t misrounded_under(const window *w, const sums *s, double stored, double factor, double zero_off)
{
    strip p;
    const double half = 0.5 * stored * factor;
    uint64_t found = 0, row = 0, col = 0;
    for (; next_strip(w, &row, &col, &p); col += p.n) {
        for (size_t i = 0; i < p.n; i++) {
            const double to = (p.b[i] + zero_off * stored) * factor;
            const bool clipped = (p.b[i] == s->low && p.a[i] < to) || (p.b[i] == s->high && p.a[i] > to);
            found += !clipped && fabs(p.a[i] - to) > half * (1 + 0x1p-5);
        }
    }
    return found;
}

/* Returns the least-squares correction of the scale, or 1 if the scale is right. The scale is right if every code is
 * the nearest to its value. It is right too if no other scale makes more codes the nearest, as with GPTQ. For e2m1
 * and MXFP6 a wrong scale affects many codes, and another scale removes most of the error. A flipped bit does
 * neither. */
static double factor_of(const window *w, const sums *s, double stored)
{
    const double factor = s->xy / s->y2;
    const tsr_codes codes = tsr_codes_of(&w->y->view->weight);
    if (s->misrounded == 0)
        return 1;
    if (codes == TSR_CODES_E4M3)
        return factor;
    if (codes != TSR_CODES_INTEGERS) {
        const double left2 = s->x2 - s->xy * factor;
        return 4 * s->misrounded >= s->nonzero && s->misrounded > 1 && left2 < 0.6 * s->d2 ? factor : 1;
    }
    return 2 * misrounded_under(w, s, stored, factor, 0) <= s->misrounded ? factor : 1;
}

/* Returns the excess of the zero point: the mean error in steps, if it makes most codes the nearest. */
static double zero_off_of(const window *w, const sums *s, double stored)
{
    if (w->y->view->weight.zero_point == NULL || s->misrounded < 2)
        return 0;
    const double off = nearbyint(s->d / stored / (double)(w->rows * w->cols));
    return off != 0 && 4 * misrounded_under(w, s, stored, 1, off) <= s->misrounded ? off : 0;
}

static void add_up(const window *w, sums *s)
{
    strip p;
    size_t first;
    uint64_t row = 0, col = 0;
    for (; next_strip(w, &row, &col, &p); col += p.n) {
        s->misrounded += tsr_weight_reader_misrounded(w->y, w->row + row, w->col + col, p.n, p.a, p.b, &first);
        for (size_t i = 0; i < p.n; i++) {
            const double a = p.a[i], b = p.b[i];
            s->x2 += a * a;
            s->y2 += b * b;
            s->xy += a * b;
            s->d += a - b;
            s->d2 += (a - b) * (a - b);
            s->nonzero += b != 0;
            s->amax = fmax(s->amax, fabs(a));
            s->x_low = fmin(s->x_low, a);
            s->x_high = fmax(s->x_high, a);
            s->low = fmin(s->low, b);
            s->high = fmax(s->high, b);
        }
    }
}

/* Returns the squared error of the nearest e4m3 codes under a scale. */
static double error_under(const window *w, double scale)
{
    const tsr_rounding rounding = {.kind = TSR_CODES_E4M3, .scale = scale};
    strip p;
    double error = 0;
    uint64_t row = 0, col = 0;
    for (; next_strip(w, &row, &col, &p); col += p.n)
        error += tsr_rounding_error2(&rounding, p.a, p.n, 1);
    return error;
}

/* Returns the mean squared rounding error of steps that reach from `low` to `high`: a twelfth of the squared step. */
static double noise_of(const tsr_weight *w, double low, double high)
{
    const double codes = exp2(w->bits),
                 step = w->zero_point != NULL ? (high - low) / (codes - 1) : fmax(high, -low) / (codes / 2 - 1);
    return step * step / 12;
}

static block judge(const window *w, bool powers)
{
    const tsr_weight *const weight = &w->y->view->weight;
    const double stored = tsr_weight_reader_scale(w->y, w->row, w->col);
    sums s = {0};
    double stored2 = 0, better2 = 0, due = 0;
    add_up(w, &s);
    if (tsr_codes_of(weight) == TSR_CODES_E4M3) {
        stored2 = error_under(w, stored);
        better2 = error_under(w, scale_of(s.amax, powers));
    } else if (tsr_codes_of(weight) == TSR_CODES_INTEGERS) {
        due = noise_of(weight, s.x_low, s.x_high) * (double)(w->rows * w->cols);
    }
    if (!(s.x2 > 0) || !isfinite(s.xy) || !isfinite(stored2))
        return (block){.stored = stored, .d2 = s.d2, .due = due};
    const double zero_off = zero_off_of(w, &s, stored);
    const bool related = zero_off != 0 || s.xy > kRelated * sqrt(s.x2) * sqrt(s.y2);
    return (block){
        .stored = stored,
        .right = zero_off != 0 ? stored
                 : related     ? stored * factor_of(w, &s, stored)
                               : 0,
        .error = sqrt(stored2 / s.x2),
        .better = sqrt(better2 / s.x2),
        .unrelated = !related,
        .zero_off = zero_off,
        .d2 = s.d2,
        .due = due,
    };
}

/* ---- naming the fault ---- */

/* A stored scale and the right one; 0 if unknown. */
typedef struct kept {
    double stored, right;
} kept;

/* The scales of one matrix. */
typedef struct grid {
    kept *blocks;
    uint64_t rows, cols;
    uint64_t kept_rows; /* the first of these rows are in `blocks` */
    double same;        /* scales closer than this are considered equal */
    uint64_t excused;   /* one in this many may have another fault; 0: none may */
} grid;

static bool is_same(const grid *g, double a, double b)
{
    return fabs(a - b) <= g->same * fabs(b);
}

static uint64_t count_kept(const grid *g)
{
    return g->kept_rows * g->cols;
}

static bool is_excused(const grid *g, uint64_t misses, uint64_t seen)
{
    return misses == 0 || (g->excused > 0 && misses <= seen / g->excused);
}

static bool all_inverted(const grid *g)
{
    uint64_t seen = 0, misses = 0;
    for (uint64_t i = 0; i < count_kept(g); i++) {
        seen += g->blocks[i].right != 0;
        misses += g->blocks[i].right != 0 && !is_same(g, g->blocks[i].stored * g->blocks[i].right, 1);
    }
    return is_excused(g, misses, seen);
}

static bool all_multiplied(const grid *g)
{
    uint64_t seen = 0, misses = 0;
    double factor = 0;
    for (uint64_t i = 0; i < count_kept(g); i++) {
        const kept *const b = &g->blocks[i];
        if (b->right == 0)
            continue;
        factor = factor == 0 ? b->stored / b->right : factor;
        seen++;
        misses += !is_same(g, b->stored / b->right, factor);
    }
    return seen > 1 && !is_same(g, factor, 1) && is_excused(g, misses, seen);
}

static bool all_transposed(const grid *g)
{
    uint64_t seen = 0, misses = 0;
    for (uint64_t i = 0; g->kept_rows == g->rows && i < count_kept(g); i++) {
        const kept *const from = &g->blocks[i % g->cols * g->rows + i / g->cols];
        seen += g->blocks[i].right != 0;
        misses += g->blocks[i].right != 0 && !is_same(g, from->stored, g->blocks[i].right);
    }
    return g->kept_rows == g->rows && is_excused(g, misses, seen);
}

/* Returns true if all scales are shifted by `by`. The end of each row is not tested, because unknown scales move in
 * there; a grid of one column counts as one row. */
static bool all_shifted(const grid *g, int64_t by)
{
    const int64_t count = (int64_t)count_kept(g), row = (int64_t)g->cols;
    uint64_t seen = 0, misses = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i + by < 0 || i + by >= count || g->blocks[i].right == 0)
            continue;
        if (by * by < row * row && (i + by) / row != i / row)
            continue;
        seen++;
        misses += !is_same(g, g->blocks[i + by].stored, g->blocks[i].right);
    }
    return seen > 1 && is_excused(g, misses, seen);
}

/* Returns true if two scales are wrong, and each is the right one of the other's block. */
static bool are_two_swapped(const grid *g)
{
    const kept *wrong[2];
    size_t n = 0;
    for (uint64_t i = 0; i < count_kept(g); i++) {
        const kept *const b = &g->blocks[i];
        if (b->right == 0 || is_same(g, b->stored, b->right))
            continue;
        if (n == 2)
            return false;
        wrong[n++] = b;
    }
    return g->kept_rows == g->rows && n == 2 && is_same(g, wrong[0]->stored, wrong[1]->right) &&
           is_same(g, wrong[1]->stored, wrong[0]->right);
}

static tsr_scale_fault name_fault(const grid *g, bool global)
{
    const int64_t row = (int64_t)g->cols;
    if (all_transposed(g))
        return TSR_SCALES_TRANSPOSED;
    if (all_shifted(g, 1) || all_shifted(g, -1) || all_shifted(g, row) || all_shifted(g, -row))
        return TSR_SCALES_SHIFTED;
    if (all_inverted(g))
        return TSR_SCALES_INVERTED;
    if (are_two_swapped(g))
        return TSR_SCALES_SWAPPED;
    return global && all_multiplied(g) ? TSR_SCALES_MULTIPLIED : TSR_SCALES_WRONG;
}

/* ---- the pass ---- */

/* State of a scan. */
typedef struct scanning {
    const tsr_view *x, *y;
    bool powers;
    grid grid;
    tsr_weight_reader readers[2];
    uint64_t unrelated, zeros_wrong, scales_wrong;
    double d2, due;
    tsr_block_scan *scan;
} scanning;

static void count(scanning *k, const block *b, const tsr_piece *piece)
{
    tsr_block_scan *const scan = k->scan;
    scan->blocks++;
    k->unrelated += b->unrelated;
    k->d2 += b->d2;
    k->due += b->due;
    const bool wrong = b->right != 0 && !is_same(&k->grid, b->stored, b->right);
    k->scales_wrong += wrong;
    k->zeros_wrong += b->zero_off != 0;
    if (wrong || b->zero_off != 0)
        scan->last_wrong = *piece;
    if ((wrong || b->zero_off != 0) && scan->wrong++ == 0) {
        scan->first_wrong = *piece;
        scan->factor = wrong ? b->stored / b->right : b->zero_off;
    }
    if (b->error < TSR_USUAL_BLOCK_ERROR || b->better * b->better > 0.8 * b->error * b->error)
        return;
    if (scan->improvable++ > 0 && b->error - b->better <= scan->error - scan->better)
        return;
    scan->most_improvable = *piece;
    scan->error = b->error;
    scan->better = b->better;
}

/* Scans the blocks of a band: as many rows and columns of blocks as are read at a time. */
static tsr_status scan_band(scanning *k, const tsr_piece *band, tsr_err *err)
{
    const uint64_t rows = k->y->block.rows, cols = k->y->block.cols;
    TSR_TRY(tsr_weight_reader_load(&k->readers[0], k->x, band, err));
    TSR_TRY(tsr_weight_reader_load(&k->readers[1], k->y, band, err));
    for (uint64_t row = 0; row < band->rows; row += rows) {
        for (uint64_t col = 0; col < band->cols; col += cols) {
            const window w = {&k->readers[0],
                              &k->readers[1],
                              row,
                              col,
                              tsr_min_u64(rows, band->rows - row),
                              tsr_min_u64(cols, band->cols - col)};
            const tsr_piece place = {band->matrix, band->row + row, band->col + col, w.rows, w.cols};
            const block b = judge(&w, k->powers);
            const uint64_t at_row = place.row / rows;
            if (at_row < k->grid.kept_rows)
                k->grid.blocks[at_row * k->grid.cols + place.col / cols] = (kept){b.stored, b.right};
            count(k, &b, &place);
        }
    }
    return TSR_OK;
}

static tsr_status scan_matrix(scanning *k, uint64_t matrix, tsr_err *err)
{
    const tsr_view *const y = k->y;
    const uint64_t area = y->block.rows * y->block.cols,
                   wide = tsr_min_u64(tsr_max_u64(BAND_CELLS / area, 1), k->grid.cols),
                   high = tsr_min_u64(tsr_max_u64(BAND_CELLS / area / wide, 1), k->grid.rows);
    const uint64_t before = k->scales_wrong;
    for (uint64_t row = 0; row < y->rows; row += high * y->block.rows) {
        for (uint64_t col = 0; col < y->cols; col += wide * y->block.cols) {
            const tsr_piece band = {matrix, row, col, tsr_min_u64(high * y->block.rows, y->rows - row),
                                    tsr_min_u64(wide * y->block.cols, y->cols - col)};
            TSR_TRY(scan_band(k, &band, err));
        }
    }
    if (k->scales_wrong == before)
        return TSR_OK;
    const tsr_scale_fault fault = name_fault(&k->grid, y->weight.global_scale != NULL);
    k->scan->fault = before == 0 || fault == k->scan->fault ? fault : TSR_SCALES_WRONG;
    return TSR_OK;
}

tsr_status tsr_scan_blocks(const tsr_view *x, const tsr_view *y, bool powers, tsr_block_scan *scan, tsr_err *err)
{
    const tsr_piece whole = {.rows = tsr_min_u64(y->block.rows, y->rows), .cols = tsr_min_u64(y->block.cols, y->cols)};
    *scan = (tsr_block_scan){0};
    if (y->weight.reordered || tsr_weight_reader_memory(x, &whole) > TSR_SCAN_BYTES ||
        tsr_weight_reader_memory(y, &whole) > TSR_SCAN_BYTES) {
        scan->fault = TSR_NOT_SCANNED;
        return TSR_OK;
    }
    const bool rough = y->weight.bits == 4 || y->block.rows * y->block.cols <= FEW;
    scanning k = {.x = x, .y = y, .powers = powers, .scan = scan};
    k.grid = (grid){.rows = tsr_ceil_div(y->rows, y->block.rows),
                    .cols = tsr_ceil_div(y->cols, y->block.cols),
                    .same = rough ? kSameScaleOfFew : kSameScale,
                    .excused = rough ? EXCUSED : 0};
    k.grid.kept_rows = tsr_min_u64(k.grid.rows, tsr_max_u64(TSR_SCAN_KEPT / tsr_max_u64(k.grid.cols, 1), 1));
    k.grid.blocks = calloc(count_kept(&k.grid) + 1, sizeof *k.grid.blocks);
    if (k.grid.blocks == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the blocks of '%s'", y->weight.values->name);
    tsr_status status = TSR_OK;
    for (uint64_t matrix = 0; status == TSR_OK && matrix < y->matrices; matrix++)
        status = scan_matrix(&k, matrix, err);
    scan->cost = k.due > 0 ? k.d2 / k.due : 0;
    if (k.unrelated > scan->blocks / 10)
        scan->fault = TSR_CODES_UNRELATED;
    else if (k.scales_wrong == 0 && k.zeros_wrong > 0)
        scan->fault = TSR_ZEROS_WRONG;
    /* more scales are wrong than the swapped pair */
    else if (scan->fault == TSR_SCALES_SWAPPED && scan->wrong != 2)
        scan->fault = TSR_SCALES_WRONG;
    tsr_weight_reader_free(&k.readers[0]);
    tsr_weight_reader_free(&k.readers[1]);
    free(k.grid.blocks);
    return status;
}
