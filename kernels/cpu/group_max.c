/* The scalar definition of the kernel of group_max.h, which keeps the maximum of each group over many rows. */
#define TSR_GROUP_MAX(name) tsr_##name##_ref
#include "kernels/cpu/group_max_body.h"
