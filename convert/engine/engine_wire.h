/* What ranks that carry out a plan say to each other: the numbers of a tsr_request, and the bytes of an answer (common/ranks.h). */
#ifndef TSR_CONVERT_ENGINE_ENGINE_WIRE_H
#define TSR_CONVERT_ENGINE_ENGINE_WIRE_H

#include "common/ranks.h"
#include "convert/engine/digests.h"

/* tsr_request.asked */
enum {
    TSR_ASKED_UNIT, /* `part` of step `index`; `number`: what its amax came to */
    TSR_ASKED_AMAX, /* `part` of amax `index` */
    TSR_ASKED_SETTLE, /* aside: file `index` is to be synced, unless it was only read, and closed. The answer has no bytes */
};

/* tsr_request.flags */
enum {
    TSR_ASKED_TO_VERIFY = 1, /* a unit's output is to be read back instead of made */
    TSR_ASKED_TO_GIVE = 2,   /* it is to make the outputs of another step as well: tsr_plan_give */
};

/* Of a held output, what the unit made: bytes [first, first + bytes). Others are not its own, or 0. */
typedef struct tsr_held_part {
    uint64_t first, bytes;
} tsr_held_part;

/* What a unit came to. Behind it come what is for the end of an appended file, figures of blocks, and the part of each held output. */
typedef struct tsr_unit_answer {
    uint64_t bytes_in, bytes_out;
    tsr_digest digests[TSR_MAX_OUTPUTS]; /* of what is one stretch of an output */
    uint64_t bytes_read;                 /* of source files, since the last answer of any thread of this rank */
    uint64_t appended; /* bytes for the end of an appended file or, when it is verified, of its pieces' digests */
    uint64_t blocks;   /* bytes of tsr_block_cells_pack */
    float amax;
    uint32_t unused;
    tsr_held_part held[2 * TSR_MAX_OUTPUTS]; /* those of the step, and those of the one that it gives */
    tsr_quant_stats stats;
} tsr_unit_answer;

#endif
