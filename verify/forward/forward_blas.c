/* Computes products in FP32 by OpenBLAS, on one thread for each band of rows. */
#include "verify/forward/forward_blas.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

enum { BAND_ROWS = 128, MOST_TOKENS = 256 /* that are multiplied at a time */ };

/* The C interface of BLAS: matrices are row-major. */
enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };
typedef void multiply_matrices(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

typedef struct blas {
    void *library;
    multiply_matrices *gemm;
} blas;

/* Computes c [m][n] = a [m][k] times the transpose of b [n][k]. */
static void multiply(const blas *b, const float *x, const float *w, size_t m, size_t n, size_t k, float *c)
{
    b->gemm(ROW_MAJOR, AS_IT_IS, TRANSPOSED, (int)m, (int)n, (int)k, 1, x, (int)k, w, (int)k, 0, c, (int)n);
}

/* ---- the product ---- */

/* Buffers of one thread. */
typedef struct worker {
    tsr_weight_reader reader;
    double *values;    /* [cols] */
    float *rows, *out; /* [BAND_ROWS][cols], [MOST_TOKENS][BAND_ROWS] */
} worker;

typedef struct product {
    const blas *blas;
    const tsr_op_linear *args;
    tsr_view view;
    float *x; /* [n][cols] */
    worker *workers;
} product;

static void narrow(const double *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (float)x[i];
}

static tsr_status narrow_token(void *context, size_t i, size_t unused, tsr_err *err)
{
    const product *const p = context;
    const size_t cols = p->args->cols;
    (void)unused, (void)err;
    narrow(tsr_doubles(p->args->x) + i * p->args->ld_x, cols, p->x + i * cols);
    return TSR_OK;
}

static tsr_status make_buffers(worker *w, size_t cols, tsr_err *err)
{
    if (w->rows != NULL)
        return TSR_OK;
    w->values = malloc((cols + 1) * sizeof *w->values);
    w->rows = malloc((BAND_ROWS * cols + 1) * sizeof *w->rows);
    w->out = malloc(MOST_TOKENS * BAND_ROWS * sizeof *w->out);
    return w->values != NULL && w->rows != NULL && w->out != NULL ? TSR_OK : tsr_out_of_memory(err, "for a product");
}

/* Decodes rows [row, row + n) to w->rows. */
static tsr_status decode(const product *p, worker *w, size_t row, size_t n, tsr_err *err)
{
    const tsr_op_linear *const a = p->args;
    const tsr_piece piece = {.matrix = a->matrix, .row = a->first_row + row, .rows = n, .cols = a->cols};
    if (a->dense != NULL) {
        narrow(a->dense + piece.row * a->cols, n * a->cols, w->rows);
        return TSR_OK;
    }
    TSR_TRY(tsr_weight_reader_load(&w->reader, &p->view, &piece, err));
    for (size_t i = 0; i < n; i++) {
        tsr_weight_reader_row(&w->reader, i, 0, a->cols, w->values);
        narrow(w->values, a->cols, w->rows + i * a->cols);
    }
    return TSR_OK;
}

static void add_to(const tsr_op_linear *a, size_t i, float sum)
{
    double *const y = tsr_doubles(a->y) + i;
    *y = (a->set ? 0 : *y) + (double)sum;
}

static tsr_status run_band(void *context, size_t band, size_t number, tsr_err *err)
{
    const product *const p = context;
    const tsr_op_linear *const a = p->args;
    worker *const w = &p->workers[number];
    const size_t row = band * BAND_ROWS, n = (size_t)tsr_min_u64(BAND_ROWS, p->args->rows - row);
    TSR_TRY(make_buffers(w, a->cols, err));
    TSR_TRY(decode(p, w, row, n, err));
    for (size_t token = 0, tokens; token < a->n; token += tokens) {
        tokens = (size_t)tsr_min_u64(MOST_TOKENS, a->n - token);
        multiply(p->blas, p->x + token * a->cols, w->rows, tokens, n, a->cols, w->out);
        for (size_t i = 0; i < tokens; i++) {
            for (size_t k = 0; k < n; k++)
                add_to(a, (token + i) * a->ld_y + row + k, w->out[i * n + k]);
        }
    }
    return TSR_OK;
}

static void free_workers(product *p, size_t n)
{
    for (size_t i = 0; p->workers != NULL && i < n; i++) {
        tsr_weight_reader_free(&p->workers[i].reader);
        free(p->workers[i].values);
        free(p->workers[i].rows);
        free(p->workers[i].out);
    }
    free(p->workers);
    free(p->x);
}

static tsr_status linear(tsr_ops *ops, const tsr_op_linear *args, tsr_err *err)
{
    product p = {.blas = ops->state, .args = args};
    if (args->n == 0)
        return TSR_OK;
    if (args->dense == NULL)
        TSR_TRY(tsr_linear_view(&p.view, args->checkpoint, args->weight, err));
    const size_t bands = (size_t)tsr_ceil_div(args->rows, BAND_ROWS),
                 workers = tsr_parallel_workers(bands, ops->threads);
    p.workers = calloc(workers, sizeof *p.workers);
    p.x = malloc((args->n * args->cols + 1) * sizeof *p.x);
    tsr_status status = p.workers == NULL || p.x == NULL ? tsr_out_of_memory(err, "for a product") : TSR_OK;
    if (status == TSR_OK)
        status = tsr_parallel_for(args->n, ops->threads, ops->cancel, narrow_token, &p, err);
    if (status == TSR_OK)
        status = tsr_parallel_for(bands, ops->threads, ops->cancel, run_band, &p, err);
    free_workers(&p, workers);
    return status;
}

/* ---- the library ---- */

/* Computes a product whose sums are exact in FP32, since some builds of OpenBLAS are wrong on some processors. */
static bool is_right(const blas *b)
{
    enum { M = 37, N = 41, K = 67 };
    float x[M * K], w[N * K], c[M * N];
    for (size_t i = 0; i < M * K; i++)
        x[i] = (float)(i * 37 % 31) - 15;
    for (size_t i = 0; i < N * K; i++)
        w[i] = (float)(i * 29 % 23) - 11;
    multiply(b, x, w, M, N, K, c);
    for (size_t i = 0; i < M * N; i++) {
        double sum = 0;
        for (size_t k = 0; k < K; k++)
            sum += (double)x[i / N * K + k] * (double)w[i % N * K + k];
        if (fabs((double)c[i] - sum) > 0)
            return false;
    }
    return true;
}

static void close_blas(tsr_ops *ops)
{
    blas *const b = ops->state;
    (void)dlclose(b->library);
    free(b);
    ops->state = NULL;
}

tsr_status tsr_ops_use_blas(tsr_ops *ops, tsr_err *err)
{
    void (*set_threads)(int);
    if (getauxval(AT_BASE) == 0) /* no dynamic linker: glibc's dlopen then crashes */
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "--precision fp32 on the CPU loads OpenBLAS, which a static program cannot; use --precision "
                        "fp64, or a Tessera that is not linked statically");
    void *const library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "--precision fp32 on the CPU needs OpenBLAS (Debian: libopenblas0): %s",
                        dlerror());
    blas *const b = calloc(1, sizeof *b);
    void *const gemm = dlsym(library, "cblas_sgemm"), *const threads = dlsym(library, "openblas_set_num_threads");
    tsr_status status = b == NULL ? tsr_out_of_memory(err, "for OpenBLAS") : TSR_OK;
    if (status == TSR_OK && (gemm == NULL || threads == NULL))
        status = tsr_fail(err, TSR_E_UNSUPPORTED, "libopenblas.so.0 has no cblas_sgemm or openblas_set_num_threads");
    if (status == TSR_OK) {
        b->library = library;
        memcpy(&b->gemm, &gemm, sizeof gemm);
        memcpy(&set_threads, &threads, sizeof threads);
        set_threads(1);
        if (!is_right(b))
            status = tsr_fail(err, TSR_E_MISMATCH,
                              "OpenBLAS computes wrong products on this processor; install a newer one, set "
                              "OPENBLAS_CORETYPE, or use --precision fp64");
    }
    if (status != TSR_OK) {
        free(b);
        (void)dlclose(library);
        return status;
    }
    ops->name = "CPU, products in FP32";
    ops->state = b;
    ops->linear = linear;
    ops->close = close_blas;
    return TSR_OK;
}
