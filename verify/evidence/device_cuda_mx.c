/* Runs the GPU's kernels for small groups in the checks. Compiled if CUDA was found. */
#include "kernels/cuda/mx_dequant.h"
#include "kernels/cuda/mx_gemm.h"
#include "verify/evidence/gpu_run.h"

/* Slots of tsr_gpu_run. */
enum { A, A_SCALES, W, W_SCALES, D };

/* Copies a matrix of `rows` rows and its scales to two slots. */
static tsr_status upload(tsr_gpu_run *r, int slot, const tsr_mx_matrix *from, size_t rows, size_t k, tsr_mx_matrix *to,
                         tsr_err *err)
{
    const size_t bytes = tsr_mx_form_bytes(from->form, rows * k), group = tsr_mx_form_group(from->form);
    *to = *from;
    TSR_TRY(tsr_gpu_upload(r, slot, bytes, from->codes, bytes, bytes, 1, err));
    to->codes = r->on_gpu[slot];
    if (group == 0)
        return TSR_OK;
    const size_t scales = rows * k / group;
    TSR_TRY(tsr_gpu_upload(r, slot + 1, scales, from->scales, scales, scales, 1, err));
    to->scales = r->on_gpu[slot + 1];
    return TSR_OK;
}

static tsr_status run_dequant_on(tsr_gpu_run *r, const tsr_device_mx_dequant *kernel, const tsr_mx_matrix *matrix,
                                 size_t rows, size_t k, uint16_t *values, tsr_err *err)
{
    const size_t bytes = rows * k * sizeof *values;
    tsr_mx_dequant args = {.rows = (int64_t)rows, .k = (int64_t)k, .plain = kernel->variant == TSR_GPU_PLAIN};
    TSR_TRY(upload(r, W, matrix, rows, k, &args.matrix, err));
    TSR_TRY(tsr_gpu_allocate_result(r, D, bytes, err));
    args.out = r->on_gpu[D];
    TSR_TRY(tsr_cuda_mx_dequant(&args, NULL, err));
    return tsr_gpu_check(cudaMemcpy(values, r->on_gpu[D], bytes, cudaMemcpyDeviceToHost), kernel->name, err);
}

static tsr_status run_dequant(const tsr_device_mx_dequant *kernel, const tsr_mx_matrix *matrix, size_t rows, size_t k,
                              uint16_t *values, tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, 0, err));
    return tsr_gpu_end(&r, run_dequant_on(&r, kernel, matrix, rows, k, values, err));
}

static tsr_status run_gemm_on(tsr_gpu_run *r, const tsr_mx_gemm_args *args, tsr_out out, tsr_err *err)
{
    tsr_mx_gemm g = {.m = (int64_t)args->m,
                     .n = (int64_t)args->n,
                     .k = (int64_t)args->k,
                     .ldd = (int64_t)args->n,
                     .out = tsr_gpu_out(out)};
    TSR_TRY(upload(r, A, &args->a, args->m, args->k, &g.a, err));
    TSR_TRY(upload(r, W, &args->w, args->n, args->k, &g.w, err));
    TSR_TRY(tsr_gpu_allocate_result(r, D, args->m * args->n * tsr_gpu_out_bytes(out), err));
    g.d = r->on_gpu[D];
    TSR_TRY(tsr_cuda_mx_gemm(&g, NULL, err));
    return tsr_gpu_download(r, D, out, args->m, args->n, args->d, args->ldd, err);
}

static tsr_status run_gemm(const tsr_device_mx_gemm *kernel, const tsr_mx_gemm_args *args, tsr_out out, tsr_err *err)
{
    tsr_gpu_run r;
    TSR_TRY(tsr_gpu_begin(&r, kernel->device, kernel->name, args->m * args->n * sizeof(float), err));
    return tsr_gpu_end(&r, run_gemm_on(&r, args, out, err));
}

tsr_status tsr_device_add_cuda_mx(tsr_device *device, tsr_err *err)
{
    static const tsr_device_mx_dequant kDequants[] = {
        {.name = "CUDA plain", .run = run_dequant, .variant = TSR_GPU_PLAIN},
        {.name = "CUDA fast", .run = run_dequant, .variant = TSR_GPU_FAST},
    };
    static const tsr_device_mx_gemm kPlain = {.name = "CUDA plain", .run = run_gemm, .variant = TSR_GPU_PLAIN};
    for (size_t i = 0; i < sizeof kDequants / sizeof *kDequants; i++)
        TSR_TRY(tsr_device_add_mx_dequant(device, &kDequants[i], err));
    return tsr_device_add_mx_gemm(device, &kPlain, err);
}
