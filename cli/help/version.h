/* Describes this build of tessera as JSON, for bug reports and bills of materials. */
#ifndef TSR_CLI_HELP_VERSION_H
#define TSR_CLI_HELP_VERSION_H

#include "common/status.h"

/* Writes the build, its libraries and the features of this machine to `path` ('-': stdout). */
tsr_status tsr_version_json(const char *path, tsr_err *err) TSR_WARN_UNUSED;

#endif
