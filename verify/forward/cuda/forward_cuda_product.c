/* Computes products on a GPU; threads of the host decode the weights band by band. */
#include "verify/forward/cuda/forward_cuda_parts.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/parallel/parallel_for.h"
#include "kernels/cuda/forward_products.h"
#include "verify/values/reader_parts.h"
#include "verify/values/weight_product.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_ROWS_A_TURN = 32,
    ROWS_OF_A_BAND = 128 /* bands have a multiple of this, except the last of a weight */
};

typedef struct decoding {
    const tsr_op_linear *a;
    tsr_precision precision;
    tsr_view view;
    tsr_weight_reader *readers; /* one reader per thread */
    double **values;            /* one row per thread, for other precisions than FP64 */
    char *to;
    size_t first, rows, each; /* rows of the weight; each: rows of a turn */
} decoding;

/* Rounds a row to the precision of the pass. */
static void store_row(const decoding *d, const double *values, void *to)
{
    const size_t cols = d->a->cols;
    if (d->precision == TSR_PRECISION_FP64)
        memcpy(to, values, cols * sizeof *values);
    for (size_t i = 0; d->precision == TSR_PRECISION_FP32 && i < cols; i++)
        ((float *)to)[i] = (float)values[i];
    for (size_t i = 0; d->precision == TSR_PRECISION_BF16 && i < cols; i++)
        ((uint16_t *)to)[i] = tsr_bf16_from_f64(values[i]);
}

/* Reads rows whose bytes are already those of the pass. */
static tsr_status copy_rows(const decoding *d, const tsr_piece *p, char *to, tsr_err *err)
{
    const uint64_t bytes = p->cols * tsr_precision_bytes(d->precision), row = p->matrix * d->view.rows + p->row;
    return tsr_read_runs(&d->view, d->view.weight.data, row * bytes, 1, p->rows * bytes, p->rows * bytes,
                         (unsigned char *)to, err);
}

static bool has_bytes_of_pass(const decoding *d)
{
    const tsr_dtype dtype = d->precision == TSR_PRECISION_BF16 ? TSR_BF16 : TSR_F32;
    return d->precision != TSR_PRECISION_FP64 && d->view.weight.coding == TSR_PLAIN && d->view.derived == NULL &&
           (tsr_dtype)d->view.weight.data->dtype == dtype && !tsr_view_lies_across(&d->view) &&
           d->view.cols == d->a->cols;
}

static tsr_status decode_rows(void *context, size_t i, size_t worker, tsr_err *err)
{
    const decoding *const d = context;
    const size_t row = i * d->each, n = (size_t)tsr_min_u64(d->each, d->rows - row), cols = d->a->cols;
    const size_t pitch = cols * tsr_precision_bytes(d->precision);
    tsr_weight_reader *const reader = &d->readers[worker];
    const tsr_piece piece = {.matrix = d->a->matrix, .row = d->a->first_row + d->first + row, .rows = n, .cols = cols};
    char *to = d->to + row * pitch;
    if (d->a->weight != NULL && has_bytes_of_pass(d))
        return copy_rows(d, &piece, to, err);
    if (d->a->weight != NULL)
        TSR_TRY(tsr_weight_reader_load(reader, &d->view, &piece, err));
    for (size_t k = 0; k < n; k++, to += pitch) {
        double *const row_in_fp64 = d->precision == TSR_PRECISION_FP64 ? (double *)(void *)to : d->values[worker];
        if (d->a->weight == NULL) {
            store_row(d, d->a->dense + (piece.row + k) * cols, to);
            continue;
        }
        tsr_weight_reader_row(reader, k, 0, cols, row_in_fp64);
        if (d->precision != TSR_PRECISION_FP64)
            store_row(d, row_in_fp64, to);
    }
    return TSR_OK;
}

/* Finds the rows among the bands. */
static tsr_gpu_band *find_band(const tsr_gpu_ops *g, const tsr_gpu_band *wanted)
{
    for (size_t i = 0; wanted->weight != NULL && i < g->n_bands; i++) {
        tsr_gpu_band *const b = &g->bands[i];
        if (b->weight == wanted->weight && b->matrix == wanted->matrix && b->first == wanted->first &&
            b->rows == wanted->rows)
            return b;
    }
    return NULL;
}

/* Takes the next band for other rows. Copies into it wait until its earlier rows are multiplied. */
static tsr_status take_band(tsr_gpu_ops *g, bool repeats, const tsr_gpu_band *wanted, tsr_gpu_band **band, tsr_err *err)
{
    enum { FEWEST = 2 };
    tsr_gpu_band *const b = *band = &g->bands[g->turn++ % (repeats ? g->n_bands : FEWEST)];
    b->weight = NULL;
    TSR_TRY(tsr_gpu_check(cudaStreamWaitEvent(g->copies, b->done, 0), "a product", err));
    if (wanted->bytes > b->bytes) {
        if (b->there != NULL)
            TSR_TRY(tsr_gpu_check(cudaFreeAsync(b->there, g->copies), "a product", err));
        b->there = NULL;
        b->bytes = 0;
        TSR_TRY(tsr_gpu_allocated(cudaMallocAsync(&b->there, wanted->bytes, g->copies), wanted->bytes,
                                  "--device cpu needs none", err));
        b->bytes = wanted->bytes;
    }
    b->matrix = wanted->matrix;
    b->first = wanted->first;
    b->rows = wanted->rows;
    return TSR_OK;
}

/* Decodes the rows of a band, and copies them to the GPU, piece by piece. */
static tsr_status fill_band(tsr_ops *ops, decoding *d, tsr_gpu_band *band, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const size_t pitch = d->a->cols * tsr_precision_bytes(d->precision);
    const size_t most = (size_t)tsr_max_u64(TSR_PIECE_BYTES / tsr_max_u64(pitch, 1), 1);
    char *to = band->there;
    for (size_t end = d->first + band->rows; d->first < end; d->first += d->rows) {
        size_t p;
        d->rows = (size_t)tsr_min_u64(most, end - d->first);
        d->each = (size_t)tsr_min_u64(tsr_ceil_div(d->rows, 2 * (uint64_t)ops->threads), MOST_ROWS_A_TURN);
        TSR_TRY(tsr_gpu_take_piece(g, d->rows * pitch, &p, err));
        d->to = g->stage.piece[p];
        TSR_TRY(
            tsr_parallel_for((size_t)tsr_ceil_div(d->rows, d->each), ops->threads, ops->cancel, decode_rows, d, err));
        const size_t bytes = d->rows * pitch;
        ops->exchanged += bytes;
        TSR_TRY(tsr_gpu_check(cudaMemcpyAsync(to, d->to, bytes, cudaMemcpyHostToDevice, g->copies),
                              "copying weights to the GPU", err));
        TSR_TRY(tsr_gpu_check(cudaEventRecord(g->stage.moved[p], g->copies), "copying weights to the GPU", err));
        to += bytes;
    }
    return tsr_gpu_check(cudaEventRecord(band->filled, g->copies), "copying weights to the GPU", err);
}

/* Brings rows [d->first, d->first + rows) to a band. */
static tsr_status bring_rows(tsr_ops *ops, decoding *d, size_t rows, tsr_gpu_band **band, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_gpu_band wanted = {.bytes = rows * d->a->cols * tsr_precision_bytes(d->precision),
                                 .weight = d->a->weight,
                                 .matrix = d->a->matrix,
                                 .first = d->a->first_row + d->first,
                                 .rows = rows};
    *band = find_band(g, &wanted);
    if (*band != NULL) {
        d->first += rows;
        return TSR_OK;
    }
    TSR_TRY(take_band(g, ops->repeats, &wanted, band, err));
    TSR_TRY(fill_band(ops, d, *band, err));
    (*band)->weight = wanted.weight;
    return TSR_OK;
}

/* ---- products ---- */

enum { TOKENS_A_TURN = 1 << 15 };

/* Makes an operand of x [rows][n]: x itself, or a copy in the precision of products, which the caller releases. */
static tsr_status make_operand(const tsr_gpu_ops *g, tsr_activation *x, size_t ld_x, size_t rows, size_t n, void **copy,
                               const void **operand, size_t *ld, tsr_err *err)
{
    *operand = x;
    *ld = ld_x;
    if (g->precision == g->of_activations)
        return TSR_OK;
    TSR_TRY(tsr_stream_allocate(g, rows * n * tsr_precision_bytes(g->precision), copy, err));
    *operand = *copy;
    *ld = n;
    const tsr_grouped args = {.x = x, .ld = ld_x, .tokens = rows, .groups = 1, .width = n, .y = *copy, .pitch = n};
    return tsr_cuda_group(&args, g->precision, g->stream, err);
}

/* Multiplies all tokens by rows [first, first + rows) of a weight, which are in `band`. */
static tsr_status multiply_rows(const tsr_ops *ops, const tsr_op_linear *a, const void *band, size_t first, size_t rows,
                                tsr_err *err)
{
    const tsr_gpu_ops *const g = ops->state;
    tsr_status status = TSR_OK;
    for (size_t token = 0; status == TSR_OK && token < a->n; token += TOKENS_A_TURN) {
        tsr_cublas_gemm gemm = {.precision = g->precision,
                                .b = band,
                                .c = tsr_at(ops, a->y, token * a->ld_y + first),
                                .m = (size_t)tsr_min_u64(TOKENS_A_TURN, a->n - token),
                                .n = rows,
                                .k = a->cols,
                                .ldb = a->cols,
                                .ldc = a->ld_y,
                                .add = !a->set,
                                .sums = true,
                                .batch = 1};
        void *copy = NULL;
        tsr_activation *const x = tsr_at(ops, a->x, token * a->ld_x);
        status = make_operand(g, x, a->ld_x, gemm.m, a->cols, &copy, &gemm.a, &gemm.lda, err);
        if (status == TSR_OK)
            status = tsr_cublas_run(g->cublas, &gemm, err);
        tsr_stream_release(g, copy);
    }
    return status;
}

tsr_status tsr_gpu_gram(tsr_ops *ops, tsr_activation *sums, const tsr_activation *x, size_t n, size_t cols,
                        tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    tsr_status status = TSR_OK;
    for (size_t token = 0; status == TSR_OK && token < n; token += TOKENS_A_TURN) {
        tsr_cublas_gemm gemm = {.precision = g->precision,
                                .c = sums,
                                .m = cols,
                                .n = cols,
                                .k = (size_t)tsr_min_u64(TOKENS_A_TURN, n - token),
                                .ldc = (size_t)tsr_round_up(cols, TSR_GRAM_TILE),
                                .add = true,
                                .sums = true,
                                .across = true,
                                .both_across = true,
                                .batch = 1};
        void *copy = NULL;
        status = make_operand(g, tsr_at(ops, x, token * cols), cols, gemm.k, cols, &copy, &gemm.a, &gemm.lda, err);
        gemm.b = gemm.a;
        gemm.ldb = gemm.lda;
        if (status == TSR_OK)
            status = tsr_cublas_run(g->cublas, &gemm, err);
        tsr_stream_release(g, copy);
    }
    return status;
}

static tsr_status multiply_band(tsr_ops *ops, decoding *d, size_t rows, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_op_linear *const a = d->a;
    const size_t first = d->first;
    tsr_gpu_band *band;
    TSR_TRY(bring_rows(ops, d, rows, &band, err));
    TSR_TRY(tsr_gpu_check(cudaStreamWaitEvent(g->stream, band->filled, 0), "a product", err));
    TSR_TRY(multiply_rows(ops, a, band->there, first, rows, err));
    return tsr_gpu_check(cudaEventRecord(band->done, g->stream), "a product", err);
}

static void free_decoding(decoding *d, size_t workers)
{
    for (size_t i = 0; d->readers != NULL && i < workers; i++)
        tsr_weight_reader_free(&d->readers[i]);
    for (size_t i = 0; d->values != NULL && i < workers; i++)
        free(d->values[i]);
    free(d->readers);
    free(d->values);
}

static tsr_status make_decoding(decoding *d, size_t workers, tsr_err *err)
{
    bool made = true;
    d->readers = calloc(workers, sizeof *d->readers);
    d->values = calloc(workers, sizeof *d->values);
    for (size_t i = 0; d->values != NULL && i < workers; i++) {
        d->values[i] = malloc((d->a->cols + 1) * sizeof **d->values);
        made = made && d->values[i] != NULL;
    }
    if (d->readers == NULL || d->values == NULL || !made)
        return tsr_out_of_memory(err, "for threads");
    return d->a->weight == NULL ? TSR_OK : tsr_linear_view(&d->view, d->a->checkpoint, d->a->weight, err);
}

tsr_status tsr_gpu_linear(tsr_ops *ops, const tsr_op_linear *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = ops->state;
    const size_t workers = tsr_parallel_workers(SIZE_MAX, ops->threads);
    const size_t pitch = tsr_max_u64(a->cols, 1) * tsr_precision_bytes(g->precision);
    const size_t most = (size_t)tsr_max_u64(TSR_BAND_BYTES / pitch / ROWS_OF_A_BAND * ROWS_OF_A_BAND, ROWS_OF_A_BAND);
    const size_t per_band = (size_t)tsr_min_u64(most, a->rows);
    decoding d = {.a = a, .precision = g->precision};
    tsr_status status = make_decoding(&d, workers, err);
    while (status == TSR_OK && a->n > 0 && d.first < a->rows)
        status = multiply_band(ops, &d, (size_t)tsr_min_u64(per_band, a->rows - d.first), err);
    free_decoding(&d, workers);
    return status;
}
