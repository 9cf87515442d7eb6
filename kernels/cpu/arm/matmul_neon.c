/* tsr_matmul_tn, compiled for NEON. */
#define TSR_MATMUL_NAME tsr_matmul_tn_neon
#include "kernels/cpu/matmul_body.h"
