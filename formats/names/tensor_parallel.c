/* The rules; the first match wins. */
#include "formats/names/tensor_parallel.h"

#include "common/glob.h"

#include <stddef.h>

static const tsr_tp_rule kRules[] = {
    /* Small tensors, and tensors that all heads share. */
    {"*norm.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*norm?.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.q_a_proj.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.kv_a_proj_with_mqa.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.indexer.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.gate.weight", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.gate.bias", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.e_score_correction_bias", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.router.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.shared_expert_gate.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.eh_proj.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.inv_freq", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.self_attn.sinks", TSR_TP_ROWS, TSR_TP_HEADS},
    /* Attention. */
    {"*.q_proj.*", TSR_TP_ROWS, TSR_TP_HEADS},
    {"*.k_proj.*", TSR_TP_ROWS, TSR_TP_KV_HEADS},
    {"*.v_proj.*", TSR_TP_ROWS, TSR_TP_KV_HEADS},
    {"*.q_b_proj.*", TSR_TP_ROWS, TSR_TP_HEADS},
    {"*.kv_b_proj.*", TSR_TP_ROWS, TSR_TP_HEADS},
    {"*.o_proj.weight", TSR_TP_COLUMNS, TSR_TP_HEADS},
    {"*.o_proj.bias", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.self_attn.g_proj.weight", TSR_TP_ROWS, TSR_TP_HEADS},
    {"*.self_attn.out_proj.weight", TSR_TP_COLUMNS, TSR_TP_HEADS},
    /* State-space layers, as vLLM's mamba_mixer2.py divides them. */
    {"*.mamba.out_proj.weight", TSR_TP_COLUMNS, TSR_TP_FEATURES},
    {"*.mixer.out_proj.weight", TSR_TP_COLUMNS, TSR_TP_FEATURES},
    /* DeepSeek-V4, cut as in its convert.py. */
    {"*.hc_*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.attn.wq_a.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.attn.wkv.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.attn.compressor.*", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.attn.wq_b.*", TSR_TP_ROWS, TSR_TP_HEADS},
    {"*.attn.wo_a.*", TSR_TP_ROWS, TSR_TP_HEADS},
    {"*.attn.wo_b.weight", TSR_TP_COLUMNS, TSR_TP_HEADS},
    /* Feed-forward: dense, shared and routed experts. */
    {"*.experts.gate_up_proj", TSR_TP_GATE_UP, TSR_TP_FEATURES},
    {"*.experts.down_proj", TSR_TP_COLUMNS, TSR_TP_FEATURES},
    {"*.gate_up_proj.weight", TSR_TP_GATE_UP, TSR_TP_FEATURES},
    {"*.gate_proj.*", TSR_TP_ROWS, TSR_TP_FEATURES},
    {"*.up_proj.*", TSR_TP_ROWS, TSR_TP_FEATURES},
    {"*.down_proj.weight", TSR_TP_COLUMNS, TSR_TP_FEATURES},
    {"*.down_proj.bias", TSR_TP_REPLICATE, TSR_TP_FEATURES},
    {"*.w1.weight", TSR_TP_ROWS, TSR_TP_FEATURES},
    {"*.w3.weight", TSR_TP_ROWS, TSR_TP_FEATURES},
    {"*.w2.weight", TSR_TP_COLUMNS, TSR_TP_FEATURES},
    /* The vocabulary. */
    {"*embed_tokens.weight", TSR_TP_ROWS, TSR_TP_FEATURES},
    {"*lm_head.*", TSR_TP_ROWS, TSR_TP_FEATURES},
    {"*.shared_head.head.weight", TSR_TP_ROWS, TSR_TP_FEATURES},
    {"*", TSR_TP_UNKNOWN, TSR_TP_FEATURES},
};

const tsr_tp_rule *tsr_tp_find_rule(const char *name)
{
    size_t i = 0;
    while (!tsr_glob_match(kRules[i].pattern, name))
        i++;
    return &kRules[i];
}
