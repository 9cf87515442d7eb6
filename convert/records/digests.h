/* Computes the digests of an output while it is written and while it is read back.
 *
 * A file is its header followed by its tensors, or one tensor alone. The bytes of a tensor are divided into pieces. If
 * each unit of its step makes one contiguous run of bytes, in order, a piece is the output of a unit and is digested
 * while it is in the processor's cache. Otherwise a piece has TSR_DIGEST_PIECE bytes and is read back when the file is
 * complete. So the pieces follow from the plan alone, and digests do not depend on threads, ranks and interruptions.
 *
 * The digest of a piece is its XXH128. The digest of a tensor is that of its only piece or, with several, the XXH128 of
 * their digests one after another. The digest of a file is computed in the same way from those of its header and its
 * tensors, in file order. A digest is hashed as 16 bytes, the highest first. */
#pragma once

#include "convert/plan/plan.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define TSR_DIGEST_PIECE TSR_UNIT_BYTES

typedef XXH128_hash_t tsr_digest;

/* The pieces of a step's outputs, one output after another. */
typedef struct tsr_step_pieces {
    uint64_t first;
    uint8_t by_unit; /* bit i: each unit makes one piece of out[i] */
} tsr_step_pieces;

typedef struct tsr_digests {
    const tsr_plan *plan;
    tsr_step_pieces *steps; /* [plan->n_steps] */
    tsr_digest *pieces;     /* [n_pieces] */
    uint64_t n_pieces;
    tsr_digest *headers; /* [plan->n_files] */
    uint64_t *sizes;     /* [plan->n_files]: sizes of complete appended files */
} tsr_digests;

/* A part of a file after its header: an output of one of its steps. */
typedef struct tsr_file_part {
    const tsr_tensor *tensor;
    size_t step;
    unsigned output;
} tsr_file_part;

tsr_status tsr_digests_begin(tsr_digests *d, const tsr_plan *plan, tsr_err *err);
void tsr_digests_end(tsr_digests *d);

/* Returns the pieces of a file's outputs, and their number. */
tsr_digest *tsr_digests_of(const tsr_digests *d, size_t file, uint64_t *count);

/* Sets the digests of a file to zeros. */
void tsr_digests_clear(tsr_digests *d, size_t file);

/* Returns the most bytes of memory that the digests of a plan take. */
uint64_t tsr_digests_memory(const tsr_plan *plan);

/* Returns true if each unit makes one piece of output i. */
static inline bool tsr_is_by_unit(const tsr_digests *d, size_t step, unsigned i)
{
    return (d->steps[step].by_unit >> i & 1) != 0;
}

/* Return the number of pieces of output i, and the digest of the first one. For an appended file, i is 0. */
uint64_t tsr_digests_count(const tsr_digests *d, size_t step, unsigned i);
tsr_digest *tsr_digests_at(const tsr_digests *d, size_t step, unsigned i);

/* Returns the bytes of piece k of output i. */
uint64_t tsr_piece_bytes(const tsr_digests *d, size_t step, unsigned i, uint64_t k);

/* Digests a whole output that is divided into pieces of TSR_DIGEST_PIECE. */
void tsr_digests_take(const tsr_digests *d, const tsr_cpu_kernels *kernels, size_t step, unsigned i, const void *data);

/* Digests the next bytes of an appended file, of which *fed were digested before. A call with no bytes marks the
 * end. */
void tsr_digests_feed(tsr_digests *d, const tsr_cpu_kernels *kernels, size_t step, XXH3_state_t *stream, uint64_t *fed,
                      const void *data, uint64_t size);

/* Returns the digest of a sequence of digests. */
tsr_digest tsr_digest_of_digests(const tsr_digest *items, uint64_t n);

/* Lists the parts of a file in the order of their bytes: parts[at most TSR_MAX_OUTPUTS * n_steps]. Returns their
 * number. */
size_t tsr_file_parts(const tsr_plan *plan, size_t file, tsr_file_part *parts);

/* Computes the digest of a whole file. */
tsr_status tsr_digests_file(const tsr_digests *d, size_t file, tsr_digest *digest, tsr_err *err);

/* Returns the digest of bytes in memory. */
tsr_digest tsr_digest_of(const tsr_cpu_kernels *kernels, const void *data, uint64_t size);
