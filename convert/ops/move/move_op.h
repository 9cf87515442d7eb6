/* Steps that move codes from one coding to another, and make none anew: readers of both find the same values.
 *
 *   MXFP4       -> MXFP4, NVFP4, block FP8
 *   NVFP4       -> NVFP4 (the global scale's reciprocal where one dialect divides and the other multiplies)
 *   MXFP8       -> MXFP8
 *   block FP8   -> block FP8 of the same blocks; with scales that are powers of two -> MXFP8
 *   AWQ, GPTQ, packed integers of compressed-tensors -> the last of these, in the same groups; scales keep their dtype
 *
 * Where a value has no code in the target, a step stops, with the place and the binades that stand in the way; or, if it
 * may lose something, it rounds to the nearest and counts what that cost. */
#ifndef TSR_CONVERT_OPS_MOVE_MOVE_OP_H
#define TSR_CONVERT_OPS_MOVE_MOVE_OP_H

#include "common/block.h"
#include "convert/ops/rows/decode_rows.h"
#include "convert/plan/plan.h"

typedef enum tsr_move_to {
    TSR_MOVE_NOWHERE, /* a coding that nothing moves to */
    TSR_MOVE_MXFP4,
    TSR_MOVE_NVFP4,
    TSR_MOVE_MXFP8,
    TSR_MOVE_FP8_BLOCK,
    TSR_MOVE_PACKED,
} tsr_move_to;

typedef struct tsr_move {
    tsr_move_to to;
    tsr_block block;     /* of TSR_MOVE_FP8_BLOCK */
    bool powers;         /* what becomes block FP8 must have scales that are powers of two */
    bool global_divides; /* of TSR_MOVE_NVFP4 */
    float input; /* of TSR_MOVE_NVFP4: of the layer's input, where the step has such a scale and the source none */
    /* for TSR_MOVE_PACKED: */
    unsigned bits;
    uint64_t group;   /* columns that share a scale; 0: all of a row */
    bool zero_points; /* are written */
    bool middle;      /* config.json says that AWQ's or GPTQ's zero points all are in the middle: symmetric */
    bool lossy;
} tsr_move;

/* Why the codes of this weight can stay, for the plan's notes: "the same codes, ...". NULL: they cannot. `powers`:
 * all scales of block FP8 are powers of two. */
const char *tsr_move_reason(const tsr_weight *weight, const tsr_move *move, bool powers);

/* Why the codes of this weight cannot stay although they are integers of the target's kind; NULL: they can, or are of
 * another kind. */
const char *tsr_move_obstacle(const tsr_weight *weight, const tsr_move *move);

/* The group, as tsr_move has it, of integers of the target's kind; UINT64_MAX: they are of another. */
uint64_t tsr_move_group(const tsr_weight *weight, const tsr_move *move);

/* Returns true if the move needs step->amax: the largest scale of all weights that share a global one
 * (tsr_decode_powers). */
bool tsr_move_needs_largest(const tsr_weight *weight, const tsr_move *move);

/* Makes *step, which quantizes the view's rows to the target, move their codes: there is a reason why it can. Its outputs
 * stay. */
tsr_status tsr_step_move(tsr_plan *plan, tsr_step *step, const tsr_row_view *view, const tsr_move *move, bool powers,
                         tsr_err *err) TSR_WARN_UNUSED;

/* Returns true if the weight has an input scale for its layer: one F32 value, as NVFP4's global scale of the weight. */
static inline bool tsr_move_has_input(const tsr_weight *w)
{
    return w->global_scale != NULL && w->input_scale != NULL && w->input_scale->dtype == TSR_F32 &&
           tsr_tensor_elements(w->input_scale) == 1;
}

#endif
