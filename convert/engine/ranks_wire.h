/* What ranks say to each other: a request, an answer, and behind the answer as many bytes as it says. All ranks run the same
 * version on machines of one kind, which tsr_ranks_agree has made sure of by the plan. */
#ifndef TSR_CONVERT_ENGINE_RANKS_WIRE_H
#define TSR_CONVERT_ENGINE_RANKS_WIRE_H

#include "convert/engine/ranks.h"

typedef enum tsr_asked {
    TSR_ASKED_UNIT,   /* of a step: to be made or, when verifying, to be read back */
    TSR_ASKED_AMAX,   /* a unit of an amax */
    TSR_ASKED_SETTLE, /* on channel 0: a file is to be synced, unless it was only read, and closed */
    TSR_ASKED_STOP,
} tsr_asked;

typedef struct tsr_request {
    uint32_t asked; /* tsr_asked */
    uint32_t verifying;
    uint64_t index, unit; /* of a step or an amax; index: of a file, where it is to be settled */
    float amax;
    uint32_t unused;
} tsr_request;

/* Of a held output, what the unit made: bytes [first, first + bytes). Others are not its own, or 0. */
typedef struct tsr_held_part {
    uint64_t first, bytes;
} tsr_held_part;

typedef struct tsr_answer {
    int32_t status; /* tsr_status */
    float amax;
    uint64_t bytes_in, bytes_out, digest;
    uint64_t appended; /* bytes for the end of an appended file */
    uint64_t blocks;   /* bytes of tsr_block_cells_pack */
    tsr_held_part held[TSR_MAX_OUTPUTS];
    tsr_quant_stats stats;
    tsr_err err;
} tsr_answer;

/* Bytes that follow an answer: appended ones, those of blocks, those of each held output. */
static inline uint64_t tsr_answer_bytes(const tsr_answer *a)
{
    uint64_t bytes = a->appended + a->blocks;
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++)
        bytes += a->held[i].bytes;
    return bytes;
}

/* How a rank fared while it planned. */
typedef struct tsr_standing {
    int32_t status;
    uint32_t threads;
    uint64_t fingerprint;
    char host[64];
    tsr_err err;
} tsr_standing;

struct tsr_ranks {
    const tsr_transport *transport;
    unsigned *threads; /* [size]: how many each rank has; of rank 0 not used */
    unsigned n_workers;
    tsr_standing *standings; /* [size] */
    uint8_t *touched;        /* [n_files * size], of rank 0: which ranks have a file open */
};

/* Channels: 0 is for what concerns a file, 1 and up belong to a thread of the rank each. */
enum { TSR_CHANNEL_FILES, TSR_CHANNEL_THREADS };

#endif
