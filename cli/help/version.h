/* Describes this build of tessera as JSON, for bug reports and bills of materials. */
#pragma once

#include "common/status.h"

/* Writes the build, its libraries and the features of this machine to `path` ('-': stdout). */
tsr_status tsr_version_json(const char *path, tsr_err *err) TSR_WARN_UNUSED;
