/* Block-FP8 products of several groups (experts) in one launch: each row of A is multiplied by the weights of its own
 * group, as kernels/cuda/block_fp8_gemm.h defines the product of one group. n and k are the same for all groups.
 *
 * Two layouts of the rows of A and D, those of serving code:
 *   contiguous   the groups' rows one group after another, each group beginning at a multiple of 128 rows. group_of_row
 *                has the group of every row, and -1 for the rows of padding that follow a group. Within 128 rows from a
 *                multiple of 128 on, all rows that are not padding have the group of the first of them.
 *   masked       every group has room for m / groups rows, of which the first rows_of_group[g] are its own.
 * Rows of no group, and those beyond a group's own, are not written; what A holds there has no effect.
 *
 * Layouts: gemm.a [m][lda], gemm.scale_a [ceil(k/128)][ld_scale_a] and gemm.d [m][ldd] over the rows of all groups;
 * gemm.w [groups * n][ldw] and gemm.scale_w [groups][ceil(n/128)][ceil(k/128)], one group after another. The two index
 * arrays lie in device memory, so that a launch may be captured before anybody knows how many rows a group gets. A
 * number outside 0 .. groups - 1 in group_of_row counts as padding, one outside 0 .. m / groups in rows_of_group as
 * the nearest of them.
 *
 * The fast kernels need what those of block_fp8_gemm.h need, at most TSR_GROUPED_MOST groups and, masked, room for a
 * multiple of 4 rows in each; without, TSR_GEMM_AUTO takes the plain kernel, which runs on every device from sm_80 on. No workspace. Errors bounded as there. Where the
 * dense kernel does not split k, a group's results have the same bits as from it; always the same in every run.
 * Launched as programmatic dependents, too. */
#ifndef TSR_KERNELS_CUDA_BLOCK_FP8_GROUPED_H
#define TSR_KERNELS_CUDA_BLOCK_FP8_GROUPED_H

#include "kernels/cuda/block_fp8_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TSR_GROUPED_MOST = 1024 };

typedef struct tsr_block_fp8_grouped {
    /* config.kind TSR_GEMM_TOKENS, of masked rows only: tiles of `rows` (64, 128) by `tokens` (16, 32, 64), cluster 1.
     * TSR_GEMM_WIDE: 128 tokens by 128 or 192 rows, cluster 2. */
    tsr_block_fp8_gemm gemm;
    int64_t groups;
    const int32_t *group_of_row;  /* contiguous: [m] */
    const int32_t *rows_of_group; /* masked: [groups]; exactly one of the two arrays is there */
    int64_t expected_rows;        /* masked: how many rows a group has or so, for the choice of a tile only; 0: all */
} tsr_block_fp8_grouped;

/* The kernel and tile that are fastest for this problem on this device, by a model of an H200. Pure. */
tsr_gemm_config tsr_cuda_block_fp8_grouped_choose(const tsr_block_fp8_grouped *args, const tsr_cuda_device *device);

/* TSR_E_SHAPE: no such product. TSR_E_UNSUPPORTED: the config asked for does not fit the arguments or the device. */
tsr_status tsr_cuda_block_fp8_grouped(const tsr_block_fp8_grouped *args, tsr_stream stream,
                                      tsr_err *err) TSR_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
