/* Declares steps that move codes from one format to another without new quantization: both decode to the same values.
 *
 *   MXFP4       -> MXFP4, NVFP4, block FP8
 *   NVFP4       -> NVFP4 (the global scale becomes its reciprocal if one dialect divides and the other multiplies)
 *   MXFP8       -> MXFP8
 *   block FP8   -> block FP8 of the same blocks; with scales that are powers of two -> MXFP8
 *   AWQ, GPTQ, packed integers of compressed-tensors -> the last of these, in the same groups; scales keep their dtype
 *   packed int4 in groups of 128 with BF16 scales -> int4 of SGLang, two codes per byte; these -> packed int4
 *
 * If a value has no code in the target, the step fails with its position and the binades that are out of range. With
 * --lossy it rounds to the nearest code and counts the error. */
#pragma once

#include "common/block.h"
#include "convert/ops/rows/decode_rows.h"
#include "convert/plan/plan.h"

typedef enum tsr_move_to {
    TSR_MOVE_NOWHERE, /* no move is possible */
    TSR_MOVE_MXFP4,
    TSR_MOVE_NVFP4,
    TSR_MOVE_MXFP8,
    TSR_MOVE_FP8_BLOCK,
    TSR_MOVE_PACKED,
    TSR_MOVE_NIBBLES,
} tsr_move_to;

typedef struct tsr_move {
    tsr_move_to to;
    tsr_block block;     /* block of TSR_MOVE_FP8_BLOCK */
    bool powers;         /* moves to block FP8 require scales that are powers of two */
    bool global_divides; /* for TSR_MOVE_NVFP4 only */
    float input;         /* TSR_MOVE_NVFP4: the layer's input scale, if the step writes one; -1: that of the source;
                          * TSR_MOVE_NIBBLES: that of the step */
    /* for TSR_MOVE_PACKED and TSR_MOVE_NIBBLES: */
    unsigned bits;
    uint64_t group;   /* columns that share a scale; 0: the whole row */
    bool zero_points; /* are written */
    bool middle;      /* config.json says that all zero points of AWQ or GPTQ have the middle value: symmetric */
    bool lossy;
} tsr_move;

/* Returns the reason why the codes of this weight can be moved, for the plan's notes: "the same codes, ..."; NULL: they
 * cannot. `powers`: all scales of block FP8 are powers of two. */
const char *tsr_move_reason(const tsr_weight *weight, const tsr_move *move, bool powers);

/* Returns the reason why codes that are integers of the target's kind cannot be moved. NULL: they can be moved, or are
 * of another kind. */
const char *tsr_move_obstacle(const tsr_weight *weight, const tsr_move *move);

/* Returns the group size (as in tsr_move) of integers of the target's kind; UINT64_MAX: codes of another kind. */
uint64_t tsr_move_group(const tsr_weight *weight, const tsr_move *move);

/* Returns true if the move needs step->amax: the largest scale of all weights that share a global one
 * (tsr_decode_powers). */
bool tsr_move_needs_largest(const tsr_weight *weight, const tsr_move *move);

/* Makes *step, which quantizes the view's rows to the target, move their codes instead. tsr_move_reason must not be
 * NULL for them. The outputs of the step stay the same. */
tsr_status tsr_step_move(tsr_plan *plan, tsr_step *step, const tsr_row_view *view, const tsr_move *move, bool powers,
                         tsr_err *err);

/* Returns true if the weight has an input scale for its layer: one F32 value, like the global scale of NVFP4
 * weights. */
static inline bool tsr_move_has_input(const tsr_weight *w)
{
    return w->global_scale != NULL && w->input_scale != NULL && w->input_scale->dtype == TSR_F32 &&
           tsr_tensor_elements(w->input_scale) == 1;
}
