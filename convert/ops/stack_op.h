/* Declares steps that combine the experts of a layer into one tensor, in the layout of their family. */
#pragma once

#include "convert/plan/plan.h"

typedef struct tsr_stack_shape {
    uint64_t experts, projections; /* experts, and projections of each */
    uint64_t rows, cols;           /* shape of each projection; a bias has one column */
    bool turned;                   /* the stack is [experts, cols, projections * rows] */
    bool interleaved;              /* rows of its projections alternate */
    bool powers;                   /* the elements are E8M0 scales, of which 255 (NaN) is rejected */
} tsr_stack_shape;

/* Adds a step that fills *out (BF16, F16 or F32) from FP32 values (`codes`) or values of the same dtype. parts[expert *
 * projections + i] decodes projection i of an expert. */
tsr_status tsr_plan_stack(tsr_plan *plan, const tsr_decoded *const *parts, bool codes, const tsr_stack_shape *shape,
                          const tsr_tensor *out, tsr_err *err);
