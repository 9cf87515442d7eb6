/* Integer decoding, compiled for avx512. */
#define TSR_INT(name) tsr_##name##_avx512
#include "kernels/cpu/int_decode_body.h"
