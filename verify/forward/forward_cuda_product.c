/* Computes products on a GPU; threads of the host decode the weights band by band. */
#include "verify/forward/forward_cuda_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/values/weight_product.h"

#include <stdlib.h>
#include <string.h>

enum { BAND_ELEMENTS = 1 << 24, MOST_ROWS_A_TURN = 32 };

typedef struct decoding {
    const tsr_linear_product *a;
    tsr_view view;
    tsr_weight_reader *readers; /* one reader per thread */
    double *to;
    size_t first, rows, each; /* rows of the weight; each: rows of a turn */
} decoding;

static tsr_status decode_rows(void *context, size_t i, size_t worker, tsr_err *err)
{
    const decoding *const d = context;
    const size_t row = i * d->each, n = (size_t)tsr_min_u64(d->each, d->rows - row), cols = d->a->cols;
    tsr_weight_reader *const reader = &d->readers[worker];
    const tsr_piece piece = {.matrix = d->a->matrix, .row = d->a->first_row + d->first + row, .rows = n, .cols = cols};
    if (d->a->weight == NULL) {
        memcpy(d->to + row * cols, d->a->dense + piece.row * cols, n * cols * sizeof(double));
        return TSR_OK;
    }
    TSR_TRY(tsr_weight_reader_load(reader, &d->view, &piece, err));
    for (size_t k = 0; k < n; k++)
        tsr_weight_reader_row(reader, k, 0, cols, d->to + (row + k) * cols);
    return TSR_OK;
}

/* Takes the next band on the GPU. Copies into it wait until its earlier contents are multiplied. */
static tsr_status take_band(tsr_gpu_ops *g, size_t elements, size_t *band, tsr_err *err)
{
    *band = g->turn++ % TSR_BANDS;
    if (elements > g->capacity) {
        TSR_TRY(tsr_gpu_check(cudaStreamSynchronize(g->stream), "a product in FP64", err));
        g->capacity = 0;
        for (size_t i = 0; i < TSR_BANDS; i++) {
            void *there = NULL;
            (void)cudaFree(g->there[i]);
            g->there[i] = NULL;
            TSR_TRY(tsr_gpu_allocated(cudaMalloc(&there, elements * sizeof(double)), elements * sizeof(double),
                                      "--device cpu needs none", err));
            g->there[i] = there;
        }
        g->capacity = elements;
    }
    return tsr_gpu_check(cudaStreamWaitEvent(g->copies, g->done[*band], 0), "a product in FP64", err);
}

/* Decodes `rows` rows from d->first on, and copies them to the GPU, piece by piece. */
static tsr_status fill_band(tsr_ops *ops, decoding *d, double *to, size_t rows, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const size_t cols = d->a->cols, most = (size_t)tsr_max_u64(TSR_PIECE_ELEMENTS / tsr_max_u64(cols, 1), 1);
    for (size_t end = d->first + rows; d->first < end; d->first += d->rows) {
        size_t p;
        d->rows = (size_t)tsr_min_u64(most, end - d->first);
        d->each = (size_t)tsr_min_u64(tsr_ceil_div(d->rows, 2 * (uint64_t)ops->threads), MOST_ROWS_A_TURN);
        TSR_TRY(tsr_gpu_take_piece(g, d->rows * cols, &p, err));
        d->to = g->stage.piece[p];
        TSR_TRY(
            tsr_parallel_for((size_t)tsr_ceil_div(d->rows, d->each), ops->threads, ops->cancel, decode_rows, d, err));
        const size_t bytes = d->rows * cols * sizeof *to;
        ops->exchanged += bytes;
        TSR_TRY(tsr_gpu_check(cudaMemcpyAsync(to, d->to, bytes, cudaMemcpyHostToDevice, g->copies),
                              "copying weights to the GPU", err));
        TSR_TRY(tsr_gpu_check(cudaEventRecord(g->stage.moved[p], g->copies), "copying weights to the GPU", err));
        to += d->rows * cols;
    }
    return TSR_OK;
}

static tsr_status multiply_band(tsr_ops *ops, decoding *d, size_t rows, size_t per_band, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_linear_product *const a = d->a;
    const size_t first = d->first;
    size_t band;
    TSR_TRY(take_band(g, per_band * a->cols, &band, err));
    TSR_TRY(fill_band(ops, d, g->there[band], rows, err));
    TSR_TRY(tsr_gpu_check(cudaEventRecord(g->filled[band], g->copies), "copying weights to the GPU", err));
    TSR_TRY(tsr_gpu_check(cudaStreamWaitEvent(g->stream, g->filled[band], 0), "a product in FP64", err));
    const tsr_f64_gemm gemm = {.a = a->x,
                               .b = g->there[band],
                               .c = a->y + first,
                               .m = a->n,
                               .n = rows,
                               .k = a->cols,
                               .lda = a->ld_x,
                               .ldb = a->cols,
                               .ldc = a->ld_y,
                               .add = true,
                               .batch = 1,
                               .share_b = 1};
    TSR_TRY(tsr_cuda_f64_gemm(&gemm, g->stream, err));
    return tsr_gpu_check(cudaEventRecord(g->done[band], g->stream), "a product in FP64", err);
}

tsr_status tsr_gpu_linear(tsr_ops *ops, const tsr_linear_product *a, tsr_err *err)
{
    const size_t workers = tsr_parallel_workers(SIZE_MAX, ops->threads);
    const size_t per_band = (size_t)tsr_min_u64(tsr_max_u64(BAND_ELEMENTS / tsr_max_u64(a->cols, 1), 1), a->rows);
    decoding d = {.a = a, .readers = calloc(workers, sizeof *d.readers)};
    tsr_status status = d.readers == NULL ? tsr_out_of_memory(err, "for threads") : TSR_OK;
    if (status == TSR_OK && a->weight != NULL)
        status = tsr_linear_view(&d.view, a->checkpoint, a->weight, err);
    while (status == TSR_OK && a->n > 0 && d.first < a->rows)
        status = multiply_band(ops, &d, (size_t)tsr_min_u64(per_band, a->rows - d.first), per_band, err);
    for (size_t i = 0; d.readers != NULL && i < workers; i++)
        tsr_weight_reader_free(&d.readers[i]);
    free(d.readers);
    return status;
}
