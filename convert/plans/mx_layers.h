/* Plans NVFP4, MXFP4, MXFP8 and FP8 per tensor for layers that loaders fuse: all members share one global scale (FP8:
 * the scale) for weights and one for inputs. */
#pragma once

#include "convert/ops/mx_op.h"
#include "convert/plan/plan.h"
#include "formats/weights/calibration.h"

typedef struct tsr_mx_layers {
    tsr_plan *plan;                     /* provides tensors through its first source */
    const tsr_calibration *calibration; /* measured ranges of the layers' inputs; NULL: unknown */
    float input_scale;                  /* static scale of all inputs, a factor; 0: none. Not with `calibration` */
    bool *coded;                        /* [tensors]: those that become codes; set by the caller */
    const tsr_amax **amaxes;            /* [tensors]: amaxes that have been requested */
} tsr_mx_layers;

/* Allocates zeroed tables for this many tensors. Returns false when memory is exhausted. */
bool tsr_mx_layers_make(tsr_mx_layers *layers, size_t tensors);
void tsr_mx_layers_free(tsr_mx_layers *layers);

typedef struct tsr_mx_step {
    const char *name;            /* name of the scheme for messages */
    const tsr_mx_scheme *scheme; /* NULL: FP8 with one scale per tensor */
    const tsr_mx_names *names;
    bool inputs; /* moved codes keep the stored input scale of the source, unless a new one is given */
} tsr_mx_step;

/* Finds the largest magnitude measured at the input of any member of the weight's fused layer. The calibration is not
 * NULL; `name` is that of the scheme, for messages. TSR_E_MISMATCH: as tsr_mx_layers_plan. */
tsr_status tsr_mx_layers_input(const tsr_mx_layers *layers, const tsr_tensor *weight, const char *name, float *amax,
                               tsr_err *err);

/* Adds the step that quantizes X.weight. All members of its fused layer that become codes must have this scheme.
 * TSR_E_MISMATCH: the calibration lacks a layer, or has an int8 scale instead of a range. */
tsr_status tsr_mx_layers_plan(const tsr_mx_layers *layers, const tsr_tensor *weight, const tsr_mx_step *step,
                              tsr_err *err);
