/* Compiles tsr_outer_products for NEON. */
#define TSR_OUTER_PRODUCTS_NAME  tsr_outer_products_neon
#define TSR_OUTER_PRODUCTS_BYTES 16
#include "kernels/cpu/outer_products_body.h"
