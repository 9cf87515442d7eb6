/* Calls cuBLASLt, loaded by dlopen, for one problem at a time. */
#include "kernels/cuda/cublas_lt.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdlib.h>

#define TSR_LT_FUNCTIONS(X)                 \
    X(cublasLtCreate)                       \
    X(cublasLtDestroy)                      \
    X(cublasLtMatmulDescCreate)             \
    X(cublasLtMatmulDescDestroy)            \
    X(cublasLtMatmulDescSetAttribute)       \
    X(cublasLtMatrixLayoutCreate)           \
    X(cublasLtMatrixLayoutDestroy)          \
    X(cublasLtMatmulPreferenceCreate)       \
    X(cublasLtMatmulPreferenceDestroy)      \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatmulAlgoGetHeuristic)       \
    X(cublasLtMatmul)

enum { kWorkspace = 64 << 20, kOffers = 8 };

struct tsr_cublas_lt {
#define TSR_DECLARE(name) decltype(&::name) name;
    TSR_LT_FUNCTIONS(TSR_DECLARE)
    void *library, *workspace;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, a, d;
    tsr_block_fp8_gemm gemm;
    cublasLtMatmulHeuristicResult_t offers[kOffers];
};

static void forget(tsr_cublas_lt *lt)
{
    if (lt->desc) {
        lt->cublasLtMatmulDescDestroy(lt->desc);
    }
    for (cublasLtMatrixLayout_t *layout : {&lt->w, &lt->a, &lt->d}) {
        if (*layout) {
            lt->cublasLtMatrixLayoutDestroy(*layout);
        }
        *layout = nullptr;
    }
    lt->desc = nullptr;
}

extern "C" void tsr_cublas_lt_close(tsr_cublas_lt *lt)
{
    if (!lt) {
        return;
    }
    if (lt->handle) {
        forget(lt);
        lt->cublasLtDestroy(lt->handle);
    }
    cudaFree(lt->workspace);
    if (lt->library) {
        dlclose(lt->library);
    }
    free(lt);
}

static tsr_status load(tsr_cublas_lt *lt, tsr_err *err)
{
    lt->library = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (!lt->library) {
        return tsr_fail(err, TSR_E_DEVICE, "no cuBLASLt: %s", dlerror());
    }
#define TSR_LOAD(name)                                                         \
    lt->name = reinterpret_cast<decltype(&::name)>(dlsym(lt->library, #name)); \
    if (!lt->name) {                                                           \
        return tsr_fail(err, TSR_E_DEVICE, "cuBLASLt has no " #name);          \
    }
    TSR_LT_FUNCTIONS(TSR_LOAD)
    if (cudaMalloc(&lt->workspace, kWorkspace) != cudaSuccess ||
        lt->cublasLtCreate(&lt->handle) != CUBLAS_STATUS_SUCCESS) {
        return tsr_fail(err, TSR_E_DEVICE, "cuBLASLt cannot be initialized");
    }
    return TSR_OK;
}

extern "C" tsr_status tsr_cublas_lt_open(tsr_cublas_lt **lt, tsr_err *err)
{
    *lt = static_cast<tsr_cublas_lt *>(calloc(1, sizeof **lt));
    if (!*lt) {
        return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    }
    const tsr_status status = load(*lt, err);
    if (status != TSR_OK) {
        tsr_cublas_lt_close(*lt);
        *lt = nullptr;
    }
    return status;
}

template <typename T> static bool set(const tsr_cublas_lt *lt, cublasLtMatmulDescAttributes_t what, T value)
{
    return lt->cublasLtMatmulDescSetAttribute(lt->desc, what, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

/* Its matrices are column-major: D^T = W A^T, with W transposed. */
static bool describe(tsr_cublas_lt *lt, const tsr_block_fp8_gemm *g)
{
    const cudaDataType_t out = g->out == TSR_GEMM_BF16 ? CUDA_R_16BF : g->out == TSR_GEMM_F16 ? CUDA_R_16F : CUDA_R_32F;
    return lt->cublasLtMatmulDescCreate(&lt->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           set(lt, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T) && set(lt, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) &&
           set(lt, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, (int32_t)CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) &&
           set(lt, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, (int32_t)CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) &&
           set(lt, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g->scale_w) &&
           set(lt, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g->scale_a) &&
           lt->cublasLtMatrixLayoutCreate(&lt->w, CUDA_R_8F_E4M3, g->k, g->n, g->ldw) == CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatrixLayoutCreate(&lt->a, CUDA_R_8F_E4M3, g->k, g->m, g->lda) == CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatrixLayoutCreate(&lt->d, out, g->n, g->m, g->ldd) == CUBLAS_STATUS_SUCCESS;
}

extern "C" tsr_status tsr_cublas_lt_prepare(tsr_cublas_lt *lt, const tsr_block_fp8_gemm *g, int *offers, tsr_err *err)
{
    cublasLtMatmulPreference_t preference = nullptr;
    const size_t room = kWorkspace;
    *offers = 0;
    if (g->m % 4 || g->n % 16 || g->k % 16 || (g->k + 127) / 128 % 4 || g->ld_scale_a != g->m) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "cuBLASLt does not support %lld x %lld x %lld in FP8 blocks",
                        (long long)g->m, (long long)g->n, (long long)g->k);
    }
    forget(lt);
    lt->gemm = *g;
    if (describe(lt, g) && lt->cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS) {
        lt->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room,
                                                 sizeof room);
        lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, lt->desc, lt->w, lt->a, lt->d, lt->d, preference, kOffers,
                                           lt->offers, offers);
        lt->cublasLtMatmulPreferenceDestroy(preference);
    }
    return *offers > 0
               ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED, "cuBLASLt has no algorithm for %lld x %lld x %lld in FP8 blocks",
                          (long long)g->m, (long long)g->n, (long long)g->k);
}

extern "C" tsr_status tsr_cublas_lt_run(tsr_cublas_lt *lt, int offer, tsr_stream stream, tsr_err *err)
{
    const tsr_block_fp8_gemm *const g = &lt->gemm;
    const float one = 1, zero = 0;
    const cublasStatus_t code =
        lt->cublasLtMatmul(lt->handle, lt->desc, &one, g->w, lt->w, g->a, lt->a, &zero, g->d, lt->d, g->d, lt->d,
                           &lt->offers[offer].algo, lt->workspace, kWorkspace, stream);
    return code == CUBLAS_STATUS_SUCCESS ? TSR_OK : tsr_fail(err, TSR_E_DEVICE, "cuBLASLt: status %d", (int)code);
}
