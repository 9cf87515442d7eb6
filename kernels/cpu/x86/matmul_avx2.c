/* Compiles tsr_matmul_tn for AVX2. */
#define TSR_MATMUL_NAME tsr_matmul_tn_avx2
#include "kernels/cpu/matmul_body.h"
