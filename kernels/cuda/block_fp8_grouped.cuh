/* Common declarations of the grouped block-FP8 product, for its files only: the problem, how the work of a masked
 * layout is located, and the entry points of the two Hopper kernels. */
#pragma once

#include "kernels/cuda/block_fp8_grouped.h"
#include "kernels/cuda/block_fp8_parts.cuh"

namespace block_fp8
{

/* all.m and all.d cover the rows of all groups; all.w and all.scale_w begin with group 0 */
struct grouped_problem {
    problem all;
    tsr_gemm_out out;
    int groups;
    int room;                                    /* masked: rows reserved for a group */
    const int32_t *group_of_row, *rows_of_group; /* one is NULL */

    /* Returns the group of a row of the contiguous layout; -1: padding. */
    __device__ __forceinline__ int group_of(int row) const
    {
        const int group = row < all.m ? __ldg(group_of_row + row) : -1;
        return group < groups ? max(group, -1) : -1;
    }
    __device__ __forceinline__ int rows_of(int group) const
    {
        return min(max(__ldg(rows_of_group + group), 0), room);
    }
};

/* Returns the rows of W of all groups together, which the tensor map covers. */
static inline int64_t weight_rows(const grouped_problem &p)
{
    return (int64_t)p.groups * p.all.n;
}

/* The groups of a masked layout, in shared memory: the rows of each, and the end of its units of work in the sequence
 * of all units. */
struct group_table {
    int ends[TSR_GROUPED_MOST], rows[TSR_GROUPED_MOST];

    /* Fills the table; called by all `threads` threads of the CTA, which the caller synchronises afterwards.
     * units_of(rows) returns the units of a group with this many rows. */
    template <typename UNITS> __device__ __forceinline__ void fill(const grouped_problem &p, const UNITS &units_of)
    {
        for (int g = threadIdx.x; g < p.groups; g += blockDim.x) {
            rows[g] = p.rows_of(g);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            int before = 0;
            for (int first = 0; first < p.groups; first += 32) {
                const int g = first + (int)threadIdx.x;
                int sum = g < p.groups ? units_of(rows[g]) : 0;
                for (int step = 1; step < 32; step *= 2) {
                    const int left = __shfl_up_sync(0xFFFFFFFFu, sum, step);
                    sum += (int)threadIdx.x >= step ? left : 0;
                }
                sum += before;
                if (g < p.groups) {
                    ends[g] = sum;
                }
                before = __shfl_sync(0xFFFFFFFFu, sum, 31);
            }
        }
    }
};

/* A position in the sequence of all units that only advances: the group of the unit, and its position within the
 * group. */
struct group_cursor {
    int group = 0, begin = 0;

    /* Advances to a unit. Returns false if there is no such unit and none after it. */
    __device__ __forceinline__ bool seek(const group_table &table, int groups, int unit)
    {
        while (group < groups && unit >= table.ends[group]) {
            begin = table.ends[group++];
        }
        return group < groups;
    }
};

/* Launch the kernel of this tile on `p`. TSR_E_UNSUPPORTED: there is no such kernel. */
tsr_status run_grouped_few(const grouped_problem &p, const tsr_gemm_config &config, int processors, tsr_stream stream,
                           tsr_err *err);
tsr_status run_grouped_wide(const grouped_problem &p, const tsr_gemm_config &config, int processors, tsr_stream stream,
                            tsr_err *err);

} // namespace block_fp8
