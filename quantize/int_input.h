/* Static per-tensor int8 parameters of a layer's input: input = (code - zero_point) * scale.
 *
 * From a range, as in compressed-tensors' calculate_qparams (quantization/utils/helpers.py): symmetric scale =
 * max(|least|, |largest|) / 127.5; asymmetric scale = (max(largest, 0) - min(least, 0)) / 255 and zero_point =
 * round(clamp(-128 - least / scale)). A range of zero has scale 1. Layers that loaders fuse have one input, so they get
 * one pair. Symmetric: the largest scale. Asymmetric: the union of their representable ranges, scale * (-128 -
 * zero_point) to scale * (127 - zero_point). vLLM computes that union again when it loads
 * (kernels/linear/scaled_mm/cutlass.py) and truncates the zero point to an integer, so rounding may make it one less.
 * In that case the scale is increased by a few ulps, so that vLLM's arithmetic gives exactly the values with which
 * azp_with_adj was computed. */
#pragma once

#include "formats/weights/calibration.h"

typedef struct tsr_int_input {
    float scale;
    int32_t zero_point; /* 0 when symmetric */
} tsr_int_input;

/* Returns the pair for `n` (at least 1) layers that run as one. */
tsr_int_input tsr_int_input_of(const tsr_calibrated *const *layers, size_t n, bool asymmetric);
