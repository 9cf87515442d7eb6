/* Calls cuBLAS, loaded by dlopen. */
#include "kernels/cuda/cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdlib.h>

/* The C function among its overloads. */
using batched_gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                        const void *, const void *, cudaDataType, int, long long, const void *,
                                        cudaDataType, int, long long, const void *, void *, cudaDataType, int,
                                        long long, int, cublasComputeType_t, cublasGemmAlgo_t);

struct tsr_cublas {
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    batched_gemm gemm;
    void *library;
    cublasHandle_t handle;
};

extern "C" void tsr_cublas_close(tsr_cublas *c)
{
    if (!c) {
        return;
    }
    if (c->handle) {
        c->destroy(c->handle);
    }
    if (c->library) {
        dlclose(c->library);
    }
    free(c);
}

template <typename T> static bool find(const tsr_cublas *c, const char *name, T *function)
{
    *function = reinterpret_cast<T>(dlsym(c->library, name));
    return *function != nullptr;
}

static tsr_status load(tsr_cublas *c, tsr_stream stream, tsr_err *err)
{
    c->library = dlopen("libcublas.so.13", RTLD_NOW);
    if (!c->library) {
        return tsr_fail(err, TSR_E_DEVICE, "no cuBLAS 13, which passes on a GPU need (part of the CUDA Toolkit): %s",
                        dlerror());
    }
    if (!find(c, "cublasCreate_v2", &c->create) || !find(c, "cublasDestroy_v2", &c->destroy) ||
        !find(c, "cublasSetStream_v2", &c->set_stream) || !find(c, "cublasGemmStridedBatchedEx", &c->gemm)) {
        return tsr_fail(err, TSR_E_DEVICE, "cuBLAS lacks a function: %s", dlerror());
    }
    if (c->create(&c->handle) != CUBLAS_STATUS_SUCCESS) {
        c->handle = nullptr;
        return tsr_fail(err, TSR_E_DEVICE, "cuBLAS cannot be initialized");
    }
    return c->set_stream(c->handle, stream) == CUBLAS_STATUS_SUCCESS
               ? TSR_OK
               : tsr_fail(err, TSR_E_DEVICE, "cuBLAS rejects the stream");
}

extern "C" tsr_status tsr_cublas_open(tsr_cublas **cublas, tsr_stream stream, tsr_err *err)
{
    *cublas = static_cast<tsr_cublas *>(calloc(1, sizeof **cublas));
    if (!*cublas) {
        return tsr_out_of_memory(err, "for cuBLAS");
    }
    const tsr_status status = load(*cublas, stream, err);
    if (status != TSR_OK) {
        tsr_cublas_close(*cublas);
        *cublas = nullptr;
    }
    return status;
}

/* Its matrices are column-major: C^T = B A^T. */
extern "C" tsr_status tsr_cublas_run(tsr_cublas *c, const tsr_cublas_gemm *g, tsr_err *err)
{
    const bool wide = g->precision == TSR_PRECISION_FP64;
    const double one = 1, zero = 0;
    const float one_f32 = 1, zero_f32 = 0;
    const void *const factor = wide ? (const void *)&one : &one_f32;
    const void *const rest = wide ? (const void *)(g->add ? &one : &zero) : g->add ? &one_f32 : &zero_f32;
    const cudaDataType_t sums = wide ? CUDA_R_64F : CUDA_R_32F,
                         type = g->precision == TSR_PRECISION_BF16 ? CUDA_R_16BF : sums;
    const cudaDataType_t result = g->sums ? sums : type;
    if (g->m == 0 || g->n == 0 || g->batch == 0) {
        return TSR_OK;
    }
    const cublasStatus_t code =
        c->gemm(c->handle, g->across ? CUBLAS_OP_N : CUBLAS_OP_T, g->both_across ? CUBLAS_OP_T : CUBLAS_OP_N, (int)g->n,
                (int)g->m, (int)g->k, factor, g->b, type, (int)g->ldb, (long long)g->step_b, g->a, type, (int)g->lda,
                (long long)g->step_a, rest, g->c, result, (int)g->ldc, (long long)g->step_c, (int)g->batch,
                wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return code == CUBLAS_STATUS_SUCCESS
               ? TSR_OK
               : tsr_fail(err, TSR_E_DEVICE, "cuBLAS: status %d in a product of %zu x %zu x %zu", (int)code, g->m, g->n,
                          g->k);
}
