/* Two checkpoints, tensor by tensor, by the values that a reader gets: formats and spellings of scales do not matter.
 *
 * Tensors are matched by name; scales are part of their weights. Parts of an absorbed kv_b_proj, and what it was folded
 * into, are held to what verify/weights/made.h makes of the other side. Both checkpoints stream through: each thread
 * holds one piece of each, of at most 2 MiB of data, and the pieces of one large tensor are spread over all threads.
 * What comes out is the same for any number of threads. */
#ifndef TSR_VERIFY_WEIGHTS_COMPARE_H
#define TSR_VERIFY_WEIGHTS_COMPARE_H

#include "common/ranks.h"
#include "common/threads.h"
#include "verify/weights/made.h"
#include "verify/weights/metrics.h"
#include "verify/weights/weight_reader.h"

typedef enum tsr_pair_state {
    TSR_PAIR_IDENTICAL, /* the same dtype, bytes and scales */
    TSR_PAIR_EQUAL,     /* the same values */
    TSR_PAIR_DIFFERS,
    TSR_PAIR_MISSHAPED,
    TSR_PAIR_MISSING, /* only in a */
    TSR_PAIR_EXTRA,   /* only in b */
} tsr_pair_state;

typedef struct tsr_pair {
    const tsr_weight *a, *b; /* of the two tsr_weights; NULL where the tensor is not there */
    /* Of a or b, when that is a stand-in for values made of other tensors of its side; else NULL. */
    const tsr_made *made[2];
    tsr_pair_state state;
    tsr_metrics metrics; /* x from a, y from b; when both are there in one shape */
    double seconds;      /* for reading and comparing, summed over threads */
} tsr_pair;

typedef struct tsr_compare_options {
    const char *const *globs; /* tensors to compare: those whose name matches one of them; all when there is none */
    size_t n_globs;
    tsr_run_options run; /* its progress counts bytes and tensors */
    tsr_ranks *ranks;    /* who works with this process; NULL: nobody. Borrowed */
} tsr_compare_options;

typedef struct tsr_comparison {
    tsr_pair *pairs; /* in a's order, then what only b has in b's; freed by tsr_comparison_free */
    size_t count;
    uint64_t bytes_read;
    double seconds;
    unsigned threads; /* really used */
    tsr_arena arena;  /* of stand-ins */
} tsr_comparison;

/* In a rank but 0 it compares for rank 0, and the comparison says nothing. Differences are results, not errors. TSR_E_USAGE: no name matches. TSR_E_NOMEM: run.memory is too small, with what is
 * needed. TSR_E_CANCELLED: stopped by *run.cancel. */
tsr_status tsr_compare(const tsr_side *a, const tsr_side *b, const tsr_compare_options *options,
                       tsr_comparison *comparison, tsr_err *err) TSR_WARN_UNUSED;

void tsr_comparison_free(tsr_comparison *comparison);

/* One side of a pair whose both are there, as a view: side[which]'s. */
tsr_status tsr_pair_view(tsr_view *view, const tsr_side *side, const tsr_pair *pair, unsigned which,
                         tsr_err *err) TSR_WARN_UNUSED;

/* The name that a pair goes by. */
const char *tsr_pair_name(const tsr_pair *pair);

/* "[12, 5]": a flat index of tsr_metrics as coordinates in the tensor's shape, into `text` (at least 192 bytes).
 * Returns text. */
const char *tsr_pair_coordinates(const tsr_pair *pair, uint64_t index, char *text, size_t size);

#endif
