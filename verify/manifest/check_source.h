/* A source, held to what a manifest says was read of it. */
#ifndef TSR_VERIFY_MANIFEST_CHECK_SOURCE_H
#define TSR_VERIFY_MANIFEST_CHECK_SOURCE_H

#include "formats/checkpoint/checkpoint.h"
#include "verify/manifest/check_manifest.h"
#include "verify/manifest/manifest_sources.h"

/* Reads of `source`, the first one of the job, what was read then. check->files and ->pieces count what was judged, ->passed_over what
 * is of other sources. TSR_E_IO: a file cannot be read. Free the check whatever the outcome. */
tsr_status tsr_source_check_run(tsr_manifest_check *check, const tsr_manifest_sources *reads,
                                const tsr_checkpoint *source, const tsr_run_options *options,
                                tsr_err *err) TSR_WARN_UNUSED;

#endif
