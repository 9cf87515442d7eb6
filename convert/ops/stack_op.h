/* Steps that put the experts of a layer into one tensor, as their family stores it. */
#ifndef TSR_CONVERT_OPS_STACK_OP_H
#define TSR_CONVERT_OPS_STACK_OP_H

#include "convert/plan/plan.h"

enum { TSR_STACKED = 2 }; /* projections of a stack, at most: gate and up */

typedef struct tsr_stack_shape {
    uint64_t experts, projections; /* of each expert */
    uint64_t rows, cols;           /* of each projection; a bias has one column */
    bool turned;                   /* the stack is [experts, cols, projections * rows] */
    bool interleaved;              /* its projections take turns, output by output */
    bool powers;                   /* what is stacked are E8M0 scales: 255, which is no number, is refused */
} tsr_stack_shape;

/* Adds a step that fills *out, BF16, F16 or F32: of values in FP32 (`codes`), or of values in its own dtype. parts[expert *
 * projections + i] decodes projection i of an expert. */
tsr_status tsr_plan_stack(tsr_plan *plan, const tsr_decoded *const *parts, bool codes, const tsr_stack_shape *shape,
                          const tsr_tensor *out, tsr_err *err) TSR_WARN_UNUSED;

#endif
