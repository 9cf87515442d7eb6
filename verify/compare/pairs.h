/* Pairs the tensors of two checkpoints by name. */
#pragma once

#include "common/cluster/ranks.h"
#include "common/parallel/threads.h"
#include "verify/compare/metrics.h"
#include "verify/values/derived_values.h"
#include "verify/values/weight_reader.h"

typedef enum tsr_pair_state {
    TSR_PAIR_IDENTICAL, /* same dtype, bytes and scales */
    TSR_PAIR_EQUAL,     /* the same values */
    TSR_PAIR_DIFFERS,
    TSR_PAIR_MISSHAPED,
    TSR_PAIR_MISSING, /* only in a */
    TSR_PAIR_EXTRA,   /* only in b */
} tsr_pair_state;

typedef struct tsr_pair {
    const tsr_weight *a, *b; /* the weight in each checkpoint; NULL: missing */
    /* Derivation of a or b if its values come from other tensors of its side; else NULL. */
    const tsr_derived_tensor *made[2];
    tsr_pair_state state;
    tsr_metrics metrics; /* x from a, y from b; set if both exist with the same shape */
    double seconds;      /* time for reading and comparing, summed over threads */
} tsr_pair;

typedef struct tsr_compare_options {
    const char *const *globs; /* globs of the names to compare; none: all */
    size_t n_globs;
    tsr_run_options run; /* its progress counts bytes and tensors */
    tsr_ranks *ranks;    /* the processes that share the job; NULL: only this one. Borrowed */
} tsr_compare_options;

typedef struct tsr_comparison {
    tsr_pair *pairs; /* in a's order, then those only in b in b's order; freed by tsr_comparison_free */
    size_t count;
    uint64_t bytes_read;
    double seconds;
    unsigned threads; /* really used */
    tsr_arena arena;  /* memory for stand-ins */
} tsr_comparison;

/* Fills out->pairs with the pairs that the globs of the options select. TSR_E_USAGE: none matches. TSR_E_UNSUPPORTED:
 * there are no tensors at all. */
tsr_status tsr_pairs_find(const tsr_side *a, const tsr_side *b, const tsr_compare_options *options, tsr_comparison *out,
                          tsr_err *err);

/* Returns the name of a pair. */
const char *tsr_pair_name(const tsr_pair *pair);

/* Writes a flat index of tsr_metrics as coordinates in the tensor's shape, "[12, 5]", to `text` (at least 192 bytes).
 * Returns text. */
const char *tsr_pair_coordinates(const tsr_pair *pair, uint64_t index, char *text, size_t size);
