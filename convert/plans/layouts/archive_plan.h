/* Plans that pack a checkpoint into archives (formats/checkpoint/archive.h), shard by shard, and that restore the plain
 * files.
 *
 * Both preserve every byte of tensors, headers, index, configuration and other files. */
#pragma once

#include "convert/plan/plan.h"

typedef struct tsr_archive_options {
    int level;    /* compression level of zstd: 1 to 19 */
    bool shuffle; /* store BF16, F16 and F32 in byte planes: smaller, but `zstd -d` does not restore them */
} tsr_archive_options;

/* Packs each shard NAME.safetensors (or an archive of it) to NAME.safetensors.zst. Frames have at most TSR_UNIT_BYTES,
 * so that several threads can read one tensor and a partial read unpacks little more than it needs. Uses the first of
 * `source`. */
tsr_status tsr_archive_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_archive_options *options,
                            tsr_err *err);

/* Restores the plain file of each archive. TSR_E_UNSUPPORTED: there is no archive. */
tsr_status tsr_unarchive_plan(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_err *err);
