/* Compiles the scales of the microscaling formats for AVX2. */
#define TSR_MX_SCALES(name) tsr_##name##_avx2
#include "kernels/cpu/mx_scales_body.h"
