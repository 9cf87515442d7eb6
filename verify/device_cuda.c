/* A GPU as a device of the checks: memory, copies, and the CUDA kernels in its table. Compiled where CUDA was found. */
#include "formats/checked.h"
#include "kernels/cuda/cublas_lt.h"
#include "verify/device.h"
#include "verify/reader.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct gpu {
    tsr_cuda_device properties;
    tsr_cublas_lt *peer;  /* NULL: not there */
    pthread_mutex_t lock; /* one product at a time */
} gpu;

enum { CUBLAS_LT = -1 /* as the variant of a kernel, beside tsr_gemm_kind */ };

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

static tsr_status run_on(const tsr_device_gemm *kernel, const tsr_fp8_gemm_args *args, tsr_out out, buffers *b,
                         void *narrow, tsr_err *err)
{
    static const struct {
        tsr_gemm_out out;
        tsr_dtype dtype;
        size_t width;
    } kOuts[TSR_N_OUTS] = {{TSR_GEMM_BF16, TSR_BF16, 2}, {TSR_GEMM_F16, TSR_F16, 2}, {TSR_GEMM_F32, TSR_F32, 4}};
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
    TSR_TRY(check(cudaMemcpy(narrow, b->d, cells * width, cudaMemcpyDeviceToHost), kernel->name, err));
    double row[64];
    for (size_t i = 0; i < cells; i += sizeof row / sizeof *row) {
        const size_t n = tsr_min_u64(sizeof row / sizeof *row, cells - i);
        tsr_decode((unsigned char)kOuts[out].dtype, (const unsigned char *)narrow + i * width, n, row);
        for (size_t j = 0; j < n; j++)
            args->d[(i + j) / args->n * args->ldd + (i + j) % args->n] = (float)row[j];
    }
    return TSR_OK;
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

static void close_gpu(tsr_device *device)
{
    gpu *const g = device->state;
    tsr_cublas_lt_close(g->peer);
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
    tsr_cuda_device properties;
    TSR_TRY(tsr_cuda_current_device(&properties, err));
    gpu *const g = calloc(1, sizeof *g);
    if (g == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the GPU's table");
    g->properties = properties;
    pthread_mutex_init(&g->lock, NULL);
    device->state = g;
    device->close = close_gpu;
    tsr_device_add_gemm(device, &kPlain);
    if (properties.arch == 90) {
        tsr_device_add_gemm(device, &kFast);
        if (tsr_cublas_lt_open(&g->peer, NULL) == TSR_OK)
            tsr_device_add_gemm(device, &kPeer);
    }
    snprintf(device->name, sizeof device->name, "%.200s (sm_%d)", properties.name, properties.arch);
    return TSR_OK;
}
