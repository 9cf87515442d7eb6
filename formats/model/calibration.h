/* What is known of the inputs of linear layers, from a file of calibration: for each module a static int8 scale, with
 * or without a zero point, or the least and the largest value that was seen.
 *
 * JSON:         {"model.layers.0.mlp.up_proj": {"input_scale": 0.02, "input_zero_point": -3}, "other": {"min": -1,
 * "max": 2}} safetensors:  MODULE.input_scale and MODULE.input_zero_point, or MODULE.input_min and MODULE.input_max, of
 * one element each; any dtype that numbers come in. input = (code - zero_point) * scale, codes -128 to 127 (vLLM's
 * convention, Epilogues.md). */
#ifndef TSR_FORMATS_MODEL_CALIBRATION_H
#define TSR_FORMATS_MODEL_CALIBRATION_H

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_calibrated {
    const char *module; /* "model.layers.0.mlp.up_proj" */
    bool scaled;        /* scale is given; else least and largest are */
    bool has_zero_point;
    float scale;          /* finite, positive */
    int32_t zero_point;   /* -128 to 127; 0 when none is given */
    float least, largest; /* finite, least <= largest */
} tsr_calibrated;

/* Zero-initialised is empty. */
typedef struct tsr_calibration {
    const char *path;
    tsr_calibrated *items; /* ordered by module */
    size_t count;
    uint64_t hash; /* of what was read: equal tables have equal ones */
    tsr_arena arena;
} tsr_calibration;

/* Reads either kind of file; which, its name tells (.json, or anything else). On failure *calibration is empty.
 * TSR_E_FORMAT: no numbers where they belong, half a pair, a scale that is none. */
tsr_status tsr_calibration_read(tsr_calibration *calibration, const char *path, tsr_err *err) TSR_WARN_UNUSED;

void tsr_calibration_free(tsr_calibration *calibration);

/* The entry of the module of this weight ("X.weight" finds X), or NULL. */
const tsr_calibrated *tsr_calibration_find(const tsr_calibration *calibration, const char *weight);

#endif
