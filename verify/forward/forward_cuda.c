/* Runs the operations of a forward pass on a GPU, except products, on one stream in order. */
#include "verify/forward/forward_cuda_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"
#include "kernels/cuda/forward_f64.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCORES = 1 << 27 /* most attention scores in memory */ };

static tsr_status check(cudaError_t code, const char *doing, tsr_err *err)
{
    return tsr_gpu_check(code, doing, err);
}

/* ---- memory ---- */

static tsr_status make(tsr_ops *ops, size_t n, double **x, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *there = NULL;
    *x = NULL;
    TSR_TRY(tsr_stream_allocate(g, n * sizeof **x, &there, err));
    *x = there;
    ops->held += n * sizeof **x;
    ops->most = tsr_max_u64(ops->most, ops->held);
    return check(cudaMemsetAsync(there, 0, n * sizeof **x, g->stream), "clearing memory on the GPU", err);
}

static void drop(tsr_ops *ops, double *x, size_t n)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    if (x == NULL)
        return;
    ops->held -= n * sizeof *x;
    (void)cudaFreeAsync(x, g->stream);
}

static tsr_status copy(tsr_ops *ops, double *to, const double *from, size_t n, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return check(cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyDeviceToDevice, g->stream), "copying on the GPU",
                 err);
}

/* Makes later work of `next` wait for the earlier work of `g`. */
static tsr_status wait_for(tsr_gpu_ops *g, const tsr_gpu_ops *next, tsr_err *err)
{
    (void)cudaSetDevice(g->ordinal);
    TSR_TRY(check(cudaEventRecord(g->asked, g->stream), "waiting for a GPU", err));
    (void)cudaSetDevice(next->ordinal);
    return check(cudaStreamWaitEvent(next->stream, g->asked, 0), "waiting for a GPU", err);
}

/* Lets `reader` copy directly from this GPU's memory. If it cannot, the driver copies through the host. */
static void open_memory(int ordinal, int reader)
{
    cudaMemPool_t pool;
    int fine = 0;
    const struct cudaMemAccessDesc access = {{cudaMemLocationTypeDevice, reader}, cudaMemAccessFlagsProtReadWrite};
    if (cudaDeviceCanAccessPeer(&fine, reader, ordinal) != cudaSuccess || !fine ||
        cudaDeviceGetDefaultMemPool(&pool, ordinal) != cudaSuccess ||
        cudaMemPoolSetAccess(pool, &access, 1) != cudaSuccess)
        (void)cudaGetLastError();
}

static tsr_status fetch(tsr_ops *ops, double *to, tsr_ops *other, const double *from, size_t n, tsr_err *err)
{
    tsr_gpu_ops *const there = other->state, *const g = ops->state;
    const uint64_t bit = (uint64_t)1 << there->ordinal;
    ops->fetched += n * sizeof *to;
    if ((g->reads & bit) == 0)
        open_memory(there->ordinal, g->ordinal);
    g->reads |= bit;
    TSR_TRY(wait_for(there, g, err));
    TSR_TRY(check(cudaMemcpyPeerAsync(to, g->ordinal, from, there->ordinal, n * sizeof *to, g->stream),
                  "copying between GPUs", err));
    return wait_for(g, there, err);
}

/* ---- rows and elements ---- */

static tsr_status fill(tsr_ops *ops, double *y, size_t rows, size_t n, const double *host, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *vector;
    TSR_TRY(tsr_stream_lend(g, host, n * sizeof *host, &vector, err));
    const tsr_f64_rows a = {.y = y, .x = vector, .rows = rows, .n = n, .ld_y = n, .ld_x = 0};
    const tsr_status status = tsr_cuda_f64_rows(&a, g->stream, err);
    tsr_stream_release(g, vector);
    return status;
}

static tsr_status gram(tsr_ops *ops, double *sums, const double *x, size_t n, size_t cols, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_f64_gemm gemm = {.a = x,
                               .b = x,
                               .c = sums,
                               .m = cols,
                               .n = cols,
                               .k = n,
                               .lda = cols,
                               .ldb = cols,
                               .ldc = (size_t)tsr_round_up(cols, TSR_GRAM_TILE),
                               .add = true,
                               .across = true,
                               .both_across = true,
                               .batch = 1,
                               .share_b = 1};
    return tsr_cuda_f64_gemm(&gemm, g->stream, err);
}

static tsr_status norm(tsr_ops *ops, const double *x, size_t ld_x, size_t rows, size_t n, const double *gain,
                       double eps, double *y, size_t ld_y, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *vector;
    TSR_TRY(tsr_stream_lend(g, gain, n * sizeof *gain, &vector, err));
    const tsr_f64_norm a = {x, vector, y, rows, n, ld_x, ld_y, eps};
    const tsr_status status = tsr_cuda_f64_norm(&a, g->stream, err);
    tsr_stream_release(g, vector);
    return status;
}

static tsr_status center(tsr_ops *ops, const double *x, size_t rows, size_t n, double *y, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return tsr_cuda_f64_center(x, rows, n, y, g->stream, err);
}

static tsr_status gate(tsr_ops *ops, const tsr_op_gate *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_f64_gate args = {(int)a->kind, a->limit, a->gate, a->up, a->ld, a->step, a->rows, a->n, a->y};
    return tsr_cuda_f64_gate(&args, g->stream, err);
}

static tsr_status add(tsr_ops *ops, double *y, const double *x, size_t rows, size_t n, const uint32_t *to_row,
                      const double *weight, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *to = NULL, *share = NULL;
    tsr_status status = tsr_stream_lend(g, to_row, rows * sizeof *to_row, &to, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, weight, rows * sizeof *weight, &share, err);
    const tsr_f64_rows a = {
        .y = y, .x = x, .weight = share, .to_row = to, .rows = rows, .n = n, .ld_y = n, .ld_x = n, .add = true};
    if (status == TSR_OK)
        status = tsr_cuda_f64_rows(&a, g->stream, err);
    tsr_stream_release(g, to);
    tsr_stream_release(g, share);
    return status;
}

static tsr_status take(tsr_ops *ops, double *y, const double *x, const uint32_t *row, size_t rows, size_t n,
                       tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *from;
    TSR_TRY(tsr_stream_lend(g, row, rows * sizeof *row, &from, err));
    const tsr_f64_rows a = {.y = y, .x = x, .from_row = from, .rows = rows, .n = n, .ld_y = n, .ld_x = n};
    const tsr_status status = tsr_cuda_f64_rows(&a, g->stream, err);
    tsr_stream_release(g, from);
    return status;
}

static tsr_status place(tsr_ops *ops, double *y, size_t ld_y, size_t to, const double *x, size_t ld_x, size_t from,
                        size_t rows, size_t n, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_f64_rows a = {.y = y + to, .x = x + from, .rows = rows, .n = n, .ld_y = ld_y, .ld_x = ld_x};
    return tsr_cuda_f64_rows(&a, g->stream, err);
}

static tsr_status scale(tsr_ops *ops, double *x, size_t n, double by, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return tsr_cuda_f64_scale(x, n, by, g->stream, err);
}

static tsr_status quantize(tsr_ops *ops, double *x, size_t rows, size_t n, const tsr_input_coding *c, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_f64_quantize a = {x,        rows,   n, c->group, (int)c->type, c->zero_points, c->powers_of_two,
                                c->scale, c->zero};
    return tsr_cuda_f64_quantize(&a, g->stream, err);
}

static tsr_status round_all(tsr_ops *ops, double *x, size_t n, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return tsr_cuda_f64_round(x, n, g->stream, err);
}

/* ---- positions and attention ---- */

enum { POSITIONS_A_TURN = 64 };

typedef struct angles {
    const tsr_rope *rope;
    double *table; /* [positions][pairs][2]: cos and sin, times the gain */
    size_t positions;
} angles;

static tsr_status compute_angles(void *context, size_t i, size_t worker, tsr_err *err)
{
    const angles *const a = context;
    const size_t pairs = a->rope->pairs, end = (size_t)tsr_min_u64((i + 1) * POSITIONS_A_TURN, a->positions) * pairs;
    (void)worker, (void)err;
    for (size_t at = i * POSITIONS_A_TURN * pairs; at < end; at++) {
        const double angle = (double)(at / pairs) * a->rope->frequency[at % pairs];
        a->table[2 * at] = cos(angle) * a->rope->gain;
        a->table[2 * at + 1] = sin(angle) * a->rope->gain;
    }
    return TSR_OK;
}

static tsr_status turn(tsr_ops *ops, const tsr_op_turn *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_rope *const rope = a->rope;
    const size_t size = a->tokens->longest * rope->pairs * 2, rows = a->tokens->count;
    angles host = {rope, malloc((size + 1) * sizeof(double)), a->tokens->longest};
    uint32_t *const places = malloc((rows + 1) * sizeof *places);
    void *on_gpu[2] = {NULL, NULL};
    tsr_status status = host.table == NULL || places == NULL ? tsr_out_of_memory(err, "for positions") : TSR_OK;
    if (status == TSR_OK)
        status = tsr_parallel_for((size_t)tsr_ceil_div(host.positions, POSITIONS_A_TURN), ops->threads, ops->cancel,
                                  compute_angles, &host, err);
    for (size_t i = 0; status == TSR_OK && i < rows; i++)
        places[i] = (uint32_t)tsr_token_position(a->tokens, i);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, host.table, size * sizeof *host.table, &on_gpu[0], err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, places, rows * sizeof *places, &on_gpu[1], err);
    const tsr_f64_turn args = {a->x,  on_gpu[0], on_gpu[1], rows,        a->ld,
                               a->at, a->heads,  a->step,   rope->pairs, a->adjacent};
    if (status == TSR_OK)
        status = tsr_cuda_f64_turn(&args, g->stream, err);
    tsr_stream_release(g, on_gpu[0]);
    tsr_stream_release(g, on_gpu[1]);
    free(host.table);
    free(places);
    return status;
}

/* Memory on the GPU for attention: scratch, and copies from the host. */
typedef struct attending {
    void *scores, *sinks, *chosen;
} attending;

/* Computes attention of queries [q0, q1) of the sequence whose first token is `begin`, all heads at once. */
static tsr_status attend_queries(const tsr_gpu_ops *g, const tsr_op_attend *a, const attending *there, size_t begin,
                                 size_t q0, size_t q1, tsr_err *err)
{
    static const tsr_token_choice kAll = {.groups = 1};
    const tsr_token_choice *const chosen = a->chosen != NULL ? a->chosen : &kAll;
    double *const scores = there->scores;
    const size_t k0 = q0 + 1 > a->window ? q0 + 1 - a->window : 0, keys = q1 - k0, queries = q1 - q0;
    const size_t ld_k = a->kv_heads * a->dim, ld_v = a->kv_heads * a->v_dim, share = a->heads / a->kv_heads;
    const tsr_f64_gemm by_keys = {.a = a->q + (begin + q0) * a->ld_q,
                                  .b = a->k + (begin + k0) * ld_k,
                                  .c = scores,
                                  .m = queries,
                                  .n = keys,
                                  .k = a->dim,
                                  .lda = a->ld_q,
                                  .ldb = ld_k,
                                  .ldc = keys,
                                  .batch = a->heads,
                                  .step_a = a->dim,
                                  .step_b = a->dim,
                                  .step_c = queries * keys,
                                  .share_b = share};
    const tsr_f64_softmax softmax = {.scores = scores,
                                     .heads = a->heads,
                                     .queries = queries,
                                     .keys = keys,
                                     .first_query = q0,
                                     .first_key = k0,
                                     .window = a->window,
                                     .scale = a->scale,
                                     .cap = a->cap,
                                     .sinks = there->sinks,
                                     .chosen = there->chosen,
                                     .share = a->heads / chosen->groups,
                                     .rows = chosen->count,
                                     .first_row = begin + q0,
                                     .words = chosen->words};
    const tsr_f64_gemm by_values = {.a = scores,
                                    .b = a->v + (begin + k0) * ld_v,
                                    .c = a->out + (begin + q0) * a->ld_out,
                                    .m = queries,
                                    .n = a->v_dim,
                                    .k = keys,
                                    .lda = keys,
                                    .ldb = ld_v,
                                    .ldc = a->ld_out,
                                    .across = true,
                                    .batch = a->heads,
                                    .step_a = queries * keys,
                                    .step_b = a->v_dim,
                                    .step_c = a->v_dim,
                                    .share_b = share};
    TSR_TRY(tsr_cuda_f64_gemm(&by_keys, g->stream, err));
    TSR_TRY(tsr_cuda_f64_softmax(&softmax, g->stream, err));
    return tsr_cuda_f64_gemm(&by_values, g->stream, err);
}

static tsr_status attend(tsr_ops *ops, const tsr_op_attend *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const size_t longest = a->tokens->longest;
    const size_t at_once = (size_t)tsr_min_u64(tsr_max_u64(SCORES / (a->heads * longest), 1), longest);
    const tsr_token_choice *const chosen = a->chosen;
    attending there = {0};
    tsr_status status = tsr_stream_allocate(g, a->heads * at_once * longest * sizeof(double), &there.scores, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, a->sinks, a->heads * sizeof *a->sinks, &there.sinks, err);
    if (status == TSR_OK && chosen != NULL)
        status = tsr_stream_lend(g, chosen->bits, chosen->groups * chosen->count * chosen->words * sizeof(uint64_t),
                                 &there.chosen, err);
    for (size_t s = 0; s < a->tokens->sequences; s++) {
        const size_t begin = a->tokens->first[s], length = a->tokens->first[s + 1] - begin;
        for (size_t q = 0; status == TSR_OK && q < length; q += at_once)
            status = attend_queries(g, a, &there, begin, q, (size_t)tsr_min_u64(q + at_once, length), err);
    }
    tsr_stream_release(g, there.scores);
    tsr_stream_release(g, there.sinks);
    tsr_stream_release(g, there.chosen);
    return status;
}

/* ---- the table ---- */

static void close_ops(tsr_ops *ops)
{
    tsr_gpu_ops *const g = ops->state;
    if (g == NULL)
        return;
    (void)cudaSetDevice(g->ordinal);
    (void)cudaDeviceSynchronize();
    tsr_gpu_stage_close(g);
    if (g->asked != NULL)
        (void)cudaEventDestroy(g->asked);
    if (g->stream != NULL)
        (void)cudaStreamDestroy(g->stream);
    free(g);
    ops->state = NULL;
}

static const tsr_ops kFunctions = {
    TSR_OPS_FUNCTIONS,      .put = tsr_gpu_put,           .get = tsr_gpu_get,     .linear = tsr_gpu_linear,
    .index = tsr_gpu_index, .convolve = tsr_gpu_convolve, .recur = tsr_gpu_recur, .close = close_ops,
};

/* Keeps freed memory in the process, so that the next layer reuses it. */
static tsr_status keep_memory(int ordinal, tsr_err *err)
{
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    TSR_TRY(check(cudaDeviceGetDefaultMemPool(&pool, ordinal), "the GPU's memory", err));
    return check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "the GPU's memory", err);
}

static tsr_status find_gpu(size_t number, tsr_cuda_device *device, tsr_err *err)
{
    int count = 0;
    if (number == 0)
        return tsr_cuda_current_device(device, err);
    (void)cudaGetDeviceCount(&count);
    if (number >= (size_t)count)
        return tsr_fail(err, TSR_E_DEVICE, "--devices: at least %zu GPUs are needed, but there %s %d", number + 1,
                        count == 1 ? "is" : "are", count);
    if (cudaSetDevice((int)number) != cudaSuccess || cudaFree(NULL) != cudaSuccess)
        return tsr_fail(err, TSR_E_DEVICE, "opening GPU %zu: %s", number, cudaGetErrorString(cudaGetLastError()));
    return tsr_cuda_current_device(device, err);
}

tsr_status tsr_ops_of_cuda(tsr_ops *ops, size_t number, unsigned threads, const atomic_bool *cancel, tsr_err *err)
{
    tsr_cuda_device device;
    TSR_TRY(find_gpu(number, &device, err));
    tsr_gpu_ops *const g = calloc(1, sizeof *g);
    if (g == NULL)
        return tsr_out_of_memory(err, "for the GPU");
    g->ordinal = device.ordinal;
    snprintf(g->name, sizeof g->name, "%.200s (sm_%d), FP64", device.name, device.arch);
    *ops = kFunctions;
    ops->name = g->name;
    ops->threads = threads;
    ops->cancel = cancel;
    ops->state = g;
    tsr_status status = keep_memory(device.ordinal, err);
    if (status == TSR_OK)
        status = check(cudaStreamCreate(&g->stream), "opening the GPU", err);
    if (status == TSR_OK)
        status = tsr_gpu_stage_open(g, err);
    if (status == TSR_OK)
        status = check(cudaEventCreateWithFlags(&g->asked, cudaEventDisableTiming), "opening the GPU", err);
    if (status != TSR_OK)
        close_ops(ops);
    return status;
}
