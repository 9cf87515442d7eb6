/* Compiles the largest statistics of groups for NEON. */
#define TSR_GROUP_MAX(name) tsr_##name##_neon
#include "kernels/cpu/group_max_body.h"
