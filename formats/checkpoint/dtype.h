/* The element types of safetensors (safetensors/src/tensor.rs), as a table. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Ordered by increasing alignment, as in safetensors: writers put the widest first. */
typedef enum tsr_dtype {
    TSR_BOOL,
    TSR_F4,
    TSR_F6_E2M3,
    TSR_F6_E3M2,
    TSR_U8,
    TSR_I8,
    TSR_F8_E5M2,
    TSR_F8_E4M3,
    TSR_F8_E8M0,
    TSR_F8_E4M3FNUZ,
    TSR_F8_E5M2FNUZ,
    TSR_I16,
    TSR_U16,
    TSR_F16,
    TSR_BF16,
    TSR_I32,
    TSR_U32,
    TSR_F32,
    TSR_C64,
    TSR_F64,
    TSR_I64,
    TSR_U64,
    TSR_DTYPE_COUNT
} tsr_dtype;

/* Returns the name: "BF16", "F8_E4M3", ... Static storage. */
const char *tsr_dtype_name(tsr_dtype dtype);

/* Returns the bits of one element; 4 and 6 for the sub-byte types. */
unsigned tsr_dtype_bits(tsr_dtype dtype);

/* Returns the bytes of one element. Only for types of whole bytes. */
size_t tsr_dtype_bytes(tsr_dtype dtype);

/* Returns true for BF16, F16 and F32: the dtypes of unquantized weights, which Tessera can quantize. */
bool tsr_dtype_is_weight_float(tsr_dtype dtype);

/* Parses a dtype name of `size` bytes. Returns false if safetensors has no such dtype. */
bool tsr_dtype_from_name(const char *name, size_t size, tsr_dtype *dtype);
