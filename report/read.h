/* Reads a result of Tessera, of whichever command made it. The file is a stranger's: each member is checked, sizes are capped. */
#ifndef TSR_REPORT_READ_H
#define TSR_REPORT_READ_H

#include "report/model.h"

/* 2 GiB: verify on a model of 100,000 tensors writes a tenth of that. */
#define TSR_MAX_RESULT_BYTES ((uint64_t)2 << 30)

/* TSR_E_FORMAT: not JSON, or not whole, with the byte; TSR_E_UNSUPPORTED: not a result, or one of a later version.
 * After a failure there is nothing to free. `path` is borrowed. */
tsr_status tsr_result_read(tsr_result *result, const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* The same of a text. */
tsr_status tsr_result_read_text(tsr_result *result, const char *path, const char *text, size_t size,
                                tsr_err *err) TSR_WARN_UNUSED;

#endif
