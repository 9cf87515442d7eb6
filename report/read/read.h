/* Reads a result of any Tessera command.
 *
 * The file is untrusted: each member is checked, and sizes are limited. */
#pragma once

#include "report/model/result.h"

/* 2 GiB. A result of verify for 100,000 tensors has a tenth of that. */
#define TSR_MAX_RESULT_BYTES ((uint64_t)2 << 30)

/* Returns the kind of results with this schema; NULL: none. */
const tsr_result_kind *tsr_result_kind_of(const char *schema);

/* Reads a result. TSR_E_FORMAT: not JSON, or truncated; the message gives the byte. TSR_E_UNSUPPORTED: not a result,
 * or one of a later version. After a failure there is nothing to free. `path` is borrowed. */
tsr_status tsr_result_read(tsr_result *result, const char *path, tsr_err *err);

/* Like tsr_result_read, for a text in memory. */
tsr_status tsr_result_read_text(tsr_result *result, const char *path, const char *text, size_t size, tsr_err *err);
