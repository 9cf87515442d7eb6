/* The rules; the first match wins. */
#include "formats/model/tensor_parallel.h"

#include "common/glob.h"

#include <stddef.h>

static const tsr_parallel_rule kRules[] = {
    /* What is small, or shared by all heads. */
    {"*norm.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*norm?.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.q_a_proj.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.kv_a_proj_with_mqa.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.indexer.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.gate.weight", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.gate.bias", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.gate.e_score_correction_bias", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.router.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.shared_expert_gate.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.eh_proj.*", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.inv_freq", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.self_attn.sinks", TSR_PARALLEL_ROWS, TSR_PARALLEL_HEADS},
    /* Attention. */
    {"*.q_proj.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_HEADS},
    {"*.k_proj.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_KV_HEADS},
    {"*.v_proj.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_KV_HEADS},
    {"*.q_b_proj.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_HEADS},
    {"*.kv_b_proj.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_HEADS},
    {"*.o_proj.weight", TSR_PARALLEL_COLUMNS, TSR_PARALLEL_HEADS},
    {"*.o_proj.bias", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    /* Feed-forward: dense, shared and routed experts. */
    {"*.experts.gate_up_proj", TSR_PARALLEL_GATE_UP, TSR_PARALLEL_FEATURES},
    {"*.experts.down_proj", TSR_PARALLEL_COLUMNS, TSR_PARALLEL_FEATURES},
    {"*.gate_up_proj.weight", TSR_PARALLEL_GATE_UP, TSR_PARALLEL_FEATURES},
    {"*.gate_proj.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_FEATURES},
    {"*.up_proj.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_FEATURES},
    {"*.down_proj.weight", TSR_PARALLEL_COLUMNS, TSR_PARALLEL_FEATURES},
    {"*.down_proj.bias", TSR_PARALLEL_REPLICATE, TSR_PARALLEL_FEATURES},
    {"*.w1.weight", TSR_PARALLEL_ROWS, TSR_PARALLEL_FEATURES},
    {"*.w3.weight", TSR_PARALLEL_ROWS, TSR_PARALLEL_FEATURES},
    {"*.w2.weight", TSR_PARALLEL_COLUMNS, TSR_PARALLEL_FEATURES},
    /* The vocabulary. */
    {"*embed_tokens.weight", TSR_PARALLEL_ROWS, TSR_PARALLEL_FEATURES},
    {"*lm_head.*", TSR_PARALLEL_ROWS, TSR_PARALLEL_FEATURES},
    {"*.shared_head.head.weight", TSR_PARALLEL_ROWS, TSR_PARALLEL_FEATURES},
    {"*", TSR_PARALLEL_UNKNOWN, TSR_PARALLEL_FEATURES},
};

const tsr_parallel_rule *tsr_parallel_find(const char *name)
{
    size_t i = 0;
    while (!tsr_glob_match(kRules[i].pattern, name))
        i++;
    return &kRules[i];
}
