/* Runs the indexer of a layer with sparse attention. */
#ifndef TSR_VERIFY_FORWARD_BLOCKS_INDEXER_H
#define TSR_VERIFY_FORWARD_BLOCKS_INDEXER_H

#include "verify/forward/forward_parts.h"

/* An indexer's inputs: the layer's x [count][hidden], and what its queries are made from, [count][width]. */
typedef struct tsr_indexer_inputs {
    const tsr_tokens *tokens;
    const double *x, *query;
    size_t width;
} tsr_indexer_inputs;

/* Chooses the tokens that a layer attends to. A layer that shares the choice of an earlier one keeps it. *chosen is
 * forward->choice, or NULL if attention is not limited: the layer has no indexer, or no sequence is longer than what
 * it chooses. TSR_E_UNSUPPORTED: the earlier layer was not run on these tokens. */
tsr_status tsr_forward_choose_tokens(tsr_forward *forward, size_t layer, const tsr_indexer_inputs *inputs,
                                     const tsr_token_choice **chosen, tsr_err *err) TSR_WARN_UNUSED;

#endif
