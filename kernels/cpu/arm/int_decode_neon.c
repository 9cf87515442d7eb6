/* Compiles integer decoding for NEON. */
#define TSR_INT(name) tsr_##name##_neon
#include "kernels/cpu/int_decode_body.h"
