/* What storing a scale in its dtype makes of it: codes are made with what readers will find. */
#ifndef TSR_QUANTIZE_STORED_SCALE_H
#define TSR_QUANTIZE_STORED_SCALE_H

#include "formats/checkpoint/dtype.h"
#include "kernels/cpu/cpu.h"

/* The nearest value of the dtype, F32, BF16 or F16, ties to even; of a positive scale never zero, but the smallest
 * subnormal. Infinite where the scale is beyond the dtype. */
float tsr_stored_scale(tsr_dtype dtype, float scale, const tsr_cpu_kernels *kernels);

#endif
