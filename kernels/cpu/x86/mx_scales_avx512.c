/* Compiles the scales of the microscaling formats for AVX-512. */
#define TSR_MX_SCALES(name) tsr_##name##_avx512
#include "kernels/cpu/mx_scales_body.h"
