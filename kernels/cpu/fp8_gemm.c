/* Defines the block FP8 product. */
#define TSR_FORM(name) tsr_##name##_ref
#include "kernels/cpu/fp8_gemm_body.h"
