/* Finds the scales of MXFP4, MXFP8 and NVFP4 groups with the smallest squared error. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "quantize/scales/mx_format.h"

/* Replaces scales[i], the scale from amax, by the best scale of group i of a row: the one with the smallest squared
 * error of all that the format can store (kernels/cpu/best_scale.h). `global` is unused for E8M0. A scale whose t is 0,
 * or whose largest code could decode to infinity in BF16, is not considered. The `cols` elements are finite.
 * importance[cols]: weights of the squared errors; NULL: all are 1. */
void tsr_mx_best_scales(tsr_mx_element element, tsr_mx_scale kind, const tsr_cpu_kernels *kernels, float global,
                        const float *x, const float *importance, uint64_t cols, uint8_t *scales);
