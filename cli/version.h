/* What this tessera is: for people a line, for bug reports and bills of materials JSON. */
#ifndef TSR_CLI_VERSION_H
#define TSR_CLI_VERSION_H

#include "common/status.h"

/* Writes what it was made of, and what it found on this machine, as JSON to `path` ('-': stdout). */
tsr_status tsr_version_json(const char *path, tsr_err *err) TSR_WARN_UNUSED;

#endif
