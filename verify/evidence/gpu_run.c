/* Allocates and copies memory of the GPU, under its lock. */
#include "verify/evidence/gpu_run.h"

#include "common/checked.h"
#include "common/parallel/threads.h"
#include "verify/values/weight_reader.h"

#include <stdlib.h>

enum { TIMED_RUNS = 10 };

void tsr_gpu_use_rank(const tsr_gpu *gpu, size_t rank)
{
    (void)cudaSetDevice(gpu->nccl != NULL ? (int)rank : gpu->properties.ordinal);
}

tsr_status tsr_gpu_begin(tsr_gpu_run *run, const tsr_device *device, const char *name, size_t narrow_bytes,
                         tsr_err *err)
{
    *run = (tsr_gpu_run){.gpu = device->state, .name = name, .narrow = malloc(narrow_bytes + 1)};
    if (run->narrow == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for operands and results of %s", name);
    pthread_mutex_lock(&run->gpu->lock);
    /* set for this thread; it cannot fail, since opening succeeded */
    (void)cudaSetDevice(run->gpu->properties.ordinal);
    return TSR_OK;
}

tsr_status tsr_gpu_end(tsr_gpu_run *run, tsr_status status)
{
    for (size_t i = 0; i < TSR_GPU_SLOTS; i++)
        (void)cudaFree(run->on_gpu[i]);
    pthread_mutex_unlock(&run->gpu->lock);
    free(run->narrow);
    return status;
}

tsr_status tsr_gpu_check(cudaError_t code, const char *doing, tsr_err *err)
{
    return code == cudaSuccess ? TSR_OK : tsr_fail(err, TSR_E_DEVICE, "%s: %s", doing, cudaGetErrorString(code));
}

tsr_status tsr_gpu_allocated(cudaError_t code, size_t bytes, const char *remedy, tsr_err *err)
{
    size_t left = 0, all = 0;
    int gpu = 0;
    if (code != cudaErrorMemoryAllocation)
        return tsr_gpu_check(code, "allocating on the GPU", err);
    (void)cudaGetLastError();
    (void)cudaGetDevice(&gpu);
    (void)cudaMemGetInfo(&left, &all);
    return tsr_fail_as(err, TSR_ERROR_GPU_MEMORY, TSR_E_DEVICE,
                       "the GPU has too little memory: %zu bytes are needed, %zu of %zu are left on GPU %d; %s", bytes,
                       left, all, gpu, remedy);
}

tsr_status tsr_gpu_allocate(tsr_gpu_run *run, int slot, size_t bytes, tsr_err *err)
{
    return tsr_gpu_allocated(cudaMalloc(&run->on_gpu[slot], bytes), bytes, "fewer tokens, or --device cpu", err);
}

void tsr_gpu_release(tsr_gpu_run *run, int slot)
{
    (void)cudaFree(run->on_gpu[slot]);
    run->on_gpu[slot] = NULL;
}

tsr_status tsr_gpu_allocate_result(tsr_gpu_run *run, int slot, size_t bytes, tsr_err *err)
{
    TSR_TRY(tsr_gpu_allocate(run, slot, bytes, err));
    return tsr_gpu_check(cudaMemset(run->on_gpu[slot], 0xFF, bytes), "poisoning the result", err);
}

tsr_status tsr_gpu_upload(tsr_gpu_run *run, int slot, size_t pitch, const void *from, size_t from_pitch, size_t bytes,
                          size_t rows, tsr_err *err)
{
    TSR_TRY(tsr_gpu_allocate(run, slot, pitch * rows, err));
    return tsr_gpu_check(cudaMemcpy2D(run->on_gpu[slot], pitch, from, from_pitch, bytes, rows, cudaMemcpyHostToDevice),
                         "copying to the GPU", err);
}

tsr_status tsr_gpu_upload_words(tsr_gpu_run *run, int slot, const void *from, size_t n, tsr_err *err)
{
    return from == NULL ? TSR_OK : tsr_gpu_upload(run, slot, n * 4, from, n * 4, n * 4, 1, err);
}

static const struct {
    tsr_gemm_out out;
    tsr_dtype dtype;
    size_t bytes;
} kOuts[TSR_N_OUTS] = {{TSR_GEMM_BF16, TSR_BF16, 2}, {TSR_GEMM_F16, TSR_F16, 2}, {TSR_GEMM_F32, TSR_F32, 4}};

tsr_gemm_out tsr_gpu_out(tsr_out out)
{
    return kOuts[out].out;
}

size_t tsr_gpu_out_bytes(tsr_out out)
{
    return kOuts[out].bytes;
}

tsr_status tsr_gpu_download(const tsr_gpu_run *run, int slot, tsr_out out, size_t m, size_t n, float *d, size_t ldd,
                            tsr_err *err)
{
    const size_t cells = m * n, width = kOuts[out].bytes;
    TSR_TRY(tsr_gpu_check(cudaMemcpy(run->narrow, run->on_gpu[slot], cells * width, cudaMemcpyDeviceToHost), run->name,
                          err));
    double row[64];
    for (size_t i = 0; i < cells; i += sizeof row / sizeof *row) {
        const size_t count = tsr_min_u64(sizeof row / sizeof *row, cells - i);
        tsr_decode((unsigned char)kOuts[out].dtype, (const unsigned char *)run->narrow + i * width, count, row);
        for (size_t j = 0; j < count; j++)
            d[(i + j) / n * ldd + (i + j) % n] = (float)row[j];
    }
    return TSR_OK;
}

tsr_status tsr_gpu_time(const tsr_gpu_run *run, tsr_status (*launch)(const void *args, tsr_err *err), const void *args,
                        double *seconds, tsr_err *err)
{
    TSR_TRY(tsr_gpu_check(cudaDeviceSynchronize(), run->name, err));
    const double began = tsr_now();
    for (size_t i = 0; i < TIMED_RUNS; i++)
        TSR_TRY(launch(args, err));
    TSR_TRY(tsr_gpu_check(cudaDeviceSynchronize(), run->name, err));
    *seconds = (tsr_now() - began) / TIMED_RUNS;
    return TSR_OK;
}
