/* Does the latent attention of a layer come out as it must, from the checkpoint's own weights?
 *
 * Errors are told apart: what quantization costs, stage by stage, each from the originals' input of that stage, and
 * over the whole layer; what absorption costs, in double; what the kernel costs over the same operands. Or, with
 * options->stages, the stages of another implementation are held to those of the checkpoint. docs/verify.md. */
#ifndef TSR_VERIFY_MLA_CHECK_MLA_H
#define TSR_VERIFY_MLA_CHECK_MLA_H

#include "verify/evidence/jobs.h"

/* `outs` is ignored. Errors: as tsr_mla_model_open; TSR_E_USAGE for sizes that make no sense together;
 * TSR_E_SHAPE for a stage that does not fit; TSR_E_DEVICE for what a GPU refuses. */
tsr_status tsr_check_mla(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence,
                         tsr_err *err) TSR_WARN_UNUSED;

/* Whether config.json says that attention is latent. TSR_E_NOT_APPLICABLE: it does not. */
tsr_status tsr_mla_applies(const tsr_kernel_options *options, tsr_err *err) TSR_WARN_UNUSED;

#endif
