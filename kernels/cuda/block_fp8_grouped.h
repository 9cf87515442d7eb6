/* Block-FP8 products of several groups (experts) in one launch: each row of A is multiplied by the weights of its own
 * group, as kernels/cuda/block_fp8_gemm.h defines the product of one group. n and k are the same for all groups.
 *
 * Two layouts of the rows of A and D, those of serving code:
 *   contiguous   the groups' rows one group after another, each group beginning at a multiple of 128 rows. group_of_row
 *                has the group of every row, and -1 for the rows of padding that follow a group. Within 128 rows from a
 *                multiple of 128 on, all rows that are not padding have the group of the first of them.
 *   masked       every group has room for m / groups rows, of which the first rows_of_group[g] are its own. Other rows
 *   are not written, and their contents in A have no effect.
 *
 * Layouts: gemm.a [m][lda], gemm.scale_a [ceil(k/128)][ld_scale_a] and gemm.d [m][ldd] over the rows of all groups;
 * gemm.w [groups * n][ldw] and gemm.scale_w [groups][ceil(n/128)][ceil(k/128)], one group after another. The two index
 * arrays are in device memory, so a launch can be captured before the rows per group are known. A number outside 0 ..
 * groups - 1 in group_of_row counts as padding, one outside 0 .. m / groups in rows_of_group as the nearest of them.
 *
 * The fast kernels have the requirements of those of block_fp8_gemm.h, at most TSR_GROUPED_MOST groups and, for the
 * masked layout, room for a multiple of 4 rows in each. Otherwise TSR_GEMM_AUTO selects the plain kernel, which runs on
 * every device from sm_80 on. No workspace. The error bounds are the same. If the dense kernel does not split k, a
 * group's results have the same bits as its results. Results have the same bits in every run. The kernels are also
 * launched as programmatic dependents. */
#pragma once

#include "kernels/cuda/block_fp8_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TSR_GROUPED_MOST = 1024 };

typedef struct tsr_block_fp8_grouped {
    /* TSR_GEMM_FEW: masked rows only, tiles of `rows` (64, 128) by `tokens` (16, 32, 64), cluster 1. TSR_GEMM_WIDE:
     * 128 tokens by 128 or 192 rows, cluster 2. */
    tsr_block_fp8_gemm gemm;
    int64_t groups;
    const int32_t *group_of_row;  /* contiguous: [m] */
    const int32_t *rows_of_group; /* masked: [groups]; exactly one of the two arrays is not NULL */
    int64_t expected_rows;        /* masked: approximate rows per group, only for the choice of a tile; 0: all */
} tsr_block_fp8_grouped;

/* Returns the fastest kernel and tile for this problem on this device, by a model of an H200. Pure. */
tsr_gemm_config tsr_cuda_block_fp8_grouped_choose(const tsr_block_fp8_grouped *args, const tsr_cuda_device *device);

/* Launches the product. TSR_E_SHAPE: invalid sizes. TSR_E_UNSUPPORTED: the requested config does not fit the arguments
 * or the device. */
tsr_status tsr_cuda_block_fp8_grouped(const tsr_block_fp8_grouped *args, tsr_stream stream, tsr_err *err);

#ifdef __cplusplus
}
#endif
