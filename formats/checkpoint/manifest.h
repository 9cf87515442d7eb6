/* What Tessera wrote beside an output that is no whole checkpoint under its usual names: which rank of how many it is
 * (tessera-tp.json), or whose kernels its weights are laid out for (tessera-layout.json). */
#ifndef TSR_FORMATS_CHECKPOINT_MANIFEST_H
#define TSR_FORMATS_CHECKPOINT_MANIFEST_H

#include "formats/checkpoint/checkpoint.h"

#include <stdint.h>

#define TSR_RANK_NAME "tessera-tp.json"

typedef struct tsr_manifest {
    uint64_t rank, ranks; /* of a tensor-parallel cut; ranks is 0 when it is none */
    const char *target;   /* "fastertransformer", "trtllm"; NULL: weights lie as ever */
    const char *producer; /* whose layout: "ft", "trtllm-main", ... */
    const char *scale_dtype;
    uint64_t arch, bits, group, weights; /* 80 for sm80; of a code; input features to a scale, 0: all; how many */
} tsr_manifest;

/* Reads either, into `arena`. Both are what people may have edited: TSR_E_FORMAT when they are no JSON or lack a
 * member. */
tsr_status tsr_manifest_read(tsr_manifest *manifest, const tsr_checkpoint *checkpoint, tsr_arena *arena,
                             tsr_err *err) TSR_WARN_UNUSED;

#endif
