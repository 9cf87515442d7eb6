/* Verifies the latent attention (MLA) of a layer with the checkpoint's weights.
 *
 * Errors are reported separately: the quantization error of each stage, computed from the original's input of that
 * stage; that of the whole layer; the error of absorption, in double; the error of the kernel over the same
 * operands. With options->stages, the stages of another implementation are compared with those of the checkpoint.
 * See docs/verify-mla.md. */
#pragma once

#include "verify/evidence/jobs.h"

/* `outs` is ignored. Errors are those of tsr_mla_model_open, and: TSR_E_USAGE for contradictory sizes; TSR_E_SHAPE
 * for a stage with another shape; TSR_E_DEVICE for a failure of a GPU. */
tsr_kernel_check_fn tsr_check_mla;

/* Checks that config.json describes latent attention. TSR_E_NOT_APPLICABLE: it does not. */
tsr_kernel_applies_fn tsr_mla_applies;
