/* Compiles the block FP8 product for AVX-512. */
#define TSR_FORM(name) tsr_##name##_avx512
#include "kernels/cpu/fp8_gemm_body.h"
