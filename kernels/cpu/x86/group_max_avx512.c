/* Compiles the largest statistics of groups for AVX-512. */
#define TSR_GROUP_MAX(name) tsr_##name##_avx512
#include "kernels/cpu/group_max_body.h"
