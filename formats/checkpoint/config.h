/* Asking a checkpoint's config.json. A checkpoint without one (a single file) answers that nothing is there.
 *
 * Answers come from the index that was made when the checkpoint was opened: none reads the text again. */
#ifndef TSR_FORMATS_CHECKPOINT_CONFIG_H
#define TSR_FORMATS_CHECKPOINT_CONFIG_H

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>
#include <stdint.h>

/* The value at a dotted path ("quantization_config.quant_method"), with a string's quotes. */
bool tsr_config_find(const tsr_checkpoint *checkpoint, const char *path, tsr_json_text *value);

/* Finds the value at a path that starts at an object of config.json. */
bool tsr_config_find_in(const tsr_checkpoint *checkpoint, tsr_json_text object, const char *path, tsr_json_text *value);

/* The value of `key`, or else that in the text_config of a multimodal model. */
bool tsr_config_find_model(const tsr_checkpoint *checkpoint, const char *key, tsr_json_text *value);

/* The string at a dotted path, decoded into the arena; NULL when it is absent or anything else. */
const char *tsr_config_find_string(const tsr_checkpoint *checkpoint, const char *path, tsr_arena *arena);

/* The non-negative integer `key`, found as by tsr_config_find_model. False when it is absent or anything else. */
bool tsr_config_find_u64(const tsr_checkpoint *checkpoint, const char *key, uint64_t *value);

/* The number at a dotted path, or `otherwise`. */
double tsr_config_find_number(const tsr_checkpoint *checkpoint, const char *path, double otherwise);

#endif
