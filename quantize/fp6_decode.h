/* Decodes MXFP6: y = value(code) * 2^(scale - 127), rounded once to the target.
 *
 * Four codes are in three bytes, a little-endian word of 24 bits with the first code in the lowest six bits:
 * compressed-tensors (compressors/mxfp6/helpers.py) and Quark (torch/utils/pack.py, Pack_fp6) store the same bytes. The
 * highest bit of a code is its sign. e2m3 has an exponent bias of 1 and reaches 7.5; e3m2 has a bias of 3 and reaches
 * 28. Both have subnormal numbers and zeros of either sign, but neither Inf nor NaN (OCP Microscaling Formats 1.0,
 * section 5.3.2). */
#pragma once

#include "quantize/mx_decode.h"

#include <stdbool.h>

/* Returns the bytes of scratch for decoding rows of `cols` columns. */
size_t tsr_fp6_decode_scratch(uint64_t cols);

/* Decodes whole rows of MXFP6 to `dtype` (BF16, F16 or F32), without gaps. The span has codes [rows, cols / 4 * 3] and
 * E8M0 scales; its `element` is not used. `e3m2`: or e2m3. Thread-safe. Errors are those of tsr_mx_decode. */
tsr_status tsr_fp6_decode(const tsr_cpu_kernels *kernels, const tsr_mx_span *span, bool e3m2, tsr_dtype dtype,
                          void *out, void *scratch, tsr_err *err);
