/* C entries to cuBLASLt's int8 product with results in int32, and to a kernel that scales them, for sweep_build.py. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace
{

constexpr size_t kWorkspace = 64 << 20;
constexpr int kAtOnce = 4; /* results of a thread */

cublasLtHandle_t handle;
void *workspace;
cublasLtMatmulDesc_t description;
cublasLtMatrixLayout_t layout_w, layout_a, layout_d;
cublasLtMatmulHeuristicResult_t offer;

__global__ void scale(const int4 *sums, const float *scale_a, const float4 *scale_w, uint2 *d, int columns)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= columns) {
        return;
    }
    const size_t at = (size_t)blockIdx.y * columns + j;
    const int4 sum = sums[at];
    const float4 w = scale_w[j];
    const float a = scale_a[blockIdx.y];
    const __nv_bfloat162 low = __floats2bfloat162_rn(a * (w.x * (float)sum.x), a * (w.y * (float)sum.y)),
                         high = __floats2bfloat162_rn(a * (w.z * (float)sum.z), a * (w.w * (float)sum.w));
    d[at] = make_uint2(*reinterpret_cast<const unsigned *>(&low), *reinterpret_cast<const unsigned *>(&high));
}

} // namespace

/* Takes the first algorithm that cuBLASLt offers for a[m, k] and w[n, k]. Its matrices are column-major: D^T = W A^T,
 * with W transposed. Returns 0, or 1 if it offers none. */
extern "C" int cublas_int8_prepare(int m, int n, int k)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    if (!handle &&
        (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS || cudaMalloc(&workspace, kWorkspace) != cudaSuccess)) {
        return 1;
    }
    if (description) {
        cublasLtMatmulDescDestroy(description);
        cublasLtMatrixLayoutDestroy(layout_w);
        cublasLtMatrixLayoutDestroy(layout_a);
        cublasLtMatrixLayoutDestroy(layout_d);
    }
    cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32I, CUDA_R_32I);
    cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    cublasLtMatrixLayoutCreate(&layout_w, CUDA_R_8I, k, n, k);
    cublasLtMatrixLayoutCreate(&layout_a, CUDA_R_8I, k, m, k);
    cublasLtMatrixLayoutCreate(&layout_d, CUDA_R_32I, n, m, n);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                         sizeof kWorkspace);
    int offers = 0;
    const cublasStatus_t code = cublasLtMatmulAlgoGetHeuristic(handle, description, layout_w, layout_a, layout_d,
                                                               layout_d, preference, 1, &offer, &offers);
    cublasLtMatmulPreferenceDestroy(preference);
    return code != CUBLAS_STATUS_SUCCESS || offers == 0;
}

/* Computes the sums [m, n] in int32. Returns cuBLAS's status. */
extern "C" int cublas_int8_run(const void *a, const void *w, int *sums, void *stream)
{
    const int one = 1, zero = 0;
    return (int)cublasLtMatmul(handle, description, &one, w, layout_w, a, layout_a, &zero, sums, layout_d, sums,
                               layout_d, &offer.algo, workspace, kWorkspace, static_cast<cudaStream_t>(stream));
}

/* Computes d[m, n] in BF16: scale_a * (scale_w * sum); n is a multiple of 4. Returns CUDA's error. */
extern "C" int cublas_int8_scale(const int *sums, const float *scale_a, const float *scale_w, void *d, int m, int n,
                                 void *stream)
{
    const int columns = n / kAtOnce;
    scale<<<dim3((columns + 255) / 256, m), 256, 0, static_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<const int4 *>(sums), scale_a, reinterpret_cast<const float4 *>(scale_w),
        static_cast<uint2 *>(d), columns);
    return (int)cudaGetLastError();
}
