/* Declares plans that quantize plain weights of a source whose stacks of experts are split or transposed while they are
 * read.
 *
 * The plan of the scheme is made for a view in which every expert's projection is a separate matrix
 * (convert/plans/views/decoded_view.h). Then each step gets a reader that takes its matrix from the stack. */
#pragma once

#include "convert/plan/plan.h"
#include "convert/plans/views/decoded_view.h"

typedef enum tsr_experts {
    TSR_EXPERTS_AS_NEEDED, /* split stacks that are quantized, if the model_type is known */
    TSR_EXPERTS_SPLIT,
    TSR_EXPERTS_STACK,
    TSR_EXPERTS_TURN, /* keep stacks, for a scheme that writes [experts, out, in]; transpose those stored as [experts,
                       * in, out] */
} tsr_experts;

/* Makes a plan of a scheme for *source. */
typedef tsr_status tsr_scheme_maker(tsr_plan *plan, const tsr_checkpoint *const *source, const void *options,
                                    tsr_err *err);

/* Makes the plan. `view`, which it may fill, `*source` and `*options` must outlive the plan. On failure *plan is empty
 * and there is nothing to free. */
tsr_status tsr_split_plan(tsr_plan *plan, tsr_decoded_view *view, const tsr_checkpoint *const *source,
                          tsr_experts experts, tsr_scheme_maker *make, const void *options, tsr_err *err);

/* Makes *step read this part of plain data as its first input. */
tsr_status tsr_split_set_input(tsr_plan *plan, tsr_step *step, const tsr_decoded_part *part, tsr_err *err);

/* Returns the source tensor that a part is taken from. */
const tsr_tensor *tsr_split_source(const tsr_decoded_part *part);
