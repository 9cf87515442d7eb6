/* Common code of the two launchers of the weight-only product on Hopper, for weight_only_stream.cu and
 * weight_only_tiles.cu only: tensor maps of codes, tokens and scales, and the launch in clusters. */
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/weight_only_gemm.h"

namespace
{

/* Boxes of `rows` lines of 128 bytes, for this many steps of 64 rows of K. */
struct line_box {
    int rows, steps;
    CUtensorMapL2promotion promotion;
};

/* Encodes the maps of one product. The driver's first error is kept in `code`. */
struct map_encoder {
    const tsr_weight_only_gemm &g;
    encode_fn encode;
    CUresult code = CUDA_SUCCESS;

    /* Encodes `rows` rows, `pitch` bytes apart, in which 64 rows of K take 128 bytes, or `across` numbers. */
    void lines(CUtensorMap *map, CUtensorMapDataType type, const void *at, int64_t across, int64_t rows, int64_t pitch,
               const line_box &by)
    {
        const cuuint64_t dims[3] = {(cuuint64_t)across, (cuuint64_t)rows, (cuuint64_t)(g.k / 64)};
        const cuuint64_t pitches[2] = {(cuuint64_t)pitch, 128};
        const cuuint32_t box[3] = {(cuuint32_t)across, (cuuint32_t)by.rows, (cuuint32_t)by.steps};
        put(map, type, 3, at, dims, pitches, box, CU_TENSOR_MAP_SWIZZLE_128B, by.promotion);
    }

    /* The lines of the codes, and of the tokens. */
    void weights(CUtensorMap *map, const line_box &by)
    {
        lines(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, g.w, 128, g.n * g.bits / 16, g.k * 2, by);
    }

    void tokens(CUtensorMap *map, const line_box &by)
    {
        lines(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, g.a, 64, g.m, g.lda * 2, by);
    }

    /* Scales or zeros, one row for each group of K, in boxes. */
    void scales(CUtensorMap *map, const void *at, int columns, int rows)
    {
        const int64_t groups = g.group == 0 ? 1 : g.k / g.group;
        const cuuint64_t plane[2] = {(cuuint64_t)g.n, (cuuint64_t)groups}, pitch[1] = {(cuuint64_t)g.n * 2};
        const cuuint32_t box[2] = {(cuuint32_t)columns, (cuuint32_t)rows};
        put(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, at, plane, pitch, box, CU_TENSOR_MAP_SWIZZLE_NONE,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    }

    tsr_status status(tsr_err *err) const
    {
        return code == CUDA_SUCCESS
                   ? TSR_OK
                   : tsr_fail(err, TSR_E_DEVICE, "weight-only product: the driver refused a tensor map: error %d",
                              (int)code);
    }

  private:
    void put(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, const void *at, const cuuint64_t *dims,
             const cuuint64_t *pitches, const cuuint32_t *box, CUtensorMapSwizzle swizzle,
             CUtensorMapL2promotion promotion)
    {
        const cuuint32_t steps[3] = {1, 1, 1};
        if (code == CUDA_SUCCESS) {
            code = encode(map, type, rank, const_cast<void *>(at), dims, pitches, box, steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        }
    }
};

/* Launches a kernel whose clusters of `splits` CTAs share K, spread evenly over the GPU. */
template <typename... Args>
tsr_status launch_splits(void (*kernel)(Args...), const host::launch_shape &shape, int splits, tsr_err *err,
                         const Args &...args)
{
    cudaLaunchAttribute balanced = {};
    balanced.id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    balanced.val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicyLoadBalancing;
    cudaError_t code = host::allow_shared(kernel, shape.shared);
    if (code == cudaSuccess) {
        code = host::launch(kernel, shape,
                            {host::in_clusters((unsigned)splits), host::beside_the_one_before(), balanced}, args...);
    }
    return host::launched("weight-only product", code, err);
}

} // namespace
