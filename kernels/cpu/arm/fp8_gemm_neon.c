/* Compiles the block FP8 product for NEON. */
#define TSR_FORM(name) tsr_##name##_neon
#include "kernels/cpu/fp8_gemm_body.h"
