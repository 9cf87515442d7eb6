/* tsr_matmul_tn, the definition. */
#define TSR_MATMUL_NAME tsr_matmul_tn_ref
#include "kernels/cpu/matmul_body.h"
