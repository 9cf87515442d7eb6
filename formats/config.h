/* config.json, edited by inserting and removing text: every byte that is not touched stays as it was. */
#ifndef TSR_FORMATS_CONFIG_H
#define TSR_FORMATS_CONFIG_H

#include "formats/status.h"
#include "formats/text.h"

#include <stddef.h>

/* Appends to `out` the JSON object `config` with the member `key` (of JSON text `value`) added as its last, in the
 * indentation of the members before it. The caller has seen that the object has no such member. */
tsr_status tsr_config_insert(tsr_text *out, const char *config, size_t size, const char *key, const char *value,
                             tsr_err *err) TSR_WARN_UNUSED;

#endif
