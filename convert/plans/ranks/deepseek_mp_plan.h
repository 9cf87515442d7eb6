/* The plan for DeepSeek-V3's own inference code: model{i}-mp{N}.safetensors, one file a rank, under its names.
 *
 * Source: DeepSeek-V3 inference/convert.py (names, partition of the experts, cut dimensions) and generate.py (loads the
 * rank's file strictly: a name too many or too few fails). It reads no index and no config.json; tokenizer files are
 * copied. */
#ifndef TSR_CONVERT_PLANS_RANKS_DEEPSEEK_MP_PLAN_H
#define TSR_CONVERT_PLANS_RANKS_DEEPSEEK_MP_PLAN_H

#include "convert/plan/plan.h"

typedef struct tsr_deepseek_mp_options {
    uint32_t ranks;
    bool keep_mtp; /* keep the layers from num_hidden_layers on, for which the code has no place */
} tsr_deepseek_mp_options;

/* TSR_E_UNSUPPORTED: a tensor that DeepSeek's code has no name for. TSR_E_SHAPE: a dimension, or the number of experts,
 * that the ranks do not divide, or a cut through a block, with the numbers that would work. On failure *plan is empty.
 */
tsr_status tsr_deepseek_mp_plan(tsr_plan *plan, const tsr_checkpoint *const *source,
                                const tsr_deepseek_mp_options *options, tsr_err *err) TSR_WARN_UNUSED;

/* The file next to the ranks that holds config.json. convert.py does not copy it, and DeepSeek's code does not read
 * it, but the way back needs it. */
#define TSR_DEEPSEEK_MANIFEST "tessera-deepseek-mp.json"

/* The way back: one checkpoint under Hugging Face's names from the files of all n ranks, which are sources[0 .. n),
 * each opened by itself (tsr_checkpoint_open_shard). `config` is the text of its config.json; NULL: that of the
 * manifest. TSR_E_MISMATCH: ranks that are not of one model. TSR_E_FORMAT: no configuration, a tensor that is missing,
 * or a configuration of another model. On failure *plan is empty. */
tsr_status tsr_from_deepseek_mp_plan(tsr_plan *plan, const tsr_checkpoint *const *sources, size_t n, const char *config,
                                     size_t config_size, uint64_t max_shard_bytes, tsr_err *err) TSR_WARN_UNUSED;

#endif
