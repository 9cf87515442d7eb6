/* Defines tsr_matmul_tn. */
#define TSR_MATMUL_NAME tsr_matmul_tn_ref
#include "kernels/cpu/matmul_body.h"
