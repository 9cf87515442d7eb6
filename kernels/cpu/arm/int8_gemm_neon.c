/* Compiles the int8 product for NEON. */
#define TSR_INT8_GEMM tsr_int8_gemm_neon
#include "kernels/cpu/int8_gemm_body.h"
