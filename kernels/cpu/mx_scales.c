/* Defines the decoding of microscaling scales. */
#define TSR_MX_SCALES(name) tsr_##name##_ref
#include "kernels/cpu/mx_scales_body.h"
