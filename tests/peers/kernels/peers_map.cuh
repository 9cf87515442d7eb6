/* Makes the tensor maps of DeepGEMM's kernels, for peers_deepgemm.cu and peers_deepgemm_index.cu. */
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* Returns a map of rows of `columns` elements of `size` bytes. `swizzle` is in bytes. */
static inline CUtensorMap map(CUtensorMapDataType type, int size, void *base, int64_t columns, int64_t rows,
                              int box_columns, int box_rows, int swizzle)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode = [] {
        void *found = nullptr;
        cudaDriverEntryPointQueryResult query;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &query);
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
    }();
    CUtensorMap made = {};
    const cuuint64_t dims[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, pitch[1] = {(cuuint64_t)(columns * size)};
    const cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    encode(&made, type, 2, base, dims, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
           swizzle == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
           : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
           : swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                           : CU_TENSOR_MAP_SWIZZLE_NONE,
           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return made;
}
