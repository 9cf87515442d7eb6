/* Defines integer decoding. */
#define TSR_INT(name) tsr_##name##_ref
#include "kernels/cpu/int_decode_body.h"
