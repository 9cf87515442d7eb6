/* Compiles the int8 product for AVX-512. */
#define TSR_INT8_GEMM tsr_int8_gemm_avx512
#include "kernels/cpu/int8_gemm_body.h"
