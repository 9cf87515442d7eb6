/* Compiles tsr_matmul_tn for AVX-512. */
#define TSR_MATMUL_NAME tsr_matmul_tn_avx512
#include "kernels/cpu/matmul_body.h"
