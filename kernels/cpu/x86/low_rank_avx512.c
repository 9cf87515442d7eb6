/* Compiles tsr_low_rank and tsr_update_sums for AVX-512. */
#define TSR_LOW_RANK_NAME    tsr_low_rank_avx512
#define TSR_UPDATE_SUMS_NAME tsr_update_sums_avx512
#define TSR_LOW_RANK_BYTES   64
#include "kernels/cpu/low_rank_body.h"
