/* Measures how much the quantization of each group of weights changes a model's predictions (`sensitivities`).
 *
 * A group is the weights that share one scheme: a fused layer, the experts of a layer, or one weight. For each group,
 * the tokens run through the model with the group's weights from a quantized checkpoint and all others from the source.
 * The divergence KL(source || exchanged) of the logits is averaged over the tokens. The pass up to the group's layer is
 * the source's own, so only the layers from there on are run again; the groups of a layer run through them together.
 * All sums are in double. */
#pragma once

#include "formats/importance/importance.h"
#include "verify/forward/check_forward.h"

typedef struct tsr_sensitivity {
    uint32_t group; /* set by the caller: the index of the group's first tensor in the source */
    bool measured; /* false: its weights are not part of the pass, such as those of a vision tower or of an MTP layer */
    double kl;     /* mean over the tokens, in nats */
    double kl_max; /* that of the worst token */
    double error;  /* sum of tsr_weight_error over its weights */
} tsr_sensitivity;

typedef struct tsr_sensitivity_request {
    tsr_forward_request forward;      /* `source`, tokens, devices, run; `model` is NULL */
    const tsr_side *quantized;        /* a checkpoint made from the source */
    const uint32_t *group_of;         /* [tensors of the source]: the group of each */
    const tsr_importance *importance; /* weights of the columns in the errors of weights; NULL: all are 1 */
} tsr_sensitivity_request;

/* Measures groups[n], whose `group` is set; each has a weight with codes in the quantized checkpoint. Errors are those
 * of verify/forward/forward.h and verify/sensitivity/weight_error.h, and: TSR_E_MISMATCH: the quantized checkpoint
 * lacks a weight of the source. TSR_E_NOT_APPLICABLE: it needs more than run.memory. */
tsr_status tsr_sensitivities_measure(const tsr_sensitivity_request *request, tsr_sensitivity *groups, size_t n,
                                     tsr_forward_figures *figures, tsr_err *err);
