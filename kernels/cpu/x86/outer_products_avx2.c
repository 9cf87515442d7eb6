/* Compiles tsr_outer_products for AVX2. */
#define TSR_OUTER_PRODUCTS_NAME  tsr_outer_products_avx2
#define TSR_OUTER_PRODUCTS_BYTES 32
#include "kernels/cpu/outer_products_body.h"
