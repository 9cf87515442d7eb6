/* Defines the int8 product. */
#define TSR_INT8_GEMM tsr_int8_gemm_ref
#include "kernels/cpu/int8_gemm_body.h"
