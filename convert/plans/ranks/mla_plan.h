/* Declares the plan that splits kv_b_proj for absorbed multi-head latent attention, in the form that a consumer has in
 * memory.
 *
 * docs/conversions.md has the table of names, shapes and orders. Sources: SGLang deepseek_weight_loader.py, vLLM's MLA
 * common, TensorRT-LLM modeling_deepseekv3.py, llama.cpp convert_hf_to_gguf.py. */
#pragma once

#include "convert/ops/mla/mla_op.h"
#include "convert/plan/plan.h"

typedef enum tsr_mla_consumer { TSR_MLA_SGLANG, TSR_MLA_VLLM, TSR_MLA_TRTLLM, TSR_MLA_LLAMACPP } tsr_mla_consumer;

typedef struct tsr_mla_options {
    tsr_mla_consumer consumer;
    tsr_mla_form form;
    bool fold;      /* fold into q_b_proj (or q_proj) and o_proj instead of writing the parts */
    bool drop_kv_b; /* do not keep the unabsorbed weight */
    uint64_t max_shard_bytes;
} tsr_mla_options;

/* Makes the plan for *source. TSR_E_SHAPE: the shape of kv_b_proj does not match config.json, or heads do not end at
 * block boundaries; the message has the arithmetic. TSR_E_UNSUPPORTED: a model without MLA. On failure *plan is
 * empty. */
tsr_status tsr_mla_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_mla_options *options,
                        tsr_err *err);
