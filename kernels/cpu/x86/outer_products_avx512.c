/* Compiles tsr_outer_products for AVX-512. */
#define TSR_OUTER_PRODUCTS_NAME  tsr_outer_products_avx512
#define TSR_OUTER_PRODUCTS_BYTES 64
#include "kernels/cpu/outer_products_body.h"
