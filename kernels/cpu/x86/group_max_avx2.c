/* The kernel of group_max.h, which keeps the maximum of each group over many rows, for AVX2. */
#define TSR_GROUP_MAX(name) tsr_##name##_avx2
#include "kernels/cpu/group_max_body.h"
