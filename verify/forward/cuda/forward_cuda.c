/* Runs the operations of a forward pass on a GPU, except products, on one stream in order. */
#include "verify/forward/cuda/forward_cuda_parts.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_status check(cudaError_t code, const char *doing, tsr_err *err)
{
    return tsr_gpu_check(code, doing, err);
}

/* ---- memory ---- */

static tsr_status make(tsr_ops *ops, size_t n, bool zero, tsr_activation **x, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *there = NULL;
    *x = NULL;
    const size_t bytes = n * ops->element;
    TSR_TRY(tsr_stream_allocate(g, bytes, &there, err));
    *x = there;
    ops->held += bytes;
    ops->most = tsr_max_u64(ops->most, ops->held);
    return !zero ? TSR_OK : check(cudaMemsetAsync(there, 0, bytes, g->stream), "clearing memory on the GPU", err);
}

static void drop(tsr_ops *ops, tsr_activation *x, size_t n)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    if (x == NULL)
        return;
    ops->held -= n * ops->element;
    (void)cudaFreeAsync(x, g->stream);
}

static tsr_status copy(tsr_ops *ops, tsr_activation *to, const tsr_activation *from, size_t n, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return check(cudaMemcpyAsync(to, from, n * ops->element, cudaMemcpyDeviceToDevice, g->stream), "copying on the GPU",
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

static tsr_status fetch(tsr_ops *ops, tsr_activation *to, tsr_ops *other, const tsr_activation *from, size_t n,
                        tsr_err *err)
{
    tsr_gpu_ops *const there = other->state, *const g = ops->state;
    const uint64_t bit = (uint64_t)1 << there->ordinal;
    ops->fetched += n * ops->element;
    if ((g->reads & bit) == 0)
        open_memory(there->ordinal, g->ordinal);
    g->reads |= bit;
    TSR_TRY(wait_for(there, g, err));
    TSR_TRY(check(cudaMemcpyPeerAsync(to, g->ordinal, from, there->ordinal, n * ops->element, g->stream),
                  "copying between GPUs", err));
    return wait_for(g, there, err);
}

/* ---- rows and elements ---- */

static tsr_status fill(tsr_ops *ops, tsr_activation *y, size_t rows, size_t n, const double *host, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *vector;
    TSR_TRY(tsr_stream_lend(g, host, n * sizeof *host, &vector, err));
    const tsr_status status = tsr_cuda_act_fill(y, rows, n, vector, g->of_activations, g->stream, err);
    tsr_stream_release(g, vector);
    return status;
}

/* Adds what the GPU has summed: squares, least and largest of each column. */
static void add_sums(tsr_op_columns *a, const double *sums)
{
    const double *const least = sums + a->cols, *const largest = least + a->cols;
    for (size_t i = 0; i < a->cols; i++) {
        if (a->squares != NULL)
            a->squares[i] += sums[i];
        a->least = i == 0 || least[i] < a->least || isnan(least[i]) ? least[i] : a->least;
        a->largest = i == 0 || largest[i] > a->largest ? largest[i] : a->largest;
    }
}

static tsr_status columns(tsr_ops *ops, tsr_op_columns *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const size_t bytes = TSR_ACT_COLUMN_SUMS * a->cols * sizeof(double);
    double *const host = malloc(bytes);
    void *parts = NULL;
    tsr_status status = host == NULL ? tsr_out_of_memory(err, "for statistics of inputs") : TSR_OK;
    if (status == TSR_OK)
        status = tsr_stream_allocate(g, tsr_cuda_act_column_parts(a->n) * bytes, &parts, err);
    if (status == TSR_OK)
        status = tsr_cuda_act_columns(a->x, a->n, a->cols, parts, g->of_activations, g->stream, err);
    if (status == TSR_OK)
        status =
            check(cudaMemcpyAsync(host, parts, bytes, cudaMemcpyDeviceToHost, g->stream), "copying from the GPU", err);
    if (status == TSR_OK)
        status = check(cudaStreamSynchronize(g->stream), "statistics of inputs", err);
    if (status == TSR_OK)
        add_sums(a, host);
    tsr_stream_release(g, parts);
    free(host);
    return status;
}

static tsr_status norm(tsr_ops *ops, const tsr_activation *x, size_t ld_x, size_t rows, size_t n, const double *gain,
                       double eps, tsr_activation *y, size_t ld_y, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *vector;
    TSR_TRY(tsr_stream_lend(g, gain, n * sizeof *gain, &vector, err));
    const tsr_act_norm a = {x, vector, y, rows, n, ld_x, ld_y, eps};
    const tsr_status status = tsr_cuda_act_norm(&a, g->of_activations, g->stream, err);
    tsr_stream_release(g, vector);
    return status;
}

static tsr_status center(tsr_ops *ops, const tsr_activation *x, size_t rows, size_t n, tsr_activation *y, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return tsr_cuda_act_center(x, rows, n, y, g->of_activations, g->stream, err);
}

static tsr_status gate(tsr_ops *ops, const tsr_op_gate *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_act_gate args = {a->kind, a->limit, a->gate, a->up, a->ld, a->step, a->rows, a->n, a->y};
    return tsr_cuda_act_gate(&args, g->of_activations, g->stream, err);
}

static tsr_status add(tsr_ops *ops, tsr_activation *y, const tsr_activation *x, size_t rows, size_t n,
                      const uint32_t *to_row, const double *weight, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *to = NULL, *share = NULL;
    tsr_status status = tsr_stream_lend(g, to_row, rows * sizeof *to_row, &to, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, weight, rows * sizeof *weight, &share, err);
    const tsr_act_rows a = {
        .y = y, .x = x, .weight = share, .to_row = to, .rows = rows, .n = n, .ld_y = n, .ld_x = n, .add = true};
    if (status == TSR_OK)
        status = tsr_cuda_act_rows(&a, g->of_activations, g->stream, err);
    tsr_stream_release(g, to);
    tsr_stream_release(g, share);
    return status;
}

static tsr_status take(tsr_ops *ops, tsr_activation *y, const tsr_activation *x, const uint32_t *row, size_t rows,
                       size_t n, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    void *from;
    TSR_TRY(tsr_stream_lend(g, row, rows * sizeof *row, &from, err));
    const tsr_act_rows a = {.y = y, .x = x, .from_row = from, .rows = rows, .n = n, .ld_y = n, .ld_x = n};
    const tsr_status status = tsr_cuda_act_rows(&a, g->of_activations, g->stream, err);
    tsr_stream_release(g, from);
    return status;
}

static tsr_status place(tsr_ops *ops, tsr_activation *y, size_t ld_y, size_t to, const tsr_activation *x, size_t ld_x,
                        size_t from, size_t rows, size_t n, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_act_rows a = {
        .y = tsr_at(ops, y, to), .x = tsr_at(ops, x, from), .rows = rows, .n = n, .ld_y = ld_y, .ld_x = ld_x};
    return tsr_cuda_act_rows(&a, g->of_activations, g->stream, err);
}

static tsr_status scale(tsr_ops *ops, tsr_activation *x, size_t n, double by, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return tsr_cuda_act_scale(x, n, by, g->of_activations, g->stream, err);
}

static tsr_status quantize(tsr_ops *ops, tsr_activation *x, size_t rows, size_t n, const tsr_input_coding *c,
                           tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_act_quantize a = {x,        rows,   n, c->group, (int)c->type, c->zero_points, c->powers_of_two,
                                c->scale, c->zero};
    return tsr_cuda_act_quantize(&a, g->of_activations, g->stream, err);
}

static tsr_status round_all(tsr_ops *ops, tsr_activation *x, size_t n, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    return tsr_cuda_act_round(x, n, g->of_activations, g->stream, err);
}

/* ---- positions ---- */

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

/* Returns true if the angles on the GPU are those of these positions. */
static bool has_angles(const tsr_gpu_angles *a, const tsr_rope *rope, size_t positions)
{
    return a->there != NULL && a->positions >= positions && a->pairs == rope->pairs && a->gain == rope->gain &&
           memcmp(a->frequency, rope->frequency, rope->pairs * sizeof *rope->frequency) == 0;
}

/* Computes the angles of positions [0, positions) on the host, and copies them to the GPU. */
static tsr_status make_angles(tsr_ops *ops, tsr_gpu_angles *a, const tsr_rope *rope, size_t positions, tsr_err *err)
{
    const tsr_gpu_ops *const g = ops->state;
    const size_t pairs = rope->pairs, size = positions * pairs * 2;
    angles host = {rope, malloc((size + 1) * sizeof(double)), positions};
    double *const frequency = realloc(a->frequency, (pairs + 1) * sizeof *frequency);
    a->frequency = frequency == NULL ? a->frequency : frequency;
    tsr_stream_release(g, a->there);
    a->there = NULL;
    tsr_status status = host.table == NULL || frequency == NULL ? tsr_out_of_memory(err, "for positions") : TSR_OK;
    if (status == TSR_OK)
        status = tsr_parallel_for((size_t)tsr_ceil_div(positions, POSITIONS_A_TURN), ops->threads, ops->cancel,
                                  compute_angles, &host, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, host.table, size * sizeof *host.table, &a->there, err);
    if (status == TSR_OK) {
        memcpy(a->frequency, rope->frequency, pairs * sizeof *a->frequency);
        a->pairs = pairs;
        a->positions = positions;
        a->gain = rope->gain;
    }
    free(host.table);
    return status;
}

/* Finds or makes the angles. A model has at most two kinds of RoPE. */
static tsr_status take_angles(tsr_ops *ops, const tsr_rope *rope, size_t positions, const double **there, tsr_err *err)
{
    tsr_gpu_ops *const g = ops->state;
    for (size_t i = 0; i < TSR_ANGLES; i++) {
        if (has_angles(&g->angles[i], rope, positions)) {
            *there = g->angles[i].there;
            return TSR_OK;
        }
    }
    tsr_gpu_angles *const a = &g->angles[g->angles_turn++ % TSR_ANGLES];
    TSR_TRY(make_angles(ops, a, rope, positions, err));
    *there = a->there;
    return TSR_OK;
}

static tsr_status turn(tsr_ops *ops, const tsr_op_turn *a, tsr_err *err)
{
    const tsr_gpu_ops *const g = tsr_use_gpu(ops);
    const tsr_tokens *const tokens = a->tokens;
    const size_t rate = (size_t)tsr_max_u64(a->rate, 1);
    uint32_t *const positions = malloc((tokens->count + 1) * sizeof *positions);
    const double *table = NULL;
    void *there = NULL;
    tsr_status status = positions == NULL ? tsr_out_of_memory(err, "for positions") : TSR_OK;
    for (size_t s = 0; status == TSR_OK && s < tokens->sequences; s++) {
        for (size_t i = tokens->first[s]; i < tokens->first[s + 1]; i++)
            positions[i] = (uint32_t)((i - tokens->first[s]) * rate);
    }
    if (status == TSR_OK)
        status = take_angles(ops, a->rope, tokens->longest * rate, &table, err);
    if (status == TSR_OK)
        status = tsr_stream_lend(g, positions, tokens->count * sizeof *positions, &there, err);
    const tsr_act_turn args = {.x = a->x,
                               .angles = table,
                               .places = there,
                               .rows = tokens->count,
                               .ld = a->ld,
                               .at = a->at,
                               .heads = a->heads,
                               .step = a->step,
                               .pairs = a->rope->pairs,
                               .adjacent = a->adjacent,
                               .back = a->back};
    if (status == TSR_OK)
        status = tsr_cuda_act_turn(&args, g->of_activations, g->stream, err);
    tsr_stream_release(g, there);
    free(positions);
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
    tsr_cublas_close(g->cublas);
    for (size_t i = 0; i < TSR_ANGLES; i++) {
        tsr_stream_release(g, g->angles[i].there);
        free(g->angles[i].frequency);
    }
    if (g->asked != NULL)
        (void)cudaEventDestroy(g->asked);
    if (g->stream != NULL)
        (void)cudaStreamDestroy(g->stream);
    free(g);
    ops->state = NULL;
}

static const tsr_ops kFunctions = {
    TSR_OPS_FUNCTIONS,        .gram = tsr_gpu_gram,         .put = tsr_gpu_put,     .get = tsr_gpu_get,
    .linear = tsr_gpu_linear, .attend = tsr_gpu_attend,     .index = tsr_gpu_index, .convolve = tsr_gpu_convolve,
    .recur = tsr_gpu_recur,   .compress = tsr_gpu_compress, .close = close_ops,
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

/* Divides the GPU's memory: half of it for activations of a layer, a quarter for bands of weights. The sizes follow
 * from the card alone, so that results do not depend on what else runs there. */
static tsr_status divide_memory(tsr_ops *ops, size_t *n_bands, tsr_err *err)
{
    enum { FEWEST = 2, MOST = 1024 };
    size_t unused, total;
    TSR_TRY(check(cudaMemGetInfo(&unused, &total), "the GPU's memory", err));
    ops->room = total / 2;
    *n_bands = (size_t)tsr_min_u64(tsr_max_u64(total / 4 / TSR_BAND_BYTES, FEWEST), MOST);
    return TSR_OK;
}

static tsr_status open_ops(tsr_ops *ops, tsr_err *err)
{
    tsr_gpu_ops *const g = ops->state;
    size_t n_bands;
    TSR_TRY(keep_memory(g->ordinal, err));
    TSR_TRY(divide_memory(ops, &n_bands, err));
    TSR_TRY(check(cudaStreamCreate(&g->stream), "opening the GPU", err));
    TSR_TRY(tsr_gpu_stage_open(g, n_bands, err));
    TSR_TRY(tsr_cublas_open(&g->cublas, g->stream, err));
    return check(cudaEventCreateWithFlags(&g->asked, cudaEventDisableTiming), "opening the GPU", err);
}

tsr_status tsr_ops_of_cuda(tsr_ops *ops, const tsr_gpu_choice *choice, tsr_err *err)
{
    static const char *const kPrecisions[] = {"FP64", "FP32", "products in BF16"};
    tsr_cuda_device device;
    TSR_TRY(find_gpu(choice->number, &device, err));
    tsr_gpu_ops *const g = calloc(1, sizeof *g);
    if (g == NULL)
        return tsr_out_of_memory(err, "for the GPU");
    g->ordinal = device.ordinal;
    g->precision = choice->precision;
    g->of_activations = tsr_precision_of_sums(choice->precision);
    snprintf(g->name, sizeof g->name, "%.200s (sm_%d), %s", device.name, device.arch, kPrecisions[choice->precision]);
    *ops = kFunctions;
    ops->name = g->name;
    ops->element = tsr_precision_bytes(g->of_activations);
    ops->threads = choice->threads;
    ops->cancel = choice->cancel;
    ops->state = g;
    const tsr_status status = open_ops(ops, err);
    if (status != TSR_OK)
        close_ops(ops);
    return status;
}
