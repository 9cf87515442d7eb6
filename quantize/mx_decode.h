/* Decodes MXFP4, MXFP8 and NVFP4: y = value(code) * t, one FP32 product, rounded once to the target.
 *
 * quantize/scales/mx_format.h defines t. Equal to compressed-tensors (compressors/nvfp4, mxfp4), ModelOpt (qtensor/)
 * and transformers (integrations/mxfp4.py). Code 8 gives -0. */
#pragma once

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "quantize/scales/mx_format.h"

#include <stddef.h>
#include <stdint.h>

/* Whole rows of a weight, as read from the file. */
typedef struct tsr_mx_span {
    const tsr_tensor *codes_of, *scales_of; /* the stored tensors, for names and file offsets in messages */
    uint64_t row, rows; /* numbered through all matrices of a stack; row is only for messages and offsets */
    uint64_t cols;      /* columns of values, a multiple of `group` */
    uint64_t group;     /* columns that share a scale: any even number */
    tsr_mx_element element;
    tsr_mx_scale scale;
    float global;          /* global scale of E4M3 scales */
    const uint8_t *codes;  /* [rows, tsr_mx_code_bytes(cols)] */
    const uint8_t *scales; /* [rows, cols / group] */
} tsr_mx_span;

/* Returns the bytes of scratch for decoding rows of `cols` columns with any group. */
size_t tsr_mx_decode_scratch(uint64_t cols);

/* Decodes to `dtype` (BF16, F16 or F32), without gaps. Thread-safe.
 * TSR_E_VALUE, with its position and file offset: a scale is NaN or negative, the global scale is not finite and
 * positive, a code is NaN, or a value exceeds the target's range. TSR_E_SHAPE: rows are not whole groups. */
tsr_status tsr_mx_decode(const tsr_cpu_kernels *kernels, const tsr_mx_span *span, tsr_dtype dtype, void *out,
                         void *scratch, tsr_err *err);
