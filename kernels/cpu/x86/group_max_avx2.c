/* Compiles the largest statistics of groups for AVX2. */
#define TSR_GROUP_MAX(name) tsr_##name##_avx2
#include "kernels/cpu/group_max_body.h"
