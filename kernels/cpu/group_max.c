/* Defines the largest statistics of groups. */
#define TSR_GROUP_MAX(name) tsr_##name##_ref
#include "kernels/cpu/group_max_body.h"
