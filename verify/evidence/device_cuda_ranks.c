/* Adds the parts of ranks on GPUs: by NCCL if each rank has a GPU, otherwise in order on one. Compiled if CUDA was
 * found. */
#include "common/float_bits.h"
#include "common/parallel/threads.h"
#include "kernels/cuda/project.h"
#include "verify/evidence/gpu_run.h"

#include <stdio.h>

/* Copies n values to a slot as `out`, which can represent them. */
static tsr_status upload_values(tsr_gpu_run *run, int slot, tsr_out out, const float *values, size_t n, tsr_err *err)
{
    const size_t bytes = n * tsr_gpu_out_bytes(out);
    uint16_t *const narrow = run->narrow;
    if (out == TSR_OUT_F32)
        return tsr_gpu_upload_words(run, slot, values, n, err);
    for (size_t i = 0; i < n; i++)
        narrow[i] = out == TSR_OUT_BF16 ? tsr_bf16_from_f32(values[i]) : tsr_f16_from_f32(values[i]);
    return tsr_gpu_upload(run, slot, bytes, narrow, bytes, bytes, 1, err);
}

enum { TOTAL, PART };

/* Adds the parts to the first one in order, on one GPU. */
static tsr_status add_in_turn(tsr_gpu_run *run, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                              tsr_err *err)
{
    *seconds = 0;
    TSR_TRY(upload_values(run, TOTAL, out, parts, n, err));
    for (size_t r = 1; r < ranks; r++) {
        TSR_TRY(upload_values(run, PART, out, parts + r * n, n, err));
        const double began = tsr_now();
        TSR_TRY(tsr_cuda_add(run->on_gpu[TOTAL], run->on_gpu[PART], n, tsr_gpu_out(out), NULL, err));
        TSR_TRY(tsr_gpu_check(cudaDeviceSynchronize(), "adding ranks", err));
        *seconds += tsr_now() - began;
        tsr_gpu_release(run, PART);
    }
    for (size_t r = 0; r < ranks; r++)
        TSR_TRY(tsr_gpu_download(run, TOTAL, out, 1, n, parts + r * n, n, err));
    return TSR_OK;
}

/* Slot r is the part of rank r, and slot TSR_NCCL_RANKS + r the sum on its GPU. */
static tsr_status all_reduce(tsr_gpu_run *run, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                             tsr_err *err)
{
    tsr_nccl *const nccl = run->gpu->nccl;
    const void *from[TSR_NCCL_RANKS];
    void *to[TSR_NCCL_RANKS];
    for (size_t r = 0; r < ranks; r++) {
        const int sum = TSR_NCCL_RANKS + (int)r;
        tsr_gpu_use_rank(run->gpu, r);
        TSR_TRY(upload_values(run, (int)r, out, parts + r * n, n, err));
        TSR_TRY(tsr_gpu_allocate_result(run, sum, n * tsr_gpu_out_bytes(out), err));
        from[r] = run->on_gpu[r];
        to[r] = run->on_gpu[sum];
    }
    TSR_TRY(tsr_nccl_sum(nccl, from, to, n, tsr_gpu_out(out), err)); /* connects */
    const double began = tsr_now();
    TSR_TRY(tsr_nccl_sum(nccl, from, to, n, tsr_gpu_out(out), err));
    *seconds = tsr_now() - began;
    for (size_t r = 0; r < ranks; r++) {
        tsr_gpu_use_rank(run->gpu, r);
        TSR_TRY(tsr_gpu_download(run, TSR_NCCL_RANKS + (int)r, out, 1, n, parts + r * n, n, err));
    }
    return TSR_OK;
}

tsr_status tsr_cuda_sum_ranks(tsr_device *device, size_t ranks, tsr_out out, float *parts, size_t n, double *seconds,
                              tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, device, "the sum over ranks", n * sizeof *parts, err));
    return tsr_gpu_end(&r, r.gpu->nccl != NULL ? all_reduce(&r, ranks, out, parts, n, seconds, err)
                                               : add_in_turn(&r, ranks, out, parts, n, seconds, err));
}

tsr_status tsr_cuda_spread_ranks(tsr_device *device, size_t ranks, char *how, size_t size, tsr_err *err)
{
    tsr_gpu_run r;
    int version = 0;
    TSR_TRY(tsr_gpu_begin(&r, device, "NCCL", 0, err));
    const tsr_status status = r.gpu->nccl == NULL ? tsr_nccl_open(&r.gpu->nccl, ranks, err) : TSR_OK;
    if (status == TSR_OK)
        version = tsr_nccl_version(r.gpu->nccl);
    TSR_TRY(tsr_gpu_end(&r, status));
    snprintf(how, size, "on %zu GPUs, NCCL %d.%d.%d", ranks, version / 10000, version / 100 % 100, version % 100);
    return TSR_OK;
}
