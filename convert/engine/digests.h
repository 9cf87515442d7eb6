/* The digests of an output, made while it is written and while it is read back.
 *
 * A file is its header and, behind it, its tensors, or one tensor alone. A tensor's bytes are cut into pieces that follow one
 * another: where each unit of its step makes one stretch, behind that of the unit before, a piece is what a unit makes, so that
 * whoever has made it digests it while it is in the processor's cache; else pieces have TSR_DIGEST_PIECE bytes, and are read
 * back when the file is whole. So cuts follow from the plan alone, and digests are the same for any threads, ranks and kills.
 *
 * The digest of a piece is its XXH128. That of a tensor is its only piece's or, of several, the XXH128 of their digests one after
 * another; that of a file is in the same way made of its header's and its tensors', in the order of their bytes. Digests stand
 * there as 16 bytes, the highest first. */
#ifndef TSR_CONVERT_ENGINE_DIGESTS_H
#define TSR_CONVERT_ENGINE_DIGESTS_H

#include "convert/engine/plan.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define TSR_DIGEST_PIECE TSR_UNIT_BYTES

typedef XXH128_hash_t tsr_digest;

/* Where the pieces of a step's outputs are, one output's behind the other's. */
typedef struct tsr_step_pieces {
    uint64_t first;
    uint8_t by_unit; /* bit i: the pieces of out[i] are its units' */
} tsr_step_pieces;

typedef struct tsr_digests {
    const tsr_plan *plan;
    tsr_step_pieces *steps; /* [plan->n_steps] */
    tsr_digest *pieces;
    tsr_digest *headers; /* [plan->n_files] */
    uint64_t *sizes;     /* [plan->n_files]: of appended files, when they are whole */
} tsr_digests;

/* What a file holds behind its header: an output of one of its steps. */
typedef struct tsr_file_part {
    const tsr_tensor *tensor;
    size_t step;
    unsigned output;
} tsr_file_part;

tsr_status tsr_digests_begin(tsr_digests *d, const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;
void tsr_digests_end(tsr_digests *d);

/* Bytes of memory that they take, at most. */
uint64_t tsr_digests_memory(const tsr_plan *plan);

/* Whether the pieces of output i are what its units make. */
static inline bool tsr_is_by_unit(const tsr_digests *d, size_t step, unsigned i)
{
    return (d->steps[step].by_unit >> i & 1) != 0;
}

/* How many pieces output i has, and where the first one's digest is; those of an appended file: i is 0. */
uint64_t tsr_digests_count(const tsr_digests *d, size_t step, unsigned i);
tsr_digest *tsr_digests_at(const tsr_digests *d, size_t step, unsigned i);

/* How many bytes piece k of output i has. */
uint64_t tsr_piece_bytes(const tsr_digests *d, size_t step, unsigned i, uint64_t k);

/* Digests a whole output that is cut into pieces of TSR_DIGEST_PIECE. */
void tsr_digests_take(const tsr_digests *d, const tsr_cpu_kernels *kernels, size_t step, unsigned i, const void *data);

/* Digests the bytes of an appended file, which come in their order; *fed have come before. The end is told with no bytes. */
void tsr_digests_feed(tsr_digests *d, const tsr_cpu_kernels *kernels, size_t step, XXH3_state_t *stream, uint64_t *fed,
                      const void *data, uint64_t size);

/* The digest of what is made of these. */
tsr_digest tsr_digest_of_digests(const tsr_digest *items, uint64_t n);

/* The parts of a file in the order of their bytes: parts[at most TSR_MAX_OUTPUTS * n_steps]. Returns how many. */
size_t tsr_file_parts(const tsr_plan *plan, size_t file, tsr_file_part *parts);

/* The digest of a file that is whole. */
tsr_status tsr_digests_file(const tsr_digests *d, size_t file, tsr_digest *digest, tsr_err *err) TSR_WARN_UNUSED;

/* The digest of bytes that are in memory. */
tsr_digest tsr_digest_of(const tsr_cpu_kernels *kernels, const void *data, uint64_t size);

#endif
