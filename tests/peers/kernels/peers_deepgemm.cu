/* C entry to one tile of DeepGEMM's block-FP8 kernel for Hopper, for sweep_build.py, which names: PEER_NAME; PEER_N and
 * PEER_K, 0 if they are given at run time; PEER_TOKENS and PEER_ROWS of a tile, PEER_STAGES, PEER_CLUSTER,
 * PEER_SHARES_A; PEER_GROUPS and PEER_KIND, DeepGEMM's name for a layout of groups. Needs the headers of DeepGEMM and
 * CUTLASS (docs/peers.md). */
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>

#include "peers_map.cuh"

namespace
{

constexpr int kBlock = 128, kTileBytes = PEER_TOKENS * PEER_ROWS * 2, kProcessors = 132;
constexpr int kMultiplying = PEER_TOKENS <= 64 ? 128 : 256, kThreads = kMultiplying + 128;

constexpr int up_to(int x, int multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

/* Returns the widest swizzle, in bytes, that a row of results of a tile can have; 16 means none. */
constexpr int swizzle_of_results()
{
    constexpr int kRow = PEER_ROWS * 2;
    return kRow % 128 == 0 ? 128 : kRow % 64 == 0 ? 64 : kRow % 32 == 0 ? 32 : 0;
}
constexpr int kSwizzle = swizzle_of_results();

} // namespace

/* Computes d[m, n] in BF16 with `ld_scale` floats from one row of A's scales [k / 128][m] to the next; W's are
 * [ceil(n / 128)][k / 128]. Of groups: `index` is the group of each of m rows, or the number of rows of each group,
 * which has room for m; then A's scales are [groups][k / 128][m]. `overlap`: the launch may begin while the one before
 * it ends. Returns CUDA's error. */
extern "C" int PEER_NAME(void *a, float *scale_a, void *w, float *scale_w, void *d, int *index, int m, int n, int k,
                         int ld_scale, int groups, int overlap, void *stream)
{
    constexpr bool kMasked = deep_gemm::GemmType::PEER_KIND == deep_gemm::GemmType::MGroupedMasked;
    const int rooms = kMasked ? PEER_GROUPS : 1, tiles = (k + kBlock - 1) / kBlock;
    const int shared = up_to(kTileBytes, 1024) + 256 + up_to(tiles * 4 * (kBlock % PEER_ROWS == 0 ? 1 : 2), 8) +
                       PEER_STAGES * ((PEER_TOKENS + PEER_ROWS) * kBlock + up_to(PEER_TOKENS * 4, 128));
    const CUtensorMap map_a = map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, a, k, (int64_t)m * rooms, kBlock, PEER_TOKENS, 128);
    const CUtensorMap map_w = map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, w, k, (int64_t)n * groups, kBlock, PEER_ROWS, 128);
    const CUtensorMap map_d = map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, d, n, (int64_t)m * rooms,
                                  kSwizzle ? kSwizzle / 2 : PEER_ROWS, PEER_TOKENS, kSwizzle);
    const CUtensorMap map_scale =
        map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, scale_a, ld_scale, tiles * rooms, PEER_TOKENS, 1, 0);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = PEER_CLUSTER;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kProcessors);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = overlap ? 2 : 1;
    const auto kernel =
        deep_gemm::sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::K, 0, PEER_N, PEER_K, PEER_GROUPS, PEER_TOKENS, PEER_ROWS,
                                           kBlock, 128, 128, kSwizzle, PEER_STAGES, 128, kMultiplying, PEER_CLUSTER,
                                           PEER_SHARES_A, kProcessors, deep_gemm::GemmType::PEER_KIND,
                                           cutlass::bfloat16_t, deep_gemm::epilogue::transform::EpilogueIdentity>;
    const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (allowed != cudaSuccess) {
        return (int)allowed;
    }
    return (int)cudaLaunchKernelEx(&config, kernel, scale_w, index, (uint32_t)m, (uint32_t)n, (uint32_t)k, map_a, map_w,
                                   map_d, map_scale);
}
