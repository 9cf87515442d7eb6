/* The order in which sums of 32 lanes are added up, which is part of a kernel's definition: lanes l and l + 16 first, in
 * double, and then halves of halves. */
#ifndef TSR_KERNELS_CPU_TREE_SUM_H
#define TSR_KERNELS_CPU_TREE_SUM_H

static inline double tsr_tree_sum(const float x[32])
{
    double sums[16];
    for (unsigned l = 0; l < 16; l++)
        sums[l] = (double)x[l] + (double)x[l + 16];
    for (unsigned width = 8; width > 0; width /= 2) {
        for (unsigned l = 0; l < width; l++)
            sums[l] += sums[l + width];
    }
    return sums[0];
}

#endif
