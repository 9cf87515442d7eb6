/* A GPU as a device of the checks: memory, copies, and the CUDA kernels in its table. Compiled where CUDA was found. */
#include "common/checked.h"
#include "common/threads.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/fast_dequant.h"
#include "kernels/cuda/int8_gemm.h"
#include "kernels/cuda/mla_prefill.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/project.h"
#include "kernels/cuda/weight_only_gemm.h"
#include "verify/evidence/jobs.h"
#include "verify/weights/weight_reader.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct gpu {
    tsr_cuda_device properties;
    tsr_cublas_lt *peer;  /* NULL: not there */
    tsr_nccl *nccl;       /* NULL: ranks take turns on this GPU; else rank r has GPU r */
    pthread_mutex_t lock; /* one kernel at a time, with its copies */
} gpu;

enum { CUBLAS_LT = -1 /* as the variant of a block-FP8 product, beside tsr_gemm_kind */ };
enum { FAST, PLAIN }; /* as the variant of the others */

/* What one product needs on the GPU. */
typedef struct buffers {
    void *a, *w, *scale_a, *scale_w, *d;
} buffers;

static tsr_status check(cudaError_t code, const char *doing, tsr_err *err)
{
    return code == cudaSuccess ? TSR_OK : tsr_fail(err, TSR_E_DEVICE, "%s: %s", doing, cudaGetErrorString(code));
}

static tsr_status allocate(void **to, size_t bytes, tsr_err *err)
{
    size_t left = 0, all = 0;
    const cudaError_t code = cudaMalloc(to, bytes);
    if (code != cudaErrorMemoryAllocation)
        return check(code, "allocating on the GPU", err);
    (void)cudaMemGetInfo(&left, &all);
    return tsr_fail(err, TSR_E_DEVICE, "the GPU has too little memory: %zu bytes are needed, %zu of %zu are left",
                    bytes, left, all);
}

/* `rows` rows of `bytes` to the GPU, `pitch` apart there. */
static tsr_status upload(void **to, size_t pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
                         tsr_err *err)
{
    TSR_TRY(allocate(to, pitch * rows, err));
    return check(cudaMemcpy2D(*to, pitch, from, from_pitch, bytes, rows, cudaMemcpyHostToDevice), "copying to the GPU",
                 err);
}

static tsr_status launch(const tsr_device_gemm *kernel, const tsr_block_fp8_gemm *gemm, tsr_err *err)
{
    const gpu *const g = kernel->device->state;
    int offers;
    if ((int)kernel->variant != CUBLAS_LT)
        return tsr_cuda_block_fp8_gemm(gemm, NULL, err);
    TSR_TRY(tsr_cublas_lt_prepare(g->peer, gemm, &offers, err));
    return tsr_cublas_lt_run(g->peer, 0, NULL, err);
}

static const struct {
    tsr_gemm_out out;
    tsr_dtype dtype;
    size_t width;
} kOuts[TSR_N_OUTS] = {{TSR_GEMM_BF16, TSR_BF16, 2}, {TSR_GEMM_F16, TSR_F16, 2}, {TSR_GEMM_F32, TSR_F32, 4}};

/* A result [m, n] on the GPU, dense, to floats `ldd` apart; `narrow` has room for it. */
static tsr_status download(const void *from, tsr_out out, size_t m, size_t n, void *narrow, float *d, size_t ldd,
                           const char *name, tsr_err *err)
{
    const size_t cells = m * n, width = kOuts[out].width;
    TSR_TRY(check(cudaMemcpy(narrow, from, cells * width, cudaMemcpyDeviceToHost), name, err));
    double row[64];
    for (size_t i = 0; i < cells; i += sizeof row / sizeof *row) {
        const size_t count = tsr_min_u64(sizeof row / sizeof *row, cells - i);
        tsr_decode((unsigned char)kOuts[out].dtype, (const unsigned char *)narrow + i * width, count, row);
        for (size_t j = 0; j < count; j++)
            d[(i + j) / n * ldd + (i + j) % n] = (float)row[j];
    }
    return TSR_OK;
}

static tsr_status run_on(const tsr_device_gemm *kernel, const tsr_fp8_gemm_args *args, tsr_out out, buffers *b,
                         void *narrow, tsr_err *err)
{
    const size_t grid_k = tsr_ceil_div(args->k, 128), grid_n = tsr_ceil_div(args->n, 128);
    const size_t pitch = tsr_round_up(args->k, 16), scale_pitch = tsr_round_up(args->m, 4);
    const size_t cells = args->m * args->n, width = kOuts[out].width;
    TSR_TRY(upload(&b->a, pitch, args->a, args->k, args->k, args->m, err));
    TSR_TRY(upload(&b->w, pitch, args->w, args->k, args->k, args->n, err));
    TSR_TRY(upload(&b->scale_a, scale_pitch * sizeof(float), args->scale_a, args->ld_scale_a * sizeof(float),
                   args->m * sizeof(float), grid_k, err));
    TSR_TRY(upload(&b->scale_w, grid_k * sizeof(float), args->scale_w, grid_k * sizeof(float), grid_k * sizeof(float),
                   grid_n, err));
    TSR_TRY(allocate(&b->d, cells * width, err));
    TSR_TRY(check(cudaMemset(b->d, 0xFF, cells * width), "poisoning the result", err));
    const tsr_block_fp8_gemm gemm = {
        .a = b->a,
        .w = b->w,
        .scale_a = b->scale_a,
        .scale_w = b->scale_w,
        .d = b->d,
        .m = (int64_t)args->m,
        .n = (int64_t)args->n,
        .k = (int64_t)args->k,
        .lda = (int64_t)pitch,
        .ldw = (int64_t)pitch,
        .ldd = (int64_t)args->n,
        .ld_scale_a = (int64_t)scale_pitch,
        .out = kOuts[out].out,
        .config.kind = (int)kernel->variant == CUBLAS_LT ? TSR_GEMM_AUTO : (tsr_gemm_kind)kernel->variant,
    };
    TSR_TRY(launch(kernel, &gemm, err));
    return download(b->d, out, args->m, args->n, narrow, args->d, args->ldd, kernel->name, err);
}

static tsr_status run_gemm(const tsr_device_gemm *kernel, const tsr_fp8_gemm_args *args, tsr_out out, tsr_err *err)
{
    gpu *const g = kernel->device->state;
    buffers b = {0};
    if (args->block_n != 128 || args->block_k != 128)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s takes blocks of 128x128 only", kernel->name);
    void *const narrow = malloc(args->m * args->n * sizeof(float) + 1);
    if (narrow == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of %s", kernel->name);
    pthread_mutex_lock(&g->lock);
    (void)cudaSetDevice(g->properties.ordinal); /* of this thread; known to work */
    const tsr_status status = run_on(kernel, args, out, &b, narrow, err);
    (void)cudaFree(b.a);
    (void)cudaFree(b.w);
    (void)cudaFree(b.scale_a);
    (void)cudaFree(b.scale_w);
    (void)cudaFree(b.d);
    pthread_mutex_unlock(&g->lock);
    free(narrow);
    return status;
}

/* ---- int8 products ---- */

enum { A, W, SCALE_A, SCALE_W, AZP_WITH_ADJ, AZP, AZP_ADJ, BIAS, D, OPERANDS };

/* n elements of 4 bytes; nothing where there is nothing. */
static tsr_status upload_words(void **to, const void *from, size_t n, tsr_err *err)
{
    return from == NULL ? TSR_OK : upload(to, n * 4, from, n * 4, n * 4, 1, err);
}

static tsr_status run_int8_on(const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args, tsr_out out,
                              void *on_gpu[OPERANDS], void *narrow, tsr_err *err)
{
    const size_t pitch = tsr_round_up(args->k, 16), bytes = args->m * args->n * kOuts[out].width;
    TSR_TRY(upload(&on_gpu[A], pitch, args->a, args->k, args->k, args->m, err));
    TSR_TRY(upload(&on_gpu[W], pitch, args->w, args->k, args->k, args->n, err));
    /* The fast kernel takes whole 16 bytes of k: what is added is zeros. */
    if (pitch != args->k) {
        TSR_TRY(check(cudaMemset2D((char *)on_gpu[A] + args->k, pitch, 0, pitch - args->k, args->m), "padding", err));
        TSR_TRY(check(cudaMemset2D((char *)on_gpu[W] + args->k, pitch, 0, pitch - args->k, args->n), "padding", err));
    }
    TSR_TRY(upload_words(&on_gpu[SCALE_A], args->scale_a, args->one_scale_a ? 1 : args->m, err));
    TSR_TRY(upload_words(&on_gpu[SCALE_W], args->scale_w, args->one_scale_w ? 1 : args->n, err));
    TSR_TRY(upload_words(&on_gpu[AZP_WITH_ADJ], args->azp_with_adj, args->n, err));
    TSR_TRY(upload_words(&on_gpu[AZP], args->azp, args->m, err));
    TSR_TRY(upload_words(&on_gpu[AZP_ADJ], args->azp_adj, args->n, err));
    TSR_TRY(upload_words(&on_gpu[BIAS], args->bias, args->n, err));
    TSR_TRY(allocate(&on_gpu[D], bytes, err));
    TSR_TRY(check(cudaMemset(on_gpu[D], 0xFF, bytes), "poisoning the result", err));
    const tsr_int8_gemm gemm = {
        .a = on_gpu[A],
        .w = on_gpu[W],
        .scale_a = on_gpu[SCALE_A],
        .scale_w = on_gpu[SCALE_W],
        .one_scale_a = args->one_scale_a,
        .one_scale_w = args->one_scale_w,
        .azp_with_adj = on_gpu[AZP_WITH_ADJ],
        .azp = on_gpu[AZP],
        .azp_adj = on_gpu[AZP_ADJ],
        .bias = on_gpu[BIAS],
        .d = on_gpu[D],
        .m = (int64_t)args->m,
        .n = (int64_t)args->n,
        .k = (int64_t)pitch,
        .lda = (int64_t)pitch,
        .ldw = (int64_t)pitch,
        .ldd = (int64_t)args->n,
        .out = kOuts[out].out,
        .plain = kernel->variant == PLAIN,
    };
    TSR_TRY(tsr_cuda_int8_gemm(&gemm, NULL, err));
    return download(on_gpu[D], out, args->m, args->n, narrow, args->d, args->ldd, kernel->name, err);
}

static tsr_status run_epilogue(const tsr_device_epilogue *kernel, const tsr_int8_gemm_args *args, tsr_out out,
                               tsr_err *err)
{
    gpu *const g = kernel->device->state;
    void *on_gpu[OPERANDS] = {0};
    void *const narrow = malloc(args->m * args->n * sizeof(float) + 1);
    if (narrow == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of %s", kernel->name);
    pthread_mutex_lock(&g->lock);
    (void)cudaSetDevice(g->properties.ordinal);
    const tsr_status status = run_int8_on(kernel, args, out, on_gpu, narrow, err);
    for (size_t i = 0; i < OPERANDS; i++)
        (void)cudaFree(on_gpu[i]);
    pthread_mutex_unlock(&g->lock);
    free(narrow);
    return status;
}

/* ---- conversion of interleaved weights ---- */

static tsr_status run_dequant_on(const tsr_device_dequant *kernel, int bits, tsr_out out, const uint32_t *words,
                                 size_t n_words, uint16_t *values, void *on_gpu[2], tsr_err *err)
{
    const size_t padded = tsr_round_up(n_words, 4), each = 32 / (size_t)bits * sizeof *values;
    TSR_TRY(allocate(&on_gpu[0], padded * sizeof *words, err));
    TSR_TRY(allocate(&on_gpu[1], padded * each, err));
    TSR_TRY(check(cudaMemset(on_gpu[0], 0, padded * sizeof *words), "padding", err));
    TSR_TRY(check(cudaMemcpy(on_gpu[0], words, n_words * sizeof *words, cudaMemcpyHostToDevice), "copying to the GPU",
                  err));
    TSR_TRY(check(cudaMemset(on_gpu[1], 0xFF, padded * each), "poisoning the result", err));
    const tsr_fast_dequant dequant = {.words = on_gpu[0],
                                      .out = on_gpu[1],
                                      .k = (int64_t)(padded * 32 / (size_t)bits),
                                      .n = 1,
                                      .bits = bits,
                                      .bf16 = out == TSR_OUT_BF16,
                                      .native = kernel->variant == PLAIN};
    TSR_TRY(tsr_cuda_fast_dequant(&dequant, NULL, err));
    return check(cudaMemcpy(values, on_gpu[1], n_words * each, cudaMemcpyDeviceToHost), kernel->name, err);
}

static tsr_status run_dequant(const tsr_device_dequant *kernel, int bits, tsr_out out, const uint32_t *words,
                              size_t n_words, uint16_t *values, tsr_err *err)
{
    gpu *const g = kernel->device->state;
    void *on_gpu[2] = {0};
    pthread_mutex_lock(&g->lock);
    (void)cudaSetDevice(g->properties.ordinal);
    const tsr_status status = run_dequant_on(kernel, bits, out, words, n_words, values, on_gpu, err);
    (void)cudaFree(on_gpu[0]);
    (void)cudaFree(on_gpu[1]);
    pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- weight-only products ---- */

static size_t groups_of(const tsr_weight_only_args *args)
{
    return args->group == 0 ? 1 : args->k / args->group;
}

/* n floats that fit in BF16 or F16, as such. */
static tsr_status upload_narrow(void **to, const float *from, size_t n, bool bf16, uint16_t *narrow, tsr_err *err)
{
    for (size_t i = 0; i < n; i++)
        narrow[i] = bf16 ? tsr_bf16_from_f32(from[i]) : tsr_f16_from_f32(from[i]);
    return upload(to, n * sizeof *narrow, narrow, n * sizeof *narrow, n * sizeof *narrow, 1, err);
}

static tsr_status run_weight_only_on(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args,
                                     void *on_gpu[OPERANDS], uint16_t *narrow, tsr_err *err)
{
    const size_t cells = args->m * args->n, bytes = args->k * args->n * (size_t)args->format->bits / 8;
    TSR_TRY(upload(&on_gpu[W], bytes, args->words, bytes, bytes, 1, err));
    TSR_TRY(upload_narrow(&on_gpu[A], args->a, args->m * args->k, args->bf16, narrow, err));
    TSR_TRY(upload_narrow(&on_gpu[SCALE_W], args->scales, groups_of(args) * args->n, args->bf16, narrow, err));
    TSR_TRY(allocate(&on_gpu[D], cells * sizeof *narrow, err));
    TSR_TRY(check(cudaMemset(on_gpu[D], 0xFF, cells * sizeof *narrow), "poisoning the result", err));
    const tsr_weight_only_gemm gemm = {
        .a = on_gpu[A],
        .w = on_gpu[W],
        .scales = on_gpu[SCALE_W],
        .d = on_gpu[D],
        .m = (int64_t)args->m,
        .n = (int64_t)args->n,
        .k = (int64_t)args->k,
        .lda = (int64_t)args->k,
        .ldd = (int64_t)args->n,
        .group = (int64_t)args->group,
        .bits = args->format->bits,
        .bf16 = args->bf16,
        .kind = kernel->variant == PLAIN ? TSR_WEIGHT_ONLY_PLAIN : TSR_WEIGHT_ONLY_AUTO,
    };
    TSR_TRY(tsr_cuda_weight_only_gemm(&gemm, NULL, err));
    return download(on_gpu[D], args->bf16 ? TSR_OUT_BF16 : TSR_OUT_F16, args->m, args->n, narrow, args->d, args->ldd,
                    kernel->name, err);
}

static tsr_status run_weight_only(const tsr_device_weight_only *kernel, const tsr_weight_only_args *args, tsr_err *err)
{
    gpu *const g = kernel->device->state;
    void *on_gpu[OPERANDS] = {0};
    /* Room for each of activations, results and scales. */
    uint16_t *const narrow = malloc((args->m * (args->k + args->n) + groups_of(args) * args->n) * sizeof *narrow);
    if (narrow == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of %s", kernel->name);
    pthread_mutex_lock(&g->lock);
    (void)cudaSetDevice(g->properties.ordinal);
    const tsr_status status = run_weight_only_on(kernel, args, on_gpu, narrow, err);
    for (size_t i = 0; i < OPERANDS; i++)
        (void)cudaFree(on_gpu[i]);
    pthread_mutex_unlock(&g->lock);
    free(narrow);
    return status;
}

/* ---- latent attention, and heads cut over ranks ---- */

enum { TIMED_RUNS = 10 };
enum { Q, CACHE, TABLE, SEQLENS, OUT, WORKSPACE, MLA_OPERANDS };

/* Where the lock is held. */
static void use_gpu_of(const tsr_device_mla *kernel, size_t rank)
{
    const gpu *const g = kernel->device->state;
    (void)cudaSetDevice(g->nccl != NULL ? (int)rank : g->properties.ordinal);
}

static void take_gpu(const tsr_device *device)
{
    pthread_mutex_lock(&((gpu *)device->state)->lock);
}

static void leave_gpu(const tsr_device *device)
{
    pthread_mutex_unlock(&((gpu *)device->state)->lock);
}

static void free_all(void **on_gpu, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)cudaFree(on_gpu[i]);
}

/* A cache of codes as the BF16 rows of the same values. */
static tsr_status upload_widened(void **to, const tsr_mla_attention *a, tsr_err *err)
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
    const tsr_status status = upload(to, bytes, wide, bytes, bytes, rows, err);
    free(wide);
    return status;
}

static tsr_status time_decode(const tsr_mla_decode *decode, const char *name, double *seconds, tsr_err *err)
{
    TSR_TRY(check(cudaDeviceSynchronize(), name, err));
    const double began = tsr_now();
    for (size_t i = 0; i < TIMED_RUNS; i++)
        TSR_TRY(tsr_cuda_mla_decode(decode, NULL, err));
    TSR_TRY(check(cudaDeviceSynchronize(), name, err));
    *seconds = (tsr_now() - began) / TIMED_RUNS;
    return TSR_OK;
}

static tsr_status run_mla_on(const tsr_device_mla *kernel, const tsr_mla_attention *a, void *on_gpu[MLA_OPERANDS],
                             uint16_t *narrow, double *seconds, tsr_err *err)
{
    const size_t slots = a->batch * a->s_q * a->heads, width = a->latent + a->rope;
    const size_t row_bytes = tsr_mla_cache_row_bytes(a->latent, a->rope, false);
    tsr_cuda_device device;
    tsr_mla_decode decode = {.batch = (int64_t)a->batch,
                             .s_q = (int64_t)a->s_q,
                             .heads = (int64_t)a->heads,
                             .pages = (int64_t)a->pages,
                             .max_pages = (int64_t)a->max_pages,
                             .latent = (int32_t)a->latent,
                             .rope = (int32_t)a->rope,
                             .page = (int32_t)a->page,
                             .scale = a->scale,
                             .kind = (tsr_mla_kind)kernel->variant};
    TSR_TRY(tsr_cuda_current_device(&device, err));
    TSR_TRY(upload(&on_gpu[Q], width * 2, a->q, width * 2, width * 2, slots, err));
    TSR_TRY(a->fp8 ? upload_widened(&on_gpu[CACHE], a, err)
                   : upload(&on_gpu[CACHE], row_bytes, a->cache, row_bytes, row_bytes, a->pages * a->page, err));
    TSR_TRY(upload_words(&on_gpu[TABLE], a->block_table, a->batch * a->max_pages, err));
    TSR_TRY(upload_words(&on_gpu[SEQLENS], a->seqlens, a->batch, err));
    TSR_TRY(allocate(&on_gpu[OUT], slots * a->latent * 2, err));
    TSR_TRY(check(cudaMemset(on_gpu[OUT], 0xFF, slots * a->latent * 2), "poisoning the result", err));
    decode.q = on_gpu[Q];
    decode.cache = on_gpu[CACHE];
    decode.block_table = on_gpu[TABLE];
    decode.seqlens = on_gpu[SEQLENS];
    decode.out = on_gpu[OUT];
    TSR_TRY(allocate(&on_gpu[WORKSPACE], tsr_cuda_mla_workspace(&decode, &device) + 1, err));
    decode.workspace = on_gpu[WORKSPACE];
    TSR_TRY(tsr_cuda_mla_plan(&decode, NULL, err));
    TSR_TRY(tsr_cuda_mla_decode(&decode, NULL, err));
    TSR_TRY(download(on_gpu[OUT], TSR_OUT_BF16, slots, a->latent, narrow, a->out, a->latent, kernel->name, err));
    return time_decode(&decode, kernel->name, seconds, err);
}

static tsr_status run_mla(const tsr_device_mla *kernel, size_t rank, const tsr_mla_attention *args, double *seconds,
                          tsr_err *err)
{
    void *on_gpu[MLA_OPERANDS] = {0};
    uint16_t *const narrow = malloc(args->batch * args->s_q * args->heads * args->latent * sizeof *narrow + 1);
    if (narrow == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of %s", kernel->name);
    take_gpu(kernel->device);
    use_gpu_of(kernel, rank);
    const tsr_status status = run_mla_on(kernel, args, on_gpu, narrow, seconds, err);
    free_all(on_gpu, MLA_OPERANDS);
    leave_gpu(kernel->device);
    free(narrow);
    return status;
}

enum { PREFILL_Q, KV, K_ROPE, FIRST_QUERY, FIRST_TOKEN, PREFILL_OUT, PREFILL_WORKSPACE, PREFILL_OPERANDS };

static tsr_status time_prefill(const tsr_mla_prefill *prefill, const char *name, double *seconds, tsr_err *err)
{
    TSR_TRY(check(cudaDeviceSynchronize(), name, err));
    const double began = tsr_now();
    for (size_t i = 0; i < TIMED_RUNS; i++)
        TSR_TRY(tsr_cuda_mla_prefill(prefill, NULL, err));
    TSR_TRY(check(cudaDeviceSynchronize(), name, err));
    *seconds = (tsr_now() - began) / TIMED_RUNS;
    return TSR_OK;
}

static tsr_status run_prefill_on(const tsr_device_prefill *kernel, const tsr_causal_attention *a,
                                 void *on_gpu[PREFILL_OPERANDS], double *seconds, tsr_err *err)
{
    const size_t q_row = 2 * (a->nope + a->rope), kv_row = 2 * (a->nope + a->value), rope_row = 2 * a->rope;
    const size_t out_bytes = a->tokens_q * a->heads * a->value * sizeof *a->out;
    tsr_cuda_device device;
    tsr_mla_prefill prefill = {.batch = (int64_t)a->batch,
                               .heads = (int64_t)a->heads,
                               .tokens_q = (int64_t)a->tokens_q,
                               .tokens_k = (int64_t)a->tokens_k,
                               .nope = (int32_t)a->nope,
                               .rope = (int32_t)a->rope,
                               .value = (int32_t)a->value,
                               .scale = a->scale,
                               .kind = (tsr_mla_kind)kernel->variant};
    TSR_TRY(tsr_cuda_current_device(&device, err));
    TSR_TRY(upload(&on_gpu[PREFILL_Q], q_row, a->q, q_row, q_row, a->tokens_q * a->heads, err));
    TSR_TRY(upload(&on_gpu[KV], kv_row, a->kv, kv_row, kv_row, a->tokens_k * a->heads, err));
    TSR_TRY(upload(&on_gpu[K_ROPE], rope_row, a->k_rope, rope_row, rope_row, a->tokens_k, err));
    TSR_TRY(upload_words(&on_gpu[FIRST_QUERY], a->cu_seqlens_q, a->batch + 1, err));
    TSR_TRY(upload_words(&on_gpu[FIRST_TOKEN], a->cu_seqlens_k, a->batch + 1, err));
    TSR_TRY(allocate(&on_gpu[PREFILL_OUT], out_bytes, err));
    TSR_TRY(check(cudaMemset(on_gpu[PREFILL_OUT], 0xFF, out_bytes), "poisoning the result", err));
    prefill.q = on_gpu[PREFILL_Q];
    prefill.kv = on_gpu[KV];
    prefill.k_rope = on_gpu[K_ROPE];
    prefill.cu_seqlens_q = on_gpu[FIRST_QUERY];
    prefill.cu_seqlens_k = on_gpu[FIRST_TOKEN];
    prefill.out_f32 = on_gpu[PREFILL_OUT];
    TSR_TRY(allocate(&on_gpu[PREFILL_WORKSPACE], tsr_cuda_mla_prefill_workspace(&prefill, &device) + 1, err));
    prefill.workspace = on_gpu[PREFILL_WORKSPACE];
    TSR_TRY(tsr_cuda_mla_prefill_plan(&prefill, NULL, err));
    TSR_TRY(tsr_cuda_mla_prefill(&prefill, NULL, err));
    TSR_TRY(check(cudaMemcpy(a->out, on_gpu[PREFILL_OUT], out_bytes, cudaMemcpyDeviceToHost), kernel->name, err));
    return time_prefill(&prefill, kernel->name, seconds, err);
}

static tsr_status run_prefill(const tsr_device_prefill *kernel, const tsr_causal_attention *args, double *seconds,
                              tsr_err *err)
{
    const gpu *const g = kernel->device->state;
    void *on_gpu[PREFILL_OPERANDS] = {0};
    take_gpu(kernel->device);
    (void)cudaSetDevice(g->properties.ordinal);
    const tsr_status status = run_prefill_on(kernel, args, on_gpu, seconds, err);
    free_all(on_gpu, PREFILL_OPERANDS);
    leave_gpu(kernel->device);
    return status;
}

/* `batch` matrices of rows x cols, gapless there. */
static tsr_status upload_matrices(void **to, const float *from, size_t batch, size_t next, size_t rows, size_t ld,
                                  size_t cols, tsr_err *err)
{
    const size_t row = cols * sizeof *from;
    TSR_TRY(allocate(to, batch * rows * row + 1, err));
    for (size_t b = 0; b < batch; b++)
        TSR_TRY(check(cudaMemcpy2D((char *)*to + b * rows * row, row, from + b * next, ld * sizeof *from, row, rows,
                                   cudaMemcpyHostToDevice),
                      "copying to the GPU", err));
    return TSR_OK;
}

static tsr_status run_project_on(const tsr_device_mla *kernel, const tsr_project_args *a, void *on_gpu[3], tsr_err *err)
{
    const size_t row = a->n * sizeof *a->y;
    TSR_TRY(upload_matrices(&on_gpu[0], a->x, a->batch, a->next_x, a->m, a->ld_x, a->k, err));
    TSR_TRY(upload_matrices(&on_gpu[1], a->w, a->batch, a->next_w, a->n, a->ld_w, a->k, err));
    TSR_TRY(allocate(&on_gpu[2], a->batch * a->m * row + 1, err));
    TSR_TRY(check(cudaMemset(on_gpu[2], 0xFF, a->batch * a->m * row), "poisoning the result", err));
    const tsr_project_args there = {.x = on_gpu[0],
                                    .w = on_gpu[1],
                                    .y = on_gpu[2],
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
        TSR_TRY(check(cudaMemcpy2D(a->y + b * a->next_y, a->ld_y * sizeof *a->y, there.y + b * there.next_y, row, row,
                                   a->m, cudaMemcpyDeviceToHost),
                      kernel->name, err));
    return TSR_OK;
}

static tsr_status run_project(const tsr_device_mla *kernel, size_t rank, const tsr_project_args *args, tsr_err *err)
{
    void *on_gpu[3] = {0};
    take_gpu(kernel->device);
    use_gpu_of(kernel, rank);
    const tsr_status status = run_project_on(kernel, args, on_gpu, err);
    free_all(on_gpu, 3);
    leave_gpu(kernel->device);
    return status;
}

/* Parts in turn onto the first, on one GPU. */
static tsr_status add_in_turn(size_t ranks, float *parts, size_t n, void *on_gpu[2], double *seconds, tsr_err *err)
{
    const size_t bytes = n * sizeof *parts;
    *seconds = 0;
    TSR_TRY(upload_words(&on_gpu[0], parts, n, err));
    TSR_TRY(allocate(&on_gpu[1], bytes, err));
    for (size_t r = 1; r < ranks; r++) {
        TSR_TRY(check(cudaMemcpy(on_gpu[1], parts + r * n, bytes, cudaMemcpyHostToDevice), "copying to the GPU", err));
        const double began = tsr_now();
        TSR_TRY(tsr_cuda_add(on_gpu[0], on_gpu[1], n, NULL, err));
        TSR_TRY(check(cudaDeviceSynchronize(), "adding ranks", err));
        *seconds += tsr_now() - began;
    }
    for (size_t r = 0; r < ranks; r++)
        TSR_TRY(check(cudaMemcpy(parts + r * n, on_gpu[0], bytes, cudaMemcpyDeviceToHost), "adding ranks", err));
    return TSR_OK;
}

static tsr_status all_reduce(const tsr_device_mla *kernel, size_t ranks, float *parts, size_t n,
                             void *on_gpu[2][TSR_NCCL_RANKS], double *seconds, tsr_err *err)
{
    const gpu *const g = kernel->device->state;
    const float *from[TSR_NCCL_RANKS];
    float *to[TSR_NCCL_RANKS];
    for (size_t r = 0; r < ranks; r++) {
        use_gpu_of(kernel, r);
        TSR_TRY(upload_words(&on_gpu[0][r], parts + r * n, n, err));
        TSR_TRY(allocate(&on_gpu[1][r], n * sizeof *parts, err));
        TSR_TRY(check(cudaMemset(on_gpu[1][r], 0xFF, n * sizeof *parts), "poisoning the result", err));
        from[r] = on_gpu[0][r];
        to[r] = on_gpu[1][r];
    }
    TSR_TRY(tsr_nccl_sum(g->nccl, from, to, n, err)); /* connects */
    const double began = tsr_now();
    TSR_TRY(tsr_nccl_sum(g->nccl, from, to, n, err));
    *seconds = tsr_now() - began;
    for (size_t r = 0; r < ranks; r++) {
        use_gpu_of(kernel, r);
        TSR_TRY(check(cudaMemcpy(parts + r * n, to[r], n * sizeof *parts, cudaMemcpyDeviceToHost), "NCCL", err));
    }
    return TSR_OK;
}

static tsr_status run_sum(const tsr_device_mla *kernel, size_t ranks, float *parts, size_t n, double *seconds,
                          tsr_err *err)
{
    const gpu *const g = kernel->device->state;
    void *on_gpu[2][TSR_NCCL_RANKS] = {{0}};
    take_gpu(kernel->device);
    use_gpu_of(kernel, 0);
    const tsr_status status = g->nccl != NULL ? all_reduce(kernel, ranks, parts, n, on_gpu, seconds, err)
                                              : add_in_turn(ranks, parts, n, on_gpu[0], seconds, err);
    free_all(on_gpu[0], TSR_NCCL_RANKS);
    free_all(on_gpu[1], TSR_NCCL_RANKS);
    leave_gpu(kernel->device);
    return status;
}

static tsr_status spread(const tsr_device_mla *kernel, size_t ranks, char *how, size_t size, tsr_err *err)
{
    gpu *const g = kernel->device->state;
    take_gpu(kernel->device);
    const tsr_status status = g->nccl == NULL ? tsr_nccl_open(&g->nccl, ranks, err) : TSR_OK;
    const int version = status == TSR_OK ? tsr_nccl_version(g->nccl) : 0;
    leave_gpu(kernel->device);
    TSR_TRY(status);
    snprintf(how, size, "on %zu GPUs, NCCL %d.%d.%d", ranks, version / 10000, version / 100 % 100, version % 100);
    return TSR_OK;
}

/* ---- the table ---- */

static void close_gpu(tsr_device *device)
{
    gpu *const g = device->state;
    tsr_cublas_lt_close(g->peer);
    tsr_nccl_close(g->nccl);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

tsr_status tsr_device_add_cuda(tsr_device *device, tsr_err *err)
{
    static const tsr_device_gemm kPlain = {.name = "CUDA plain",
                                           .accumulation = TSR_ACCUMULATE_FP32,
                                           .run = run_gemm,
                                           .variant = TSR_GEMM_PLAIN},
                                 kFast = {.name = "CUDA fast",
                                          .accumulation = TSR_ACCUMULATE_PROMOTED,
                                          .run = run_gemm,
                                          .variant = TSR_GEMM_AUTO},
                                 kPeer = {.name = "cuBLASLt",
                                          .accumulation = TSR_ACCUMULATE_PROMOTED,
                                          .run = run_gemm,
                                          .variant = (uintptr_t)CUBLAS_LT};
    static const tsr_device_epilogue kEpilogues[] = {
        {.name = "CUDA plain", .run = run_epilogue, .variant = PLAIN},
        {.name = "CUDA fast", .run = run_epilogue, .variant = FAST},
    };
    static const tsr_device_dequant kDequants[] = {
        {.name = "CUDA cvt", .run = run_dequant, .variant = PLAIN},
        {.name = "CUDA PRMT, LOP3", .run = run_dequant, .variant = FAST},
    };
    static const tsr_device_weight_only kWeightOnlys[] = {
        {.name = "CUDA plain", .run = run_weight_only, .one_by_one = true, .variant = PLAIN},
        {.name = "CUDA fast", .run = run_weight_only, .variant = FAST},
    };
    tsr_device_mla mla = {.name = "CUDA plain",
                          .to_bf16 = true,
                          .widens = true,
                          .run = run_mla,
                          .project = run_project,
                          .sum = run_sum,
                          .spread = spread,
                          .variant = TSR_MLA_PLAIN};
    tsr_cuda_device properties;
    TSR_TRY(tsr_cuda_current_device(&properties, err));
    gpu *const g = calloc(1, sizeof *g);
    if (g == NULL)
        return tsr_out_of_memory(err, "for the GPU's table");
    g->properties = properties;
    pthread_mutex_init(&g->lock, NULL);
    device->state = g;
    device->close = close_gpu;
    TSR_TRY(tsr_device_add_gemm(device, &kPlain, err));
    for (size_t i = 0; i < 2; i++) {
        TSR_TRY(tsr_device_add_epilogue(device, &kEpilogues[i], err));
        TSR_TRY(tsr_device_add_dequant(device, &kDequants[i], err));
        TSR_TRY(tsr_device_add_weight_only(device, &kWeightOnlys[i], err));
    }
    device->weight_onlys[device->n_weight_onlys - 1].lifts = properties.arch == 90;
    TSR_TRY(tsr_device_add_mla(device, &mla, err));
    tsr_device_prefill prefill = {.name = "CUDA plain, prefill", .run = run_prefill, .variant = TSR_MLA_PLAIN};
    TSR_TRY(tsr_device_add_prefill(device, &prefill, err));
    if (properties.arch == 90) {
        prefill.name = "CUDA fast, prefill";
        prefill.tensor_core = true;
        prefill.variant = TSR_MLA_FAST;
        TSR_TRY(tsr_device_add_prefill(device, &prefill, err));
        mla.name = "CUDA fast";
        mla.tensor_core = true;
        mla.variant = TSR_MLA_FAST;
        TSR_TRY(tsr_device_add_mla(device, &mla, err));
        TSR_TRY(tsr_device_add_gemm(device, &kFast, err));
        if (tsr_cublas_lt_open(&g->peer, NULL) == TSR_OK)
            TSR_TRY(tsr_device_add_gemm(device, &kPeer, err));
    }
    snprintf(device->name, sizeof device->name, "%.200s (sm_%d)", properties.name, properties.arch);
    return TSR_OK;
}
