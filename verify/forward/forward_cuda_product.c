/* Computes products on a GPU; threads of the host decode the weights band by band. */
#include "verify/forward/forward_cuda_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "verify/values/weight_product.h"

#include <stdlib.h>
#include <string.h>

enum { BAND_ELEMENTS = 1 << 24, ROWS_A_TURN = 32 };

typedef struct decoding {
    const tsr_linear_product *a;
    tsr_view view;
    tsr_weight_reader *readers; /* one reader per thread */
    double *to;
    size_t first, rows; /* rows of the matrix */
} decoding;

static tsr_status decode_rows(void *context, size_t i, size_t worker, tsr_err *err)
{
    const decoding *const d = context;
    const size_t row = i * ROWS_A_TURN, n = (size_t)tsr_min_u64(ROWS_A_TURN, d->rows - row), cols = d->a->cols;
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

/* Takes the next band after the GPU has finished with its contents. */
static tsr_status take_band(tsr_gpu_ops *g, size_t elements, size_t *band, tsr_err *err)
{
    *band = g->turn++ % TSR_BANDS;
    if (elements > g->capacity) {
        TSR_TRY(tsr_gpu_check(cudaStreamSynchronize(g->stream), "a product in FP64", err));
        for (size_t i = 0; i < TSR_BANDS; i++) {
            (void)cudaFreeHost(g->host[i]);
            (void)cudaFree(g->there[i]);
            g->host[i] = g->there[i] = NULL;
        }
        g->capacity = 0;
        for (size_t i = 0; i < TSR_BANDS; i++) {
            void *host = NULL, *there = NULL;
            TSR_TRY(
                tsr_gpu_check(cudaMallocHost(&host, elements * sizeof(double)), "allocating a band of weights", err));
            g->host[i] = host;
            TSR_TRY(tsr_gpu_allocated(cudaMalloc(&there, elements * sizeof(double)), elements * sizeof(double),
                                      "--device cpu needs none", err));
            g->there[i] = there;
        }
        g->capacity = elements;
    }
    return tsr_gpu_check(cudaEventSynchronize(g->done[*band]), "a product in FP64", err);
}

static tsr_status multiply_band(tsr_ops *ops, decoding *d, size_t per_band, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_linear_product *const a = d->a;
    size_t band;
    TSR_TRY(take_band(g, tsr_max_u64(per_band * a->cols, g->capacity), &band, err));
    d->to = g->host[band];
    ops->exchanged += d->rows * a->cols * sizeof(double);
    TSR_TRY(
        tsr_parallel_for((size_t)tsr_ceil_div(d->rows, ROWS_A_TURN), ops->threads, ops->cancel, decode_rows, d, err));
    TSR_TRY(tsr_gpu_check(cudaMemcpyAsync(g->there[band], g->host[band], d->rows * a->cols * sizeof(double),
                                          cudaMemcpyHostToDevice, g->stream),
                          "copying weights to the GPU", err));
    const tsr_f64_gemm gemm = {.a = a->x,
                               .b = g->there[band],
                               .c = a->y + d->first,
                               .m = a->n,
                               .n = d->rows,
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
    for (; status == TSR_OK && a->n > 0 && d.first < a->rows; d.first += per_band) {
        d.rows = (size_t)tsr_min_u64(per_band, a->rows - d.first);
        status = multiply_band(ops, &d, per_band, err);
    }
    for (size_t i = 0; d.readers != NULL && i < workers; i++)
        tsr_weight_reader_free(&d.readers[i]);
    free(d.readers);
    return status;
}
