/* Edits config.json by inserting and removing text. All other bytes stay unchanged. */
#pragma once

#include "common/status.h"
#include "common/text.h"

#include <stddef.h>

/* Appends to `out` the JSON object `config` with the member `key` set to `value` (JSON text). The value of an existing
 * member is replaced; a new member is added as the last one, indented like the first. */
tsr_status tsr_json_edit_set(tsr_text *out, const char *config, size_t size, const char *key, const char *value,
                             tsr_err *err);

/* Appends `config` without the member `key`, or unchanged if it has no such member. */
tsr_status tsr_json_edit_remove(tsr_text *out, const char *config, size_t size, const char *key, tsr_err *err);
