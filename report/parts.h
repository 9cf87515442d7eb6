/* The results of several kinds of checks in one file, as `verify all` leaves them: each is read as if it stood alone. */
#ifndef TSR_REPORT_PARTS_H
#define TSR_REPORT_PARTS_H

#include "report/model.h"

enum { TSR_MAX_PARTS = 8 };

/* Whether a text is such a file; one that an error ended is a single result, and none. */
bool tsr_has_parts(const char *text, size_t size);

/* Reads them into results[0 .. *n), of which there is room for TSR_MAX_PARTS. A kind that does not apply is one whose
 * outcome is TSR_OUTCOME_SKIPPED, with the reason in its only row. After a failure there is nothing to free. */
tsr_status tsr_parts_read(tsr_result *results, size_t *n, const char *path, const char *text, size_t size,
                          tsr_err *err) TSR_WARN_UNUSED;

#endif
