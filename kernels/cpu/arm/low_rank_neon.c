/* Compiles tsr_low_rank and tsr_update_sums for NEON. */
#define TSR_LOW_RANK_NAME    tsr_low_rank_neon
#define TSR_UPDATE_SUMS_NAME tsr_update_sums_neon
#define TSR_LOW_RANK_BYTES   16
#include "kernels/cpu/low_rank_body.h"
