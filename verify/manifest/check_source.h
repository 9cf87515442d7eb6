/* Verifies a source against the digests of read data in a manifest. */
#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "verify/manifest/check_manifest.h"
#include "verify/manifest/manifest_sources.h"

/* Reads again from `source`, the first one of the job, the data that the job has read. check->files and ->pieces count
 * what was verified, ->passed_over the digests of other sources. TSR_E_IO: a file cannot be read. The check must be
 * freed even after a failure. */
tsr_status tsr_source_check_run(tsr_manifest_check *check, const tsr_manifest_sources *reads,
                                const tsr_checkpoint *source, const tsr_run_options *options, tsr_err *err);
