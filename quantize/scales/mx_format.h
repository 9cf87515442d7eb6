/* Microscaling formats: elements, and scales of groups of columns.
 *
 *   MXFP4   E2M1 elements in groups of 32, E8M0 scales          t = 2^(scale - 127)
 *   MXFP8   E4M3 elements in groups of 32, E8M0 scales          t = 2^(scale - 127)
 *   NVFP4   E2M1 elements in groups of 16, E4M3 scales s        t = s / global (compressed-tensors) or s * global
 *   (ModelOpt)
 *
 * A reader computes value(code) * t in FP32. MXFP4 and MXFP8 are defined by the OCP Microscaling Formats 1.0. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_mx_element {
    TSR_MX_E2M1, /* two codes per byte, the even column in the low nibble */
    TSR_MX_E4M3, /* a byte each */
} tsr_mx_element;

typedef enum tsr_mx_scale {
    TSR_MX_E8M0,         /* powers of two */
    TSR_MX_E4M3_DIVIDED, /* e4m3, divided by a global scale */
    TSR_MX_E4M3_TIMES,   /* e4m3, multiplied by a global scale */
} tsr_mx_scale;

/* Returns the largest magnitude of an element: 6 or 448. */
float tsr_mx_largest(tsr_mx_element element);

/* Returns the bytes of `cols` codes (an even number). */
uint64_t tsr_mx_code_bytes(tsr_mx_element element, uint64_t cols);

/* Returns true if a group may have this scale byte: E8M0 below 255, or an e4m3 that is positive and finite. */
bool tsr_mx_is_scale(tsr_mx_scale kind, int scale);

/* Returns true if some code could decode to infinity in BF16 under t. */
bool tsr_mx_may_reach_infinity(tsr_mx_element element, float t);

/* Computes t[i] of each of n scales; NaN for a NaN scale. `global` is unused for E8M0. */
void tsr_mx_scale_values(tsr_mx_scale kind, float global, const uint8_t *scales, size_t n, float *t);
