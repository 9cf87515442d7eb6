/* Owns the definition of the largest figures of groups. */
#define TSR_GROUP_TOPS(name) tsr_##name##_ref
#include "kernels/cpu/group_tops_body.h"
