/* Reads the results of several kinds of checks in one file of `verify all`.
 *
 * Each is read like a separate file. */
#pragma once

#include "report/model/result.h"

enum { TSR_MAX_PARTS = 8 };

/* Returns true if a text has several results. A file that ended with an error is a single result. */
bool tsr_has_parts(const char *text, size_t size);

/* Reads them into results[0 .. *n), which has room for TSR_MAX_PARTS. A kind that does not apply has the outcome
 * TSR_OUTCOME_SKIPPED, and the reason in its only row. After a failure there is nothing to free. */
tsr_status tsr_parts_read(tsr_result *results, size_t *n, const char *path, const char *text, size_t size,
                          tsr_err *err);
