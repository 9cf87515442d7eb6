/* Runs tokens through a model and collects statistics of the inputs of its linear layers (`calibrate`).
 *
 * The pass is that of verify/forward/forward.h: weights are read by layer and in bands, sums are in double. Inputs are
 * those of the model as it is stored, not as served. */
#pragma once

#include "verify/calibrate/calibrate_state.h"
#include "verify/forward/check_forward.h"

/* The settings of a run beside those of a forward pass. */
typedef struct tsr_calibrate_options {
    tsr_calibrate_state *state;   /* where the run continues, and leaves its state */
    double save_seconds;          /* least time between two stored states */
    tsr_input_products *products; /* NULL: they are not collected */
} tsr_calibrate_options;

/* Runs the source of `request` over its tokens; its other sides are NULL. Fills *collector, which the caller frees, and
 * sets *resumed to the number of layers that an earlier run had finished. The state stays until the caller removes it.
 * Errors are those of tsr_calibrate_state_load, those of verify/forward/forward.h and
 * verify/forward/tokens/token_file.h, and: TSR_E_NOT_APPLICABLE: it needs more than run.memory. TSR_E_VALUE: an input
 * is NaN or infinite. */
tsr_status tsr_calibrate(const tsr_forward_request *request, const tsr_calibrate_options *options,
                         tsr_collector *collector, tsr_forward_figures *figures, size_t *resumed, tsr_err *err);
