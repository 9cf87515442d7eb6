/* The largest figures of groups, compiled for avx512. */
#define TSR_GROUP_MAX(name) tsr_##name##_avx512
#include "kernels/cpu/group_max_body.h"
