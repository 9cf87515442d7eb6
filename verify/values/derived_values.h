/* Derives values that one side has in another form: results of absorbing multi-head latent attention, and single
 * experts if the other side has a stack.
 *
 * If kv_b_proj was split into parts, or folded into q_b_proj and o_proj, the checkpoint has tensors that its source
 * lacks or has in another shape. To compare them, the same values are computed from the other checkpoint's kv_b_proj in
 * double. A part is a rearrangement and exact. A folded weight is a sum of nope (or v) exact products. An expert's
 * matrix is taken from the stack, transposed and de-interleaved according to the family's layout. */
#pragma once

#include "verify/values/weight_reader.h"

typedef enum tsr_derived_kind {
    TSR_DERIVED_PART,   /* [heads, rows, L] or [heads, L, rows] of kv_b_proj */
    TSR_DERIVED_QUERY,  /* q_b_proj (q_proj) with the keys' part folded in: [heads * (L + rope), C] */
    TSR_DERIVED_EXPERT, /* one expert's matrix or bias from a stack */
    TSR_DERIVED_OUTPUT, /* o_proj with the values' part folded in: [hidden, heads * L] */
} tsr_derived_kind;

typedef struct tsr_derived_tensor {
    tsr_derived derived; /* first member: a view points to it */
    tsr_derived_kind kind;
    const tsr_weight *kv_b, *folded; /* `folded`: the original q_b_proj or o_proj; NULL for a part */
    uint64_t heads, nope, v, rope, rank;
    bool values, latent_first; /* part: values or keys; the latent axis comes first or last */
    const tsr_weight *stack;   /* expert: its row r is row first + r * step of matrix `expert` of the stack */
    uint64_t expert, first, step;
    bool turned, vector; /* turned: the stack is [experts, in, out]; vector: a bias, [experts, rows] */
} tsr_derived_tensor;

/* Finds how `wanted`, a tensor of `with` that `from` lacks or has in another shape, is derived from tensors of `from`.
 * Sets *made, and *weight to a stand-in with its name and shape, both in `arena`. *made is NULL if it cannot be
 * derived. TSR_E_NOMEM. */
tsr_status tsr_derived_find(const tsr_side *from, const tsr_side *with, const tsr_weight *wanted, tsr_arena *arena,
                            const tsr_derived_tensor **made, const tsr_weight **weight, tsr_err *err);

/* Returns true if tensors of `with` replace `kv_b` of `from`, or a stack of experts, which `with` lacks.
 * tsr_derived_find finds these tensors. */
bool tsr_derived_replaces(const tsr_side *from, const tsr_side *with, const tsr_weight *kv_b);
