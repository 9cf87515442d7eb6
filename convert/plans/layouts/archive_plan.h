/* Plans that pack a checkpoint into archives (formats/checkpoint/archive.h), shard by shard, and that restore the plain
 * files.
 *
 * Both keep every byte: the tensors', the headers', the index's, the configuration's, and the other files'. */
#ifndef TSR_CONVERT_PLANS_LAYOUTS_ARCHIVE_PLAN_H
#define TSR_CONVERT_PLANS_LAYOUTS_ARCHIVE_PLAN_H

#include "convert/plan/plan.h"

typedef struct tsr_archive_options {
    int level;    /* of zstd: 1 to 19 */
    bool shuffle; /* BF16, F16 and F32 in byte planes: smaller, but `zstd -d` does not restore them */
} tsr_archive_options;

/* Each shard NAME.safetensors (or an archive of it) to NAME.safetensors.zst. Frames of at most TSR_UNIT_BYTES: several
 * threads read one tensor at a time, and none unpacks much that it does not need. The first of `source` is packed. */
tsr_status tsr_archive_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_archive_options *options,
                            tsr_err *err) TSR_WARN_UNUSED;

/* Each archive back to the plain file that it was made from. TSR_E_UNSUPPORTED: there is no archive. */
tsr_status tsr_unarchive_plan(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_err *err) TSR_WARN_UNUSED;

#endif
