/* C entry to DeepGEMM's fp8_mqa_logits on Hopper, for sweep_sparse.py. Needs the headers of DeepGEMM and CUTLASS
 * (docs/peers.md). */
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <deep_gemm/impls/sm90_fp8_mqa_logits.cuh>

#include "peers_map.cuh"

namespace
{

constexpr int kWidth = 128, kColumns = 128, kKeys = 256, kStages = 3, kLoading = 128, kMultiplying = 512;
constexpr int kProcessors = 132;

template <int HEADS>
cudaError_t run(void *q, void *k, float *k_scale, float *weights, int *begin, int *end, float *logits, int queries,
                int keys, int ld_logits, cudaStream_t stream)
{
    constexpr int kQueries = kColumns / HEADS;
    constexpr int kShared = kStages * (kColumns * kWidth + kKeys * kWidth + kColumns * 4 + kKeys * 4) +
                            (kStages * 4 + kMultiplying / 128 * 2) * 8 + 4;
    const CUtensorMap map_q =
        map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, q, kWidth, (int64_t)queries * HEADS, kWidth, kColumns, 128);
    const CUtensorMap map_k = map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, k, kWidth, keys, kWidth, kKeys, 128);
    const CUtensorMap map_scale = map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, k_scale, (keys + 3) / 4 * 4, 1, kKeys, 1, 0);
    const CUtensorMap map_weights =
        map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, weights, HEADS, queries, HEADS, kQueries, 0);
    const auto kernel = deep_gemm::sm90_fp8_mqa_logits<HEADS, kWidth, false, kQueries, kKeys, kStages, kStages,
                                                       kProcessors, kLoading, kMultiplying, float>;
    const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (allowed != cudaSuccess) {
        return allowed;
    }
    kernel<<<kProcessors, kLoading + kMultiplying, kShared, stream>>>(
        (uint32_t)queries, (uint32_t)keys, 0, (uint32_t)ld_logits, reinterpret_cast<uint32_t *>(begin),
        reinterpret_cast<uint32_t *>(end), logits, map_q, map_k, map_scale, map_weights);
    return cudaGetLastError();
}

} // namespace

/* Scores keys begin[i] to end[i] of each query i. Whole blocks of 256 keys and of 128 / heads queries are written, so
 * that logits has rows of ld_logits >= keys + 256 floats, and as many rows as those blocks. Returns CUDA's error. */
extern "C" int deepgemm_index(void *q, void *k, float *k_scale, float *weights, int *begin, int *end, float *logits,
                              int queries, int keys, int heads, int ld_logits, void *stream)
{
    const auto launch = heads == 64 ? run<64> : run<32>;
    return (int)launch(q, k, k_scale, weights, begin, end, logits, queries, keys, ld_logits,
                       static_cast<cudaStream_t>(stream));
}
