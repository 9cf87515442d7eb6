/* The steps that quantize weights to MXFP4, MXFP8 and NVFP4. */
#ifndef TSR_CONVERT_OPS_MX_OP_H
#define TSR_CONVERT_OPS_MX_OP_H

#include "convert/engine/plan.h"
#include "quantize/mx_weight.h"

/* How a dialect calls what belongs to module X, how it shapes codes, and what it takes bytes of scales for. */
typedef struct tsr_mx_names {
    const char *codes, *scales; /* ".weight_packed", ".weight_scale" */
    const char *global, *input; /* F32, of NVFP4: of the weight; of the layer's input */
    unsigned global_rank;       /* of these two: [1] or [] */
    tsr_dtype packed;           /* of E2M1 codes, two to an element: U8 or I8 */
    tsr_dtype power;            /* of E8M0 scales: U8 or F8_E8M0 */
    bool blocks;                /* codes are [.., R, groups, bytes of a group] instead of [.., R, bytes of a row] */
} tsr_mx_names;

/* Adds the step that quantizes `weight`, X.weight [R, C], or a stack [M, R, C]. `amax` is that of the weight and of all that loaders run as one
 * layer with it: NVFP4's global scale follows from it; NULL for the others. `input` is the input's global scale, as it
 * is stored; 0: none is; negative: it is not known yet, and there is no running the step before it is. */
tsr_status tsr_plan_mx(tsr_plan *plan, const tsr_tensor *weight, const tsr_mx_scheme *scheme, const tsr_mx_names *names,
                       const tsr_amax *amax, float input, tsr_err *err) TSR_WARN_UNUSED;

/* What a step of tsr_plan_mx was given as `input`. */
float tsr_mx_step_input(const tsr_step *step);

#endif
