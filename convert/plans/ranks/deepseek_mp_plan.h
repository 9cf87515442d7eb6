/* The plan for DeepSeek-V3's own inference code: model{i}-mp{N}.safetensors, one file per rank, with its names.
 *
 * Source: DeepSeek-V3 inference/convert.py (names, partition of the experts, cut dimensions) and generate.py (loads the
 * rank's file strictly: an extra or a missing name is an error). It reads no index and no config.json; tokenizer files
 * are copied. */
#pragma once

#include "convert/plan/plan.h"

typedef struct tsr_deepseek_mp_options {
    uint32_t ranks;
    bool keep_mtp; /* keep the layers from num_hidden_layers on, which the code does not support */
} tsr_deepseek_mp_options;

/* TSR_E_UNSUPPORTED: a tensor has no name in DeepSeek's code. TSR_E_SHAPE: the ranks do not divide a dimension or the
 * number of experts, or a cut goes through a block; the message has numbers of ranks that work. On failure *plan is
 * empty. */
tsr_status tsr_deepseek_mp_plan(tsr_plan *plan, const tsr_checkpoint *const *source,
                                const tsr_deepseek_mp_options *options, tsr_err *err);

/* The file beside the ranks that holds config.json. convert.py does not copy it and DeepSeek's code does not read it,
 * but the inverse conversion needs it. */
#define TSR_DEEPSEEK_MANIFEST "tessera-deepseek-mp.json"

/* Plans the inverse: one checkpoint with Hugging Face's names from the files of all n ranks, sources[0 .. n), each
 * opened with tsr_checkpoint_open_shard. `config` is the text of its config.json; NULL: that in the manifest.
 * TSR_E_MISMATCH: the ranks are not of one model. TSR_E_FORMAT: there is no configuration, a tensor is missing, or the
 * configuration is of another model. On failure *plan is empty. */
tsr_status tsr_from_deepseek_mp_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, size_t n, const char *config,
                                     size_t config_size, uint64_t max_shard_bytes, tsr_err *err);
