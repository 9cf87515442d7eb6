/* Runs tokens through a model and collects statistics of the inputs of its linear layers (`calibrate`).
 *
 * The pass is that of verify/forward/forward.h: weights are read by layer and in bands, sums are in double. Inputs are
 * those of the model as it is stored, not as served. */
#ifndef TSR_VERIFY_CALIBRATE_CALIBRATE_H
#define TSR_VERIFY_CALIBRATE_CALIBRATE_H

#include "verify/forward/check_forward.h"
#include "verify/forward/collect/collector.h"

/* Runs the source of `request` over its tokens; its other sides are NULL. Fills *collector, which the caller frees. Its
 * `products` are set by the caller.
 * Errors are those of verify/forward/forward.h and verify/forward/tokens/token_file.h, and: TSR_E_NOT_APPLICABLE: it
 * needs more than run.memory. TSR_E_VALUE: an input is NaN or infinite. */
tsr_status tsr_calibrate(const tsr_forward_request *request, tsr_collector *collector, tsr_forward_figures *figures,
                         tsr_err *err) TSR_WARN_UNUSED;

#endif
