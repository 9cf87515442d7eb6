/* The largest figures of groups, compiled for NEON. */
#define TSR_GROUP_TOPS(name) tsr_##name##_neon
#include "kernels/cpu/group_tops_body.h"
