/* The steps of NVFP4, MXFP4 and MXFP8 for layers that loaders join: one global scale for all members, of the weights and
 * of the inputs. */
#ifndef TSR_CONVERT_PLANS_MX_LAYERS_H
#define TSR_CONVERT_PLANS_MX_LAYERS_H

#include "convert/ops/mx_op.h"
#include "convert/plan/plan.h"
#include "formats/weights/calibration.h"

typedef struct tsr_mx_layers {
    tsr_plan *plan;                     /* of its first source */
    const tsr_calibration *calibration; /* ranges of the layers' inputs; NULL: they are not quantized statically */
    bool *coded;                        /* [tensors]: which become codes; filled by the caller */
    const tsr_amax **amaxes;            /* [tensors]: those that have been announced */
} tsr_mx_layers;

/* Allocates the tables for so many tensors, all of them zero. False when memory is exhausted. */
bool tsr_mx_layers_make(tsr_mx_layers *layers, size_t tensors);
void tsr_mx_layers_free(tsr_mx_layers *layers);

typedef struct tsr_mx_step {
    const char *name; /* of the scheme, for messages */
    const tsr_mx_scheme *scheme;
    const tsr_mx_names *names;
    bool inputs; /* inputs have a stored scale: without a calibration, codes that are moved bring theirs along */
} tsr_mx_step;

/* Adds the step that quantizes X.weight. All members of its fused layer that become codes have this scheme.
 * TSR_E_MISMATCH: the calibration lacks a layer, or has an int8 scale in place of a range. */
tsr_status tsr_mx_layers_plan(const tsr_mx_layers *layers, const tsr_tensor *weight, const tsr_mx_step *step,
                              tsr_err *err) TSR_WARN_UNUSED;

#endif
