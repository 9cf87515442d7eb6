/* Implements int4_columns as TSR_INT4(name), for each form to include and the compiler to vectorize. */
#include "kernels/cpu/variants.h"

bool TSR_INT4(fold_zeros)(const float *scale, const float *zero, size_t n, float *offset)
{
    unsigned others = 0;
    for (size_t i = 0; i < n; i++) {
        others |= !(scale[i] > 0);
        offset[i] = -(TSR_INT4_RAISE + zero[i]) * scale[i];
    }
    return others == 0;
}
