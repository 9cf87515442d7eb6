/* Compiles the decoding of microscaling scales for NEON. */
#define TSR_MX_SCALES(name) tsr_##name##_neon
#include "kernels/cpu/mx_scales_body.h"
