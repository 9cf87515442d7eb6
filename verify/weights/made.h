/* Values that one side has and the other holds in another form: what absorbing multi-head latent attention makes, and
 * experts one by one where the other side has a stack.
 *
 * A checkpoint whose kv_b_proj was split into parts, or folded into q_b_proj and o_proj, holds tensors that its source
 * has not, or has in another shape. To compare them, the same values are made from the other checkpoint's kv_b_proj, in
 * double: a part is a rearrangement and exact; a folded weight is a sum of nope (or v) exact products. An expert's matrix is
 * taken out of the stack, transposed and de-interleaved as the family stores it. */
#ifndef TSR_VERIFY_WEIGHTS_MADE_H
#define TSR_VERIFY_WEIGHTS_MADE_H

#include "verify/weights/weight_reader.h"

typedef enum tsr_made_kind {
    TSR_MADE_PART,   /* [heads, rows, L] or [heads, L, rows] of kv_b_proj */
    TSR_MADE_QUERY,  /* q_b_proj (q_proj) with the keys' part folded in: [heads * (L + rope), C] */
    TSR_MADE_EXPERT, /* one expert's matrix or bias out of a stack of all */
    TSR_MADE_OUTPUT, /* o_proj with the values' part folded in: [hidden, heads * L] */
} tsr_made_kind;

typedef struct tsr_made {
    tsr_derived derived; /* first: a view points to it */
    tsr_made_kind kind;
    const tsr_weight *kv_b, *folded; /* `folded`: q_b_proj or o_proj as it was; NULL of a part */
    uint64_t heads, nope, v, rope, rank;
    bool values, latent_first; /* of a part */
    const tsr_weight *stack;   /* of an expert: row r of it is row first + r * step of matrix `expert` of the stack */
    uint64_t expert, first, step;
    bool turned, vector; /* the stack is [experts, in, out]; a bias, [experts, rows] */
} tsr_made;

/* How `wanted`, a tensor of `with` that `from` lacks or has in another shape, is made of tensors of `from`: *made, and
 * in *weight a stand-in of its name and shape. Both in `arena`; *made is NULL when it is none of the above.
 * TSR_E_NOMEM. */
tsr_status tsr_made_find(const tsr_side *from, const tsr_side *with, const tsr_weight *wanted, tsr_arena *arena,
                         const tsr_made **made, const tsr_weight **weight, tsr_err *err) TSR_WARN_UNUSED;

/* Whether `kv_b` of `from`, or a stack of experts, which `with` lacks, lives on in tensors of `with` that tsr_made_find finds. */
bool tsr_made_replaces(const tsr_side *from, const tsr_side *with, const tsr_weight *kv_b);

#endif
