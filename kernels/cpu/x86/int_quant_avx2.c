/* The int kernels, compiled for avx2. */
#define TSR_INT(name) tsr_##name##_avx2
#include "kernels/cpu/int_quant_body.h"
