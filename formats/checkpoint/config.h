/* Queries a checkpoint's config.json. A checkpoint without one (a single file) has no values.
 *
 * Answers come from the index that was built when the checkpoint was opened; the text is not parsed again. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

/* Finds the value at a dotted path ("quantization_config.quant_method"). A string includes its quotes. */
bool tsr_config_find(const tsr_checkpoint *checkpoint, const char *path, tsr_json_text *value);

/* Finds the value at a path that starts at an object of config.json. */
bool tsr_config_find_in(const tsr_checkpoint *checkpoint, tsr_json_text object, const char *path, tsr_json_text *value);

/* Finds the value at a dotted path or, if it is absent, that in the text_config of a multimodal model. */
bool tsr_config_find_model(const tsr_checkpoint *checkpoint, const char *path, tsr_json_text *value);

/* Returns the string at a dotted path, decoded into the arena; NULL: it is absent or not a string. */
const char *tsr_config_find_string(const tsr_checkpoint *checkpoint, const char *path, tsr_arena *arena);

/* The next four functions record a value that is there and has another type, such as "256" in quotes. */

/* Returns the string that tsr_config_find_model finds, decoded into the arena; NULL: it is absent or not a string. */
const char *tsr_config_model_string(const tsr_checkpoint *checkpoint, const char *path, tsr_arena *arena);

/* Finds the non-negative integer `key` as tsr_config_find_model does. Returns false if it is absent or not such an
 * integer. */
bool tsr_config_find_u64(const tsr_checkpoint *checkpoint, const char *key, uint64_t *value);

/* Returns the number that tsr_config_find_model finds, or `otherwise`. */
double tsr_config_model_number(const tsr_checkpoint *checkpoint, const char *path, double otherwise);

/* Returns true if tsr_config_find_model finds this literal: true, false or null. */
bool tsr_config_model_is(const tsr_checkpoint *checkpoint, const char *path, const char *literal);

/* Rejects a config.json in which one of the functions above has found a value of another type (TSR_E_FORMAT): it was
 * treated as absent. */
tsr_status tsr_config_check_types(const tsr_checkpoint *checkpoint, tsr_err *err);

/* Rejects a config.json that states rope_theta more than once with different values (TSR_E_FORMAT): at the top level, in
 * rope_parameters or in rope_scaling. Versions of transformers do not agree which one counts. */
tsr_status tsr_config_check_rope(const tsr_checkpoint *checkpoint, tsr_err *err);
