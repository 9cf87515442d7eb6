/* Copies between host and GPU through pieces of pinned memory, which threads of the host fill and empty.
 *
 * Pinning memory is slow (0.6 s for 1 GB), so that pieces are small and used for everything. */
#include "verify/forward/cuda/forward_cuda_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#include <stdlib.h>
#include <string.h>

enum { ELEMENTS_A_TURN = 1 << 17 };

static size_t elements_of_piece(const tsr_ops *ops)
{
    return TSR_PIECE_BYTES / ops->element;
}

tsr_status tsr_stream_allocate(const tsr_gpu_ops *g, size_t bytes, void **x, tsr_err *err)
{
    const cudaError_t code = cudaMallocAsync(x, bytes > 0 ? bytes : 1, g->stream);
    return tsr_gpu_allocated(code, bytes, "fewer tokens (--count, --batch), or --device cpu", err);
}

tsr_status tsr_stream_lend(const tsr_gpu_ops *g, const void *host, size_t bytes, void **there, tsr_err *err)
{
    static const char kDoing[] = "copying to the GPU";
    *there = NULL;
    if (host == NULL)
        return TSR_OK;
    TSR_TRY(tsr_stream_allocate(g, bytes, there, err));
    TSR_TRY(tsr_gpu_check(cudaMemcpyAsync(*there, host, bytes, cudaMemcpyHostToDevice, g->stream), kDoing, err));
    return tsr_gpu_check(cudaStreamSynchronize(g->stream), kDoing, err);
}

void tsr_stream_release(const tsr_gpu_ops *g, void *there)
{
    if (there != NULL)
        (void)cudaFreeAsync(there, g->stream);
}

tsr_status tsr_gpu_stage_open(tsr_gpu_ops *g, size_t n_bands, tsr_err *err)
{
    g->bands = calloc(n_bands, sizeof *g->bands);
    if (g->bands == NULL)
        return tsr_out_of_memory(err, "for the GPU");
    g->n_bands = n_bands;
    cudaError_t code = cudaStreamCreateWithFlags(&g->copies, cudaStreamNonBlocking);
    for (size_t i = 0; code == cudaSuccess && i < TSR_PIECES; i++)
        code = cudaEventCreateWithFlags(&g->stage.moved[i], cudaEventDisableTiming);
    for (size_t i = 0; code == cudaSuccess && i < n_bands; i++)
        code = cudaEventCreateWithFlags(&g->bands[i].filled, cudaEventDisableTiming);
    for (size_t i = 0; code == cudaSuccess && i < n_bands; i++)
        code = cudaEventCreateWithFlags(&g->bands[i].done, cudaEventDisableTiming);
    return tsr_gpu_check(code, "opening the GPU", err);
}

static void destroy(cudaEvent_t event)
{
    if (event != NULL)
        (void)cudaEventDestroy(event);
}

void tsr_gpu_stage_close(tsr_gpu_ops *g)
{
    for (size_t i = 0; i < TSR_PIECES; i++) {
        (void)cudaFreeHost(g->stage.piece[i]);
        destroy(g->stage.moved[i]);
    }
    for (size_t i = 0; i < g->n_bands; i++) {
        if (g->bands[i].there != NULL)
            (void)cudaFreeAsync(g->bands[i].there, g->copies);
        destroy(g->bands[i].filled);
        destroy(g->bands[i].done);
    }
    free(g->bands);
    if (g->copies != NULL)
        (void)cudaStreamDestroy(g->copies);
}

/* Replaces all pieces by larger ones. */
static tsr_status enlarge(tsr_gpu_stage *s, size_t bytes, tsr_err *err)
{
    for (size_t i = 0; i < TSR_PIECES; i++)
        TSR_TRY(tsr_gpu_check(cudaEventSynchronize(s->moved[i]), "copying between host and GPU", err));
    s->capacity = 0;
    for (size_t i = 0; i < TSR_PIECES; i++) {
        (void)cudaFreeHost(s->piece[i]);
        s->piece[i] = NULL;
        const cudaError_t code = cudaMallocHost(&s->piece[i], bytes);
        if (code == cudaErrorMemoryAllocation)
            return tsr_out_of_memory(err, "for copies to the GPU");
        TSR_TRY(tsr_gpu_check(code, "allocating memory for copies to the GPU", err));
    }
    s->capacity = bytes;
    return TSR_OK;
}

tsr_status tsr_gpu_take_piece(tsr_gpu_ops *g, size_t bytes, size_t *piece, tsr_err *err)
{
    tsr_gpu_stage *const s = &g->stage;
    if (bytes > s->capacity)
        TSR_TRY(enlarge(s, bytes, err));
    *piece = s->turn++ % TSR_PIECES;
    return tsr_gpu_check(cudaEventSynchronize(s->moved[*piece]), "copying between host and GPU", err);
}

/* A copy of n numbers, one end of which is a piece with activations. */
typedef struct host_copy {
    double *host;
    void *piece;
    size_t n;
    bool to_piece, narrow; /* narrow: activations are float */
} host_copy;

static tsr_status copy_some(void *context, size_t i, size_t worker, tsr_err *err)
{
    const host_copy *const c = context;
    const size_t at = i * ELEMENTS_A_TURN, end = (size_t)tsr_min_u64(at + ELEMENTS_A_TURN, c->n);
    double *const wide = c->piece;
    float *const narrow = c->piece;
    (void)worker, (void)err;
    if (!c->narrow)
        memcpy(c->to_piece ? wide + at : c->host + at, c->to_piece ? c->host + at : wide + at,
               (end - at) * sizeof *wide);
    for (size_t k = at; c->narrow && c->to_piece && k < end; k++)
        narrow[k] = (float)c->host[k];
    for (size_t k = at; c->narrow && !c->to_piece && k < end; k++)
        c->host[k] = narrow[k];
    return TSR_OK;
}

static tsr_status copy_on_host(const tsr_ops *ops, host_copy c, tsr_err *err)
{
    c.narrow = ops->element == sizeof(float);
    return tsr_parallel_for((size_t)tsr_ceil_div(c.n, ELEMENTS_A_TURN), ops->threads, ops->cancel, copy_some, &c, err);
}

tsr_status tsr_gpu_put(tsr_ops *ops, tsr_activation *to, const double *host, size_t n, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    ops->exchanged += n * ops->element;
    for (size_t at = 0, some; at < n; at += some) {
        size_t p;
        some = (size_t)tsr_min_u64(elements_of_piece(ops), n - at);
        TSR_TRY(tsr_gpu_take_piece(g, some * ops->element, &p, err));
        const host_copy copy = {
            .host = (double *)(uintptr_t)(host + at), .piece = g->stage.piece[p], .n = some, .to_piece = true};
        TSR_TRY(copy_on_host(ops, copy, err));
        TSR_TRY(tsr_gpu_check(cudaMemcpyAsync(tsr_at(ops, to, at), g->stage.piece[p], some * ops->element,
                                              cudaMemcpyHostToDevice, g->stream),
                              "copying to the GPU", err));
        TSR_TRY(tsr_gpu_check(cudaEventRecord(g->stage.moved[p], g->stream), "copying to the GPU", err));
    }
    return TSR_OK;
}

tsr_status tsr_gpu_get(tsr_ops *ops, double *host, const tsr_activation *from, size_t n, tsr_err *err)
{
    tsr_gpu_ops *const g = tsr_use_gpu(ops);
    host_copy before = {.n = 0}; /* the copy out of the previous piece, while the GPU fills the next one */
    size_t p, last = 0;
    ops->exchanged += n * ops->element;
    for (size_t at = 0, some; at < n; at += some) {
        some = (size_t)tsr_min_u64(elements_of_piece(ops), n - at);
        TSR_TRY(tsr_gpu_take_piece(g, some * ops->element, &p, err));
        TSR_TRY(tsr_gpu_check(cudaMemcpyAsync(g->stage.piece[p], tsr_at(ops, from, at), some * ops->element,
                                              cudaMemcpyDeviceToHost, g->stream),
                              "copying from the GPU", err));
        TSR_TRY(tsr_gpu_check(cudaEventRecord(g->stage.moved[p], g->stream), "copying from the GPU", err));
        if (before.n > 0) {
            TSR_TRY(tsr_gpu_check(cudaEventSynchronize(g->stage.moved[last]), "copying from the GPU", err));
            TSR_TRY(copy_on_host(ops, before, err));
        }
        before = (host_copy){.host = host + at, .piece = g->stage.piece[p], .n = some};
        last = p;
    }
    if (before.n == 0)
        return TSR_OK;
    TSR_TRY(tsr_gpu_check(cudaEventSynchronize(g->stage.moved[last]), "copying from the GPU", err));
    return copy_on_host(ops, before, err);
}
