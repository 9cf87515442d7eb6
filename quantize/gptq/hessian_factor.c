/* Computes Cholesky factors in tiles, with a fixed order of all sums. */
#include "quantize/gptq/hessian_factor.h"

#include "common/parallel/parallel_for.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = TSR_OUTER_TILE, BLOCK = 64 /* columns that are eliminated together */ };

static size_t positions_of(size_t cols)
{
    return (cols + TILE - 1) / TILE * TILE;
}

/* Returns the number of ratios of the tiles before `tile`. */
static size_t ratios_before(size_t positions, size_t tile)
{
    return tile * TILE * positions - tile * (tile - 1) / 2 * TILE * TILE;
}

const double *tsr_hessian_ratios(const tsr_hessian_factor *f, size_t tile)
{
    return f->ratios + ratios_before(f->positions, tile);
}

uint64_t tsr_hessian_factor_bytes(size_t cols)
{
    const size_t n = positions_of(cols);
    return (ratios_before(n, n / TILE) + n) * sizeof(double) + cols * sizeof(uint32_t);
}

uint64_t tsr_hessian_factor_work_bytes(size_t cols)
{
    const size_t n = positions_of(cols);
    return tsr_hessian_factor_bytes(cols) + (n + 2 * BLOCK) * n * sizeof(double);
}

/* ---- the order of columns ---- */

static double element(const unsigned char *h, size_t cols, size_t row, size_t col)
{
    float x;
    memcpy(&x, h + (row * cols + col) * sizeof x, sizeof x);
    return (double)x;
}

typedef struct ranked {
    double diagonal;
    uint32_t col;
} ranked;

static int by_diagonal(const void *a, const void *b)
{
    const ranked *const x = a, *const y = b;
    return x->diagonal != y->diagonal ? (x->diagonal < y->diagonal ? -1 : 1) : x->col < y->col ? 1 : -1;
}

/* Orders the columns. Returns the mean of the diagonal; NaN: the diagonal is invalid. */
static double order_columns(tsr_hessian_factor *f, const unsigned char *h, ranked *columns)
{
    double sum = 0;
    for (size_t i = 0; i < f->cols; i++) {
        columns[i] = (ranked){element(h, f->cols, i, i), (uint32_t)i};
        if (!(columns[i].diagonal >= 0))
            return NAN;
        sum += columns[i].diagonal;
    }
    const double mean = sum / (double)f->cols;
    qsort(columns, f->cols, sizeof *columns, by_diagonal);
    for (size_t i = 0; i < f->cols; i++)
        f->order[i] = columns[i].col;
    return mean > 0 && isfinite(mean) ? mean : NAN;
}

/* ---- elimination ---- */

/* The matrix, and the eliminated columns of the rows below them, packed for the kernel. */
typedef struct eliminating {
    const tsr_cpu_kernels *kernels;
    const tsr_hessian_factor *factor;
    const unsigned char *h;
    const char *what;         /* for messages */
    double mean;              /* mean of the diagonal */
    double added;             /* to the diagonal */
    double *a;                /* [positions][positions]: the lower triangle of H, then that of R^T */
    double *packed, *negated; /* [tiles][BLOCK][TILE] */
    size_t first, width;      /* columns that are eliminated now */
} eliminating;

/* Fills a tile row of the matrix. Rejects elements that differ from those on the other side of the diagonal. */
static tsr_status fill_rows(void *context, size_t tile, size_t worker, tsr_err *err)
{
    const eliminating *const e = context;
    const tsr_hessian_factor *const f = e->factor;
    bool symmetric = true;
    (void)worker;
    for (size_t i = tile * TILE; i < (tile + 1) * TILE; i++) {
        double *const row = e->a + i * f->positions;
        memset(row, 0, (i + 1) * sizeof *row);
        for (size_t j = 0; j <= i && i < f->cols; j++) {
            row[j] = element(e->h, f->cols, f->order[i], f->order[j]);
            const double mirrored = element(e->h, f->cols, f->order[j], f->order[i]);
            symmetric = symmetric && !(fabs(row[j] - mirrored) > 1e-3 * (e->mean + fabs(row[j])));
        }
        row[i] = i < f->cols ? row[i] + e->added : 1;
    }
    return symmetric ? TSR_OK
                     : tsr_fail(err, TSR_E_VALUE,
                                "'%s.input_products' is not a mean of x x^T: it is not symmetric; run calibrate again",
                                e->what);
}

/* Factors the block on the diagonal. Returns false if it is not positive definite. */
static bool eliminate_block(const eliminating *e)
{
    const size_t n = e->factor->positions;
    for (size_t j = e->first; j < e->first + e->width; j++) {
        double *const row = e->a + j * n;
        for (size_t k = e->first; k <= j; k++) {
            const double *const other = e->a + k * n;
            double sum = row[k];
            for (size_t i = e->first; i < k; i++)
                sum -= row[i] * other[i];
            if (k == j && !(sum > 0 && isfinite(sum)))
                return false;
            row[k] = k == j ? sqrt(sum) : sum / other[k];
        }
    }
    return true;
}

/* Solves for the rows of a tile below the block, and packs them. */
static tsr_status solve_rows(void *context, size_t i, size_t worker, tsr_err *err)
{
    const eliminating *const e = context;
    const size_t n = e->factor->positions, tile = (e->first + e->width) / TILE + i;
    double *const packed = e->packed + tile * BLOCK * TILE, *const negated = e->negated + tile * BLOCK * TILE;
    (void)worker;
    (void)err;
    for (size_t k = 0; k < e->width; k++) {
        const double *const pivot = e->a + (e->first + k) * n + e->first;
        double x[TILE];
        for (size_t r = 0; r < TILE; r++)
            x[r] = e->a[(tile * TILE + r) * n + e->first + k];
        for (size_t l = 0; l < k; l++) {
            for (size_t r = 0; r < TILE; r++)
                x[r] -= packed[l * TILE + r] * pivot[l];
        }
        for (size_t r = 0; r < TILE; r++) {
            packed[k * TILE + r] = x[r] / pivot[k];
            negated[k * TILE + r] = -packed[k * TILE + r];
            e->a[(tile * TILE + r) * n + e->first + k] = packed[k * TILE + r];
        }
    }
    return TSR_OK;
}

/* Subtracts the products of the eliminated columns from a row of tiles. The longest rows come first. */
static tsr_status update_rows(void *context, size_t i, size_t worker, tsr_err *err)
{
    const eliminating *const e = context;
    const size_t n = e->factor->positions, row = n / TILE - 1 - i;
    (void)worker;
    (void)err;
    for (size_t col = (e->first + e->width) / TILE; col <= row; col++)
        e->kernels->outer_products(e->negated + row * BLOCK * TILE, e->packed + col * BLOCK * TILE, e->width,
                                   e->a + row * TILE * n + col * TILE, n);
    return TSR_OK;
}

/* Replaces H by its factor. *definite becomes false if it is not positive definite. */
static tsr_status eliminate(eliminating *e, uint64_t threads, bool *definite, tsr_err *err)
{
    const size_t n = e->factor->positions;
    *definite = true;
    TSR_TRY(tsr_parallel_for(n / TILE, threads, NULL, fill_rows, e, err));
    for (e->first = 0; e->first < n; e->first += e->width) {
        e->width = n - e->first < BLOCK ? n - e->first : BLOCK;
        if (!eliminate_block(e)) {
            *definite = false;
            return TSR_OK;
        }
        const size_t below = (n - e->first - e->width) / TILE;
        TSR_TRY(tsr_parallel_for(below, threads, NULL, solve_rows, e, err));
        TSR_TRY(tsr_parallel_for(below, threads, NULL, update_rows, e, err));
    }
    return TSR_OK;
}

/* Takes pivots and ratios from the lower triangle of R^T. */
static void keep(tsr_hessian_factor *f, const double *a)
{
    const size_t n = f->positions;
    double *to = f->ratios;
    for (size_t j = 0; j < n; j++)
        f->pivots[j] = a[j * n + j] * a[j * n + j];
    for (size_t first = 0; first < n; first += TILE) {
        for (size_t k = first; k < n; k++) {
            for (size_t j = first; j < first + TILE; j++)
                *to++ = k > j ? a[k * n + j] / a[j * n + j] : 0;
        }
    }
}

/* Factors H with more and more damping. */
static tsr_status factorize(tsr_hessian_factor *f, eliminating *e, uint64_t threads, tsr_err *err)
{
    bool definite = false;
    for (f->damping = 0.01; f->damping < 20; f->damping *= 10) {
        e->added = f->damping * e->mean;
        TSR_TRY(eliminate(e, threads, &definite, err));
        if (definite)
            break;
    }
    if (!definite)
        return tsr_fail(
            err, TSR_E_VALUE,
            "'%s.input_products' is not a mean of x x^T: it is not positive definite, even with 10 times the "
            "mean of its diagonal added; run calibrate again",
            e->what);
    keep(f, e->a);
    return TSR_OK;
}

tsr_status tsr_hessian_factorize(tsr_hessian_factor *f, const unsigned char *h, size_t cols, const char *what,
                                 const tsr_cpu_kernels *kernels, uint64_t threads, tsr_err *err)
{
    const size_t n = positions_of(cols);
    *f = (tsr_hessian_factor){.cols = cols, .positions = n};
    f->order = malloc(cols * sizeof *f->order);
    f->pivots = malloc(n * sizeof *f->pivots);
    f->ratios = malloc(ratios_before(n, n / TILE) * sizeof *f->ratios);
    ranked *const columns = malloc(cols * sizeof *columns);
    eliminating e = {.kernels = kernels, .factor = f, .h = h, .what = what, .a = malloc(n * n * sizeof *e.a)};
    e.packed = malloc(n * BLOCK * sizeof *e.packed);
    e.negated = malloc(n * BLOCK * sizeof *e.negated);
    tsr_status status;
    if (f->order == NULL || f->pivots == NULL || f->ratios == NULL || columns == NULL || e.a == NULL ||
        e.packed == NULL || e.negated == NULL) {
        status = tsr_out_of_memory(err, "for the Hessian of a layer");
    } else {
        e.mean = order_columns(f, h, columns);
        status = isnan(e.mean) ? tsr_fail(err, TSR_E_VALUE,
                                          "'%s.input_products' is not a mean of x x^T: its diagonal has negative or "
                                          "non-finite values, or only zeros; run calibrate again",
                                          what)
                               : factorize(f, &e, threads, err);
    }
    free(columns);
    free(e.a);
    free(e.packed);
    free(e.negated);
    if (status != TSR_OK)
        tsr_hessian_factor_free(f);
    return status;
}

void tsr_hessian_factor_free(tsr_hessian_factor *f)
{
    free(f->order);
    free(f->pivots);
    free(f->ratios);
    *f = (tsr_hessian_factor){.cols = 0};
}
