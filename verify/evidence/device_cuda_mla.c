/* Runs latent attention with the CUDA kernels, the scores of its indexer, and the following steps if heads are divided
 * among ranks. Compiled if CUDA was found. */
#include "common/parallel/threads.h"
#include "kernels/cuda/index_scores.h"
#include "kernels/cuda/mla_decode.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/project.h"
#include "verify/evidence/gpu_run.h"

#include <stdlib.h>

/* Slots of tsr_gpu_run. */
enum { Q, CACHE, TABLE, SEQLENS, INDICES, OUT, WORKSPACE };

/* Copies a cache of codes as BF16 rows of the same values. */
static tsr_status upload_widened(tsr_gpu_run *r, const tsr_mla_attention *a, tsr_err *err)
{
    const size_t from_bytes = tsr_mla_cache_row_bytes(a->latent, a->rope, true);
    const size_t bytes = tsr_mla_cache_row_bytes(a->latent, a->rope, false), rows = a->pages * a->page;
    uint8_t *const wide = malloc(rows * bytes + 1);
    if (wide == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for a cache of %zu rows", rows);
    for (size_t i = 0; i < rows; i++) {
        tsr_mla_cache_read(a->cache + i * from_bytes, a->latent, a->rope, true, a->row);
        tsr_mla_cache_write(a->row, a->latent, a->rope, false, wide + i * bytes);
    }
    const tsr_status status = tsr_gpu_upload(r, CACHE, bytes, wide, bytes, bytes, rows, err);
    free(wide);
    return status;
}

static tsr_status launch_decode(const void *decode, tsr_err *err)
{
    return tsr_cuda_mla_decode(decode, NULL, err);
}

static tsr_status run_mla_on(tsr_gpu_run *r, const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *a,
                             double *seconds, tsr_err *err)
{
    const size_t slots = a->batch * a->s_q * a->heads, width = a->latent + a->rope;
    const bool coded = a->fp8 && a->indices != NULL; /* the kernels for all tokens get the codes as BF16 */
    const size_t row_bytes = tsr_mla_cache_row_bytes(a->latent, a->rope, coded);
    tsr_cuda_device device;
    tsr_mla_decode decode = {.batch = (int64_t)a->batch,
                             .s_q = (int64_t)a->s_q,
                             .heads = (int64_t)a->heads,
                             .pages = (int64_t)a->pages,
                             .max_pages = (int64_t)a->max_pages,
                             .top_k = (int64_t)a->top_k,
                             .latent = (int32_t)a->latent,
                             .rope = (int32_t)a->rope,
                             .page = (int32_t)a->page,
                             .fp8 = coded,
                             .scale = a->scale,
                             .kind = (tsr_mla_kind)kernel->variant};
    tsr_gpu_use_rank(r->gpu, rank);
    TSR_TRY(tsr_cuda_current_device(&device, err));
    TSR_TRY(tsr_gpu_upload(r, Q, width * 2, a->q, width * 2, width * 2, slots, err));
    TSR_TRY(a->fp8 && !coded
                ? upload_widened(r, a, err)
                : tsr_gpu_upload(r, CACHE, row_bytes, a->cache, row_bytes, row_bytes, a->pages * a->page, err));
    TSR_TRY(tsr_gpu_upload_words(r, TABLE, a->block_table, a->batch * a->max_pages, err));
    TSR_TRY(tsr_gpu_upload_words(r, SEQLENS, a->seqlens, a->batch, err));
    TSR_TRY(tsr_gpu_upload_words(r, INDICES, a->indices, a->batch * a->s_q * a->top_k, err));
    TSR_TRY(tsr_gpu_allocate_result(r, OUT, slots * a->latent * 2, err));
    decode.q = r->on_gpu[Q];
    decode.cache = r->on_gpu[CACHE];
    decode.block_table = r->on_gpu[TABLE];
    decode.seqlens = r->on_gpu[SEQLENS];
    decode.indices = r->on_gpu[INDICES];
    decode.out = r->on_gpu[OUT];
    TSR_TRY(tsr_gpu_allocate(r, WORKSPACE, tsr_cuda_mla_workspace(&decode, &device) + 1, err));
    decode.workspace = r->on_gpu[WORKSPACE];
    TSR_TRY(tsr_cuda_mla_plan(&decode, NULL, err));
    TSR_TRY(tsr_cuda_mla_decode(&decode, NULL, err));
    TSR_TRY(tsr_gpu_download(r, OUT, TSR_OUT_BF16, slots, a->latent, a->out, a->latent, err));
    return tsr_gpu_time(r, launch_decode, &decode, seconds, err);
}

static tsr_status run_mla(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds,
                          tsr_err *err)
{
    const size_t cells = args->batch * args->s_q * args->heads * args->latent;
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, cells * sizeof(uint16_t), err));
    return tsr_gpu_end(&r, run_mla_on(&r, kernel, rank, args, seconds, err));
}

enum { INDEX_Q, KEYS, SCALES, WEIGHTS, SEEN, LOGITS };

/* A launch of index scores, with its kernel. */
typedef struct index_launch {
    tsr_index_scores args;
    tsr_index_kind kind;
} index_launch;

static tsr_status launch_index(const void *launch, tsr_err *err)
{
    const index_launch *const l = launch;
    return tsr_cuda_index_scores(&l->args, l->kind, NULL, err);
}

static tsr_status run_index_on(tsr_gpu_run *r, const tsr_device_index *kernel, const tsr_index_scores *a,
                               double *seconds, tsr_err *err)
{
    const size_t bytes = a->queries * a->keys * sizeof *a->logits;
    index_launch launch = {*a, (tsr_index_kind)kernel->variant};
    TSR_TRY(tsr_gpu_upload(r, INDEX_Q, a->width, a->q, a->width, a->width, a->queries * a->heads, err));
    TSR_TRY(tsr_gpu_upload(r, KEYS, a->width, a->k, a->width, a->width, a->keys, err));
    TSR_TRY(tsr_gpu_upload_words(r, SCALES, a->k_scale, a->keys, err));
    TSR_TRY(tsr_gpu_upload_words(r, WEIGHTS, a->weights, a->queries * a->heads, err));
    TSR_TRY(tsr_gpu_upload_words(r, SEEN, a->seen, a->queries, err));
    TSR_TRY(tsr_gpu_allocate_result(r, LOGITS, bytes, err));
    launch.args.q = r->on_gpu[INDEX_Q];
    launch.args.k = r->on_gpu[KEYS];
    launch.args.k_scale = r->on_gpu[SCALES];
    launch.args.weights = r->on_gpu[WEIGHTS];
    launch.args.seen = r->on_gpu[SEEN];
    launch.args.logits = r->on_gpu[LOGITS];
    TSR_TRY(launch_index(&launch, err));
    TSR_TRY(tsr_gpu_check(cudaMemcpy(a->logits, r->on_gpu[LOGITS], bytes, cudaMemcpyDeviceToHost), r->name, err));
    return tsr_gpu_time(r, launch_index, &launch, seconds, err);
}

static tsr_status run_index(const tsr_device_index *kernel, const tsr_index_scores *args, double *seconds, tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, 0, err));
    return tsr_gpu_end(&r, run_index_on(&r, kernel, args, seconds, err));
}

enum { PREFILL_Q, KV, K_ROPE, FIRST_QUERY, FIRST_TOKEN, PREFILL_OUT, PREFILL_WORKSPACE };

static tsr_status launch_prefill(const void *prefill, tsr_err *err)
{
    return tsr_cuda_prefill(prefill, NULL, err);
}

static tsr_status run_prefill_on(tsr_gpu_run *r, const tsr_device_prefill *kernel, const tsr_causal_attention *a,
                                 double *seconds, tsr_err *err)
{
    const size_t q_row = 2 * (a->nope + a->rope), kv_row = 2 * (a->nope + a->value), rope_row = 2 * a->rope;
    const size_t out_bytes = a->tokens_q * a->heads * a->value * sizeof *a->out;
    tsr_cuda_device device;
    tsr_prefill prefill = {.batch = (int64_t)a->batch,
                           .kv_heads = (int64_t)a->heads,
                           .heads = (int64_t)a->heads,
                           .tokens_q = (int64_t)a->tokens_q,
                           .tokens_k = (int64_t)a->tokens_k,
                           .nope = (int32_t)a->nope,
                           .rope = (int32_t)a->rope,
                           .value = (int32_t)a->value,
                           .scale = a->scale,
                           .kind = (tsr_mla_kind)kernel->variant};
    TSR_TRY(tsr_cuda_current_device(&device, err));
    TSR_TRY(tsr_gpu_upload(r, PREFILL_Q, q_row, a->q, q_row, q_row, a->tokens_q * a->heads, err));
    TSR_TRY(tsr_gpu_upload(r, KV, kv_row, a->kv, kv_row, kv_row, a->tokens_k * a->heads, err));
    TSR_TRY(tsr_gpu_upload(r, K_ROPE, rope_row, a->k_rope, rope_row, rope_row, a->tokens_k, err));
    TSR_TRY(tsr_gpu_upload_words(r, FIRST_QUERY, a->cu_seqlens_q, a->batch + 1, err));
    TSR_TRY(tsr_gpu_upload_words(r, FIRST_TOKEN, a->cu_seqlens_k, a->batch + 1, err));
    TSR_TRY(tsr_gpu_allocate_result(r, PREFILL_OUT, out_bytes, err));
    prefill.q = r->on_gpu[PREFILL_Q];
    prefill.kv = r->on_gpu[KV];
    prefill.k_rope = r->on_gpu[K_ROPE];
    prefill.cu_seqlens_q = r->on_gpu[FIRST_QUERY];
    prefill.cu_seqlens_k = r->on_gpu[FIRST_TOKEN];
    prefill.out_f32 = r->on_gpu[PREFILL_OUT];
    TSR_TRY(tsr_gpu_allocate(r, PREFILL_WORKSPACE, tsr_cuda_prefill_workspace(&prefill, &device) + 1, err));
    prefill.workspace = r->on_gpu[PREFILL_WORKSPACE];
    TSR_TRY(tsr_cuda_prefill_plan(&prefill, NULL, err));
    TSR_TRY(tsr_cuda_prefill(&prefill, NULL, err));
    TSR_TRY(tsr_gpu_check(cudaMemcpy(a->out, r->on_gpu[PREFILL_OUT], out_bytes, cudaMemcpyDeviceToHost), r->name, err));
    return tsr_gpu_time(r, launch_prefill, &prefill, seconds, err);
}

static tsr_status run_prefill(const tsr_device_prefill *kernel, const tsr_causal_attention *args, double *seconds,
                              tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, 0, err));
    return tsr_gpu_end(&r, run_prefill_on(&r, kernel, args, seconds, err));
}

enum { X, MATRICES, Y };

/* Copies `batch` matrices of rows x cols to contiguous device memory. */
static tsr_status upload_matrices(tsr_gpu_run *r, int slot, const float *from, size_t batch, size_t next, size_t rows,
                                  size_t ld, size_t cols, tsr_err *err)
{
    const size_t row = cols * sizeof *from;
    TSR_TRY(tsr_gpu_allocate(r, slot, batch * rows * row + 1, err));
    for (size_t b = 0; b < batch; b++)
        TSR_TRY(tsr_gpu_check(cudaMemcpy2D((char *)r->on_gpu[slot] + b * rows * row, row, from + b * next,
                                           ld * sizeof *from, row, rows, cudaMemcpyHostToDevice),
                              "copying to the GPU", err));
    return TSR_OK;
}

static tsr_status run_project_on(tsr_gpu_run *r, size_t rank, const tsr_project_args *a, tsr_err *err)
{
    const size_t row = a->n * sizeof *a->y;
    tsr_gpu_use_rank(r->gpu, rank);
    TSR_TRY(upload_matrices(r, X, a->x, a->batch, a->next_x, a->m, a->ld_x, a->k, err));
    TSR_TRY(upload_matrices(r, MATRICES, a->w, a->batch, a->next_w, a->n, a->ld_w, a->k, err));
    TSR_TRY(tsr_gpu_allocate_result(r, Y, a->batch * a->m * row + 1, err));
    const tsr_project_args there = {.x = r->on_gpu[X],
                                    .w = r->on_gpu[MATRICES],
                                    .y = r->on_gpu[Y],
                                    .batch = a->batch,
                                    .m = a->m,
                                    .n = a->n,
                                    .k = a->k,
                                    .ld_x = a->k,
                                    .ld_w = a->k,
                                    .ld_y = a->n,
                                    .next_x = a->m * a->k,
                                    .next_w = a->n * a->k,
                                    .next_y = a->m * a->n};
    TSR_TRY(tsr_cuda_project(&there, NULL, err));
    for (size_t b = 0; b < a->batch; b++)
        TSR_TRY(tsr_gpu_check(cudaMemcpy2D(a->y + b * a->next_y, a->ld_y * sizeof *a->y, there.y + b * there.next_y,
                                           row, row, a->m, cudaMemcpyDeviceToHost),
                              r->name, err));
    return TSR_OK;
}

static tsr_status run_project(const tsr_device_mla *kernel, size_t rank, const tsr_project_args *args, tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, 0, err));
    return tsr_gpu_end(&r, run_project_on(&r, rank, args, err));
}

tsr_status tsr_device_add_cuda_mla(tsr_device *device, tsr_err *err)
{
    const tsr_gpu *const g = device->state;
    tsr_device_prefill prefill = {.name = "CUDA plain, prefill", .run = run_prefill, .variant = TSR_MLA_PLAIN};
    tsr_device_mla mla = {.name = "CUDA plain",
                          .to_bf16 = true,
                          .widens = true,
                          .run = run_mla,
                          .project = run_project,
                          .ranks = TSR_CUDA_RANKS,
                          .variant = TSR_MLA_PLAIN};
    tsr_device_index index = {.name = "CUDA plain, index scores", .run = run_index, .variant = TSR_INDEX_PLAIN};
    TSR_TRY(tsr_device_add_mla(device, &mla, err));
    TSR_TRY(tsr_device_add_index(device, &index, err));
    TSR_TRY(tsr_device_add_prefill(device, &prefill, err));
    if (g->properties.arch != 90)
        return TSR_OK;
    prefill.name = "CUDA fast, prefill";
    prefill.tensor_core = true;
    prefill.variant = TSR_MLA_FAST;
    TSR_TRY(tsr_device_add_prefill(device, &prefill, err));
    index.name = "CUDA fast, index scores";
    index.tensor_core = true;
    index.variant = TSR_INDEX_FAST;
    TSR_TRY(tsr_device_add_index(device, &index, err));
    mla.name = "CUDA fast";
    mla.tensor_core = true;
    mla.variant = TSR_MLA_FAST;
    return tsr_device_add_mla(device, &mla, err);
}
