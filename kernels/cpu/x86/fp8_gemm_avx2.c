/* Compiles the block FP8 product for AVX2. */
#define TSR_FORM(name) tsr_##name##_avx2
#include "kernels/cpu/fp8_gemm_body.h"
