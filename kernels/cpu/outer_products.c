/* Defines tsr_outer_products. */
#define TSR_OUTER_PRODUCTS_NAME  tsr_outer_products_ref
#define TSR_OUTER_PRODUCTS_BYTES 16
#include "kernels/cpu/outer_products_body.h"
