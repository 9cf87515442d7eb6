/* Declares kernels that decode microscaling scales to FP32.
 *
 * The functions allocate nothing, cannot fail and are thread-safe; every variant gives the same bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* t[i] = 2^(scales[i] - 127); 255 gives NaN. */
typedef void tsr_values_e8m0_fn(const uint8_t *scales, size_t n, float *t);

/* t[i] = value(scales[i]) / global if `divides`, otherwise * global, in FP32. The scales are e4m3. NaN stays NaN. */
typedef void tsr_values_e4m3_fn(const uint8_t *scales, size_t n, float global, bool divides, float *t);

/* Returns the largest of n bytes; 0 for none. */
typedef uint8_t tsr_largest_byte_fn(const uint8_t *bytes, size_t n);
