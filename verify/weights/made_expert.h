/* One expert's matrix or bias out of a stack of all, where one side has the stack and the other the experts one by one. */
#ifndef TSR_VERIFY_WEIGHTS_MADE_EXPERT_H
#define TSR_VERIFY_WEIGHTS_MADE_EXPERT_H

#include "verify/weights/made.h"

/* Whether `wanted`, an expert's tensor that `from` lacks, is part of a stack that `from` has, and which. */
bool tsr_made_expert_find(const tsr_side *from, const tsr_weight *wanted, tsr_made *made);

/* Whether `with` has every expert of `stack`, a tensor of `from`, by itself, and `from` none. */
bool tsr_made_expert_replaces(const tsr_side *from, const tsr_side *with, const tsr_weight *stack);

/* Its values, and how many that takes beside them. */
tsr_status tsr_made_expert_values(const tsr_view *view, const tsr_made *made, const tsr_piece *piece, double *out,
                                  double *scratch, tsr_err *err) TSR_WARN_UNUSED;
uint64_t tsr_made_expert_scratch(const tsr_made *made, const tsr_piece *piece);

#endif
