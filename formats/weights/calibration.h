/* Calibration data of the inputs of linear layers: a static int8 scale with or without a zero point, or the smallest
 * and the largest observed value. Two file formats are supported.
 *
 * JSON:
 *     {"model.layers.0.mlp.up_proj": {"input_scale": 0.02, "input_zero_point": -3}, "other": {"min": -1, "max": 2}}
 * safetensors, with tensors of one element and any numeric dtype:
 *     MODULE.input_scale and MODULE.input_zero_point, or MODULE.input_min and MODULE.input_max
 *
 * input = (code - zero_point) * scale, with codes from -128 to 127 (vLLM's convention, Epilogues.md). */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_calibrated {
    const char *module; /* "model.layers.0.mlp.up_proj" */
    bool scaled;        /* `scale` is set; otherwise `least` and `largest` are */
    bool has_zero_point;
    float scale;          /* finite, positive */
    int32_t zero_point;   /* -128 to 127; 0 if none is given */
    float least, largest; /* finite, least <= largest */
} tsr_calibrated;

/* Zero-initialised is empty. */
typedef struct tsr_calibration {
    const char *path;
    tsr_calibrated *items; /* ordered by module */
    size_t count;
    uint64_t hash; /* hash of the table: equal tables have equal hashes */
    tsr_arena arena;
} tsr_calibration;

/* Reads a file of either kind: JSON if the name ends in .json, otherwise safetensors. On failure *calibration is empty.
 * TSR_E_FORMAT: a value is not a number, half a pair is missing, or a scale is not finite and positive. */
tsr_status tsr_calibration_read(tsr_calibration *calibration, const char *path, tsr_err *err);

void tsr_calibration_free(tsr_calibration *calibration);

/* Returns the entry of module X for the weight "X.weight", or NULL. */
const tsr_calibrated *tsr_calibration_find(const tsr_calibration *calibration, const char *weight);
