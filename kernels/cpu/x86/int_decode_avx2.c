/* Compiles integer decoding for AVX2. */
#define TSR_INT(name) tsr_##name##_avx2
#include "kernels/cpu/int_decode_body.h"
