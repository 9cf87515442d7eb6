/* Owns a C entry to one of DeepGEMM's Hopper kernels, compiled for one shape and one tile, which tests/peers/kernels/peers_build.py
 * names: PEER_NAME, PEER_N, PEER_K; PEER_TOKENS and PEER_ROWS of a tile, PEER_STAGES, PEER_CLUSTER, PEER_SHARES_A,
 * PEER_GRID; PEER_GROUPS and PEER_KIND, DeepGEMM's name for a layout of groups. PEER_OLD: the version of 2025-05. It
 * needs DeepGEMM's headers and CUTLASS's; docs/peers.md says where they come from. Nothing here is part of Tessera's
 * build. */
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#ifdef PEER_OLD
#include <deep_gemm/fp8_gemm.cuh>
#else
#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>
#endif

namespace
{

constexpr int kBlock = 128, kTileBytes = PEER_TOKENS * PEER_ROWS * 2;
constexpr int kMultiplying = PEER_TOKENS <= 64 ? 128 : 256, kThreads = kMultiplying + 128;
constexpr int kScalesOfBlocks = PEER_K / kBlock * 4 * (kBlock % PEER_ROWS == 0 ? 1 : 2);

constexpr int up_to(int x, int multiple)
{
    return (x + multiple - 1) / multiple * multiple;
}

/* The widest swizzle, in bytes, that a row of results of a tile can have; its kernels swizzle by 16 as not at all. */
constexpr int swizzle_of_results()
{
    constexpr int kRow = PEER_ROWS * 2;
    return kRow % 128 == 0 ? 128 : kRow % 64 == 0 ? 64 : kRow % 32 == 0 ? 32 : 0;
}
constexpr int kSwizzle = swizzle_of_results();

constexpr int kShared = up_to(kTileBytes, 1024) + 256 + up_to(kScalesOfBlocks, 8) +
                        PEER_STAGES * ((PEER_TOKENS + PEER_ROWS) * kBlock + up_to(PEER_TOKENS * 4, 128));

CUtensorMap map(CUtensorMapDataType type, int size, void *base, int columns, int rows, int box_columns, int box_rows,
                int swizzle)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode = [] {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult query;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &query);
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
    }();
    CUtensorMap made = {};
    const cuuint64_t dims[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)columns * size};
    const cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    encode(&made, type, 2, base, dims, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
           swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
           : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
           : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                           : CU_TENSOR_MAP_SWIZZLE_NONE,
           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return made;
}

} // namespace

/* d[m, n] in BF16; scales of A [k / 128][m], of W [ceil(n / 128)][k / 128]. Of groups: `index` is the group of each of
 * m rows, or the number of rows of each group, which has room for m; then A's scales are [groups][k / 128][m].
 * `overlap`: the launch may begin while the one before it ends. Returns CUDA's error. */
extern "C" int PEER_NAME(void *a, float *scale_a, void *w, float *scale_w, void *d, int *index, int m, int overlap,
                         void *stream)
{
#ifdef PEER_OLD
    constexpr int kRooms = 1;
#else
    constexpr int kRooms = deep_gemm::GemmType::PEER_KIND == deep_gemm::GemmType::MGroupedMasked ? PEER_GROUPS : 1;
#endif
    const CUtensorMap map_a = map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, a, PEER_K, m * kRooms, kBlock, PEER_TOKENS, 128);
    const CUtensorMap map_w =
        map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, w, PEER_K, PEER_N * PEER_GROUPS, kBlock, PEER_ROWS, 128);
    const CUtensorMap map_d = map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, d, PEER_N, m * kRooms,
                                  kSwizzle ? kSwizzle / 2 : PEER_ROWS, PEER_TOKENS, kSwizzle);
    const CUtensorMap map_scale =
        map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, scale_a, m, PEER_K / kBlock * kRooms, PEER_TOKENS, 1, 0);
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = PEER_CLUSTER;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(PEER_GRID);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kShared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = overlap ? 2 : 1;
#ifdef PEER_OLD
    const auto kernel =
        deep_gemm::fp8_gemm_kernel<PEER_N, PEER_K, PEER_TOKENS, PEER_ROWS, kBlock, 0, kSwizzle, 1, PEER_STAGES, 128,
                                   128, PEER_CLUSTER, PEER_SHARES_A, deep_gemm::GemmType::Normal>;
#else
    const auto kernel =
        deep_gemm::sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::K, 0, PEER_N, PEER_K, PEER_GROUPS, PEER_TOKENS, PEER_ROWS,
                                           kBlock, 128, 128, kSwizzle, PEER_STAGES, 128, kMultiplying, PEER_CLUSTER,
                                           PEER_SHARES_A, PEER_GRID, deep_gemm::GemmType::PEER_KIND,
                                           cutlass::bfloat16_t, deep_gemm::epilogue::transform::EpilogueIdentity>;
#endif
    const cudaError_t allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (allowed != cudaSuccess) {
        return (int)allowed;
    }
#ifdef PEER_OLD
    return (int)cudaLaunchKernelEx(&config, kernel, scale_w, index, (uint32_t)m, map_a, map_w, map_scale, map_d);
#else
    return (int)cudaLaunchKernelEx(&config, kernel, scale_w, index, (uint32_t)m, (uint32_t)PEER_N, (uint32_t)PEER_K,
                                   map_a, map_w, map_d, map_scale);
#endif
}
