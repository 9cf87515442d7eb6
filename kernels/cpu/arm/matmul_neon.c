/* Compiles tsr_matmul_tn for NEON. */
#define TSR_MATMUL_NAME tsr_matmul_tn_neon
#include "kernels/cpu/matmul_body.h"
