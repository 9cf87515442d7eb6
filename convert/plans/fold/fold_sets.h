/* Finds the norms and layers whose channels can be scaled without changing the model's function.
 *
 * A set is a vector of channels between a producer and its consumers: the weights of a norm and all linear layers
 * behind it, or the rows of up_proj and the columns of down_proj, or those of v_proj and o_proj. Dividing the
 * producer's channel by s and multiplying the consumers' columns by s has no effect. A family is a row of a table; for
 * others nothing is known about the consumers, so they are refused. */
#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "quantize/fold.h"

typedef struct tsr_fold_set {
    const tsr_tensor *producer; /* a norm [C], or a layer [C, ...] whose rows are divided */
    const tsr_tensor *bias;     /* the producer's; NULL: none */
    const tsr_tensor *
        *consumers; /* layers [.., C] whose columns are multiplied; one that sees all tokens is the first */
    size_t n;
    size_t channels;
    /* With grouped-query attention, `heads` heads of o_proj read one head of v_proj, of `head_dim` channels. 1
     * otherwise. */
    size_t heads, head_dim;
} tsr_fold_set;

typedef struct tsr_fold_sets {
    tsr_fold_set *items;
    size_t count, capacity;
    tsr_fold *folds; /* [tensors of the checkpoint]: the exponents of each; arrays of zeros for the tensors of sets */
    tsr_arena *arena;
} tsr_fold_sets;

/* Finds all sets, in the order of the layers. All memory is in `arena`. TSR_E_UNSUPPORTED: an unknown family, or a
 * tensor of a layer that the family does not have. TSR_E_FORMAT: a tensor is missing, or is not a matrix of BF16, F16
 * or F32. TSR_E_SHAPE: shapes contradict each other. */
tsr_status tsr_fold_sets_find(tsr_fold_sets *sets, const tsr_checkpoint *checkpoint, tsr_arena *arena, tsr_err *err);

/* Sets the exponents of all tensors of a set from those of its channels [channels]: negative ones for the producer. */
void tsr_fold_set_apply(const tsr_fold_sets *sets, const tsr_fold_set *set, const tsr_checkpoint *checkpoint,
                        const int8_t *exponents);

/* Sets all exponents of the consumers' columns, and nothing else: for trying them out. */
void tsr_fold_set_try(const tsr_fold_sets *sets, const tsr_fold_set *set, const tsr_checkpoint *checkpoint,
                      const int8_t *exponents);
