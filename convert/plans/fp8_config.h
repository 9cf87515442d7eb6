/* Writes a quantization_config, of block FP8 or any other, into config.json, or takes it out; all other bytes stay. */
#ifndef TSR_CONVERT_PLANS_FP8_CONFIG_H
#define TSR_CONVERT_PLANS_FP8_CONFIG_H

#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/model/weights.h"

typedef struct tsr_fp8_config {
    tsr_dialect dialect;
    uint64_t block_rows, block_cols;
    bool ue8m0;
    const tsr_tensor *
        *unquantized; /* not quantized, but a loader would take it for a linear layer; the array is sorted */
    size_t n_unquantized;
} tsr_fp8_config;

/* Appends the checkpoint's config.json with this quantization_config, in place of one that it has. */
tsr_status tsr_fp8_config_set(tsr_text *out, const tsr_checkpoint *checkpoint, const tsr_fp8_config *config,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Appends the checkpoint's config.json with `value` (JSON) as its quantization_config, in place of one that it has. */
tsr_status tsr_quantization_set(tsr_text *out, const tsr_checkpoint *checkpoint, const char *value,
                                tsr_err *err) TSR_WARN_UNUSED;

/* Appends the checkpoint's config.json with the modules of these tensors added to the list of those that stay
 * unquantized, whatever it is called there. The model is quantized. */
tsr_status tsr_quantization_keep(tsr_text *out, const tsr_checkpoint *checkpoint, const tsr_tensor **tensors, size_t n,
                                 tsr_err *err) TSR_WARN_UNUSED;

/* Appends the checkpoint's config.json without its quantization. */
tsr_status tsr_fp8_config_remove(tsr_text *out, const tsr_checkpoint *checkpoint, tsr_err *err) TSR_WARN_UNUSED;

#endif
