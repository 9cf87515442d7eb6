/* Rounds scales to their stored dtype: codes are computed with the value that readers will find. */
#pragma once

#include "formats/checkpoint/dtype.h"
#include "kernels/cpu/cpu.h"

/* Returns the nearest value of the dtype (F32, BF16 or F16), ties to even. A positive scale never becomes zero, but the
 * smallest subnormal instead. It becomes infinite if it exceeds the dtype. */
float tsr_stored_scale(tsr_dtype dtype, float scale, const tsr_cpu_kernels *kernels);
