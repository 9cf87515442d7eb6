"""Small models of each family for the oracle of the forward pass: sizes, configurations, names of norms and routers."""

from indexer_oracle import BLOCKS, INDEXER

HIDDEN, HEADS, KV_HEADS, DIM, INNER, LAYERS, VOCABULARY, EXPERTS, CHOSEN, EPS = 64, 4, 2, 16, 96, 3, 97, 8, 3, 1e-6
BASE = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
        "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "rms_norm_eps": EPS, "rope_theta": 500.0,
        "hidden_act": "silu", "num_experts_per_tok": CHOSEN}
DSA = {"q_lora_rank": 48, "qk_rope_head_dim": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True, **INDEXER}
DSA_TRAITS = {"latent", "experts", "shared", "sigmoid", "indexer"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
WINDOW = 4
TYPES = ["full_attention", "sliding_attention", "full_attention"]
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": WINDOW, "query_pre_attn_scalar": 40, "tie_word_embeddings": True}
NORMS = {"before": ("input_layernorm", None, "post_attention_layernorm", None),
         "after": (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
         "parallel": ("input_layernorm", None, None, None),
         "gemma4": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
         "gemma": ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
         "one block": ("norm", None, "norm", None),
         "glm": ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")}
# Routers: names below a layer of the weight and of the bias of the choice.
ROUTERS = {"mixtral": ("block_sparse_moe.gate", None), "minimax_m2": ("block_sparse_moe.gate", "block_sparse_moe.e_score_correction_bias"),
           "minimax_m3_vl": ("block_sparse_moe.gate", "block_sparse_moe.e_score_correction_bias"),
           "ernie4_5_moe": ("mlp.gate", "mlp.moe_statics.e_score_correction_bias"), "exaone_moe": ("mlp.gate", "mlp.e_score_correction_bias"),
           "hunyuan_v1_moe": ("mlp.gate.wg", None), "hy_v3": ("mlp.router.gate", "mlp.expert_bias"),
           "granitemoeshared": ("block_sparse_moe.router.layer", None), "granitemoehybrid": ("block_sparse_moe.router.layer", None),
           "gemma4_text": ("router.proj", None), "kimi_linear": ("block_sparse_moe.gate", "block_sparse_moe.gate.e_score_correction_bias"), "nemotron_h": ("mixer.gate", "mixer.gate.e_score_correction_bias")}
K_HEADS, V_HEADS, K_DIM, V_DIM, TAPS = 2, 4, 8, 12, 4
DELTA = {"linear_num_key_heads": K_HEADS, "linear_num_value_heads": V_HEADS, "linear_key_head_dim": K_DIM, "linear_value_head_dim": V_DIM,
         "linear_conv_kernel_dim": TAPS, "partial_rotary_factor": 0.5}
DELTA_TYPES = ["linear_attention", "full_attention", "linear_attention"]
M_HEADS, GROUPS, STATE, M_DIM = 4, 2, 6, 32
MAMBA = {"mamba_n_heads": M_HEADS, "mamba_n_groups": GROUPS, "mamba_d_state": STATE, "mamba_expand": 2, "mamba_d_conv": TAPS,
         "time_step_limit": [0.0, {"__float__": "Infinity"}]}
NEMOTRON = {"mamba_num_heads": M_HEADS, "n_groups": GROUPS, "ssm_state_size": STATE, "mamba_head_dim": M_DIM, "conv_kernel": TAPS,
            "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "time_step_min": 0.5, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "layer_norm_epsilon": EPS}
KIMI_HEADS, KIMI_DIM = 4, 8
KIMI = {"model_type": "kimi_linear", "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        "traits": {"latent", "kimi", "experts", "shared", "sigmoid"}}
GLOBAL_DIM, GLOBAL_KV = 24, 1
GEMMA4 = {"model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": WINDOW, "layer_types": TYPES,
          "tie_word_embeddings": True, "final_logit_softcapping": 3.0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
          "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 900.0},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}
GEMMA4_TRAITS = {"gemma4", "tied", "head norms"}
GRANITE = {"embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.22, "logits_scaling": 8.0}
# "traits" are the tensors that a family has.
FAMILIES = {
    "llama": {"model_type": "llama", "rope_scaling": LLAMA3, "traits": set()},
    "mistral": {"model_type": "mistral", "rope_scaling": {"type": "linear", "factor": 4.0}, "traits": set()},
    "mistral, window": {"model_type": "mistral", "sliding_window": WINDOW, "traits": set()},
    "gemma2": {"model_type": "gemma2", **GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "traits": {"gemma", "tied"}},
    "gemma3_text": {"model_type": "gemma3_text", **GEMMA, "layer_types": TYPES, "rope_local_base_freq": 50.0,
                    "traits": {"gemma", "tied", "head norms"}},
    "gemma3_text, pattern": {"model_type": "gemma3_text", **GEMMA, "sliding_window_pattern": 2, "rope_local_base_freq": 50.0,
                             "traits": {"gemma", "tied", "head norms"}},
    "gpt_oss": {"model_type": "gpt_oss", "sliding_window": WINDOW, "layer_types": TYPES, "attention_bias": True, "intermediate_size": INNER,
                "swiglu_limit": 2.0, "num_local_experts": EXPERTS, "traits": {"bias", "stacks"}},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "traits": {"bias", "tied"}},
    "qwen2, later window": {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW, "traits": {"bias"}},
    "qwen2_moe": {"model_type": "qwen2_moe", "norm_topk_prob": False, "traits": {"bias", "experts", "gated shared"}},
    "mixtral": {"model_type": "mixtral", "norm_topk_prob": True, "traits": {"experts"}},
    "glm4_moe": {"model_type": "glm4_moe", "partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
                 "norm_topk_prob": True, "traits": {"bias", "head norms", "experts", "shared", "sigmoid"}},
    "qwen3": {"model_type": "qwen3", "traits": {"head norms"}},
    "qwen3_moe": {"model_type": "qwen3_moe", "norm_topk_prob": True, "traits": {"head norms", "experts"}},
    "deepseek_v2": {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                    "routed_scaling_factor": 2.0, "norm_topk_prob": False, "traits": {"latent", "experts", "shared"}},
    "deepseek_v3": {"model_type": "deepseek_v3", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
                    "norm_topk_prob": True, "traits": {"latent", "experts", "shared", "sigmoid"}},
    "deepseek_v32": {"model_type": "deepseek_v32", **DSA, "traits": DSA_TRAITS},
    "deepseek_v32, short": {"model_type": "deepseek_v32", **DSA, "index_topk": 9, "layer_types": ["deepseek_sparse_attention"] * LAYERS,
                            "traits": DSA_TRAITS},
    "glm_moe_dsa": {"model_type": "glm_moe_dsa", **DSA, "indexer_types": ["full", "shared", "full"], "indexer_rope_interleave": True,
                    "traits": DSA_TRAITS | {"adjacent"}},
    "glm_moe_dsa, frequency": {"model_type": "glm_moe_dsa", **DSA, "index_topk_freq": 2, "index_skip_topk_offset": 1,
                               "traits": DSA_TRAITS | {"adjacent"}},
    "minimax_m2": {"model_type": "minimax_m2", "rotary_dim": 8, "norm_topk_prob": True, "scoring_func": "sigmoid",
                   "traits": {"wide norms", "experts", "sigmoid"}},
    "minimax_m3_vl": {"model_type": "minimax_m3_vl", "hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 2.0, "rotary_dim": 8,
                      "routed_scaling_factor": 2.0, "norm_topk_prob": True, "scoring_func": "sigmoid", "use_gemma_norm": True,
                      "qk_norm_type": "per_head", "sparse_attention_config": BLOCKS,
                      "traits": {"gain from 1", "head norms", "experts", "shared", "sigmoid", "clamped", "blocks"}},
    "mimo_v2_flash": {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1, 1], "sliding_window": WINDOW - 1,
                      "sliding_window_size": WINDOW - 1, "swa_num_key_value_heads": 4, "v_head_dim": 12, "attention_value_scale": 0.6,
                      "partial_rotary_factor": 0.51, "swa_rope_theta": 50.0, "norm_topk_prob": True, "routed_scaling_factor": None,
                      "layernorm_epsilon": EPS, "traits": {"experts", "sigmoid"}},
    "glm4_moe_lite": {"model_type": "glm4_moe_lite", "routed_scaling_factor": 1.8, "norm_topk_prob": True, "rope_interleave": True,
                      "traits": {"latent", "experts", "shared", "sigmoid"}},
    "mistral4": {"model_type": "mistral4", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
                 "rope_parameters": {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 3},
                 "traits": {"latent", "experts", "shared", "paired", "language model"}},
    "arcee": {"model_type": "arcee", "hidden_act": "relu2", "traits": {"ungated"}},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0, 1], "traits": set()},
    "smollm3, interval": {"model_type": "smollm3", "no_rope_layer_interval": 2, "traits": set()},
    "ernie4_5_moe": {"model_type": "ernie4_5_moe", "moe_k": CHOSEN, "norm_topk_prob": True,
                     "traits": {"adjacent", "bias", "experts", "shared", "choice bias", "head bias"}},
    "phi3": {"model_type": "phi3", "partial_rotary_factor": 0.5, "sliding_window": WINDOW, "traits": {"fused"}},
    "glm4": {"model_type": "glm4", "partial_rotary_factor": 0.5, "traits": {"adjacent", "bias", "glm", "fused MLP"}},
    "olmo2": {"model_type": "olmo2", "traits": {"after", "wide norms"}},
    "olmo3": {"model_type": "olmo3", "sliding_window": WINDOW, "layer_types": TYPES, "rope_scaling": LLAMA3, "traits": {"after", "wide norms"}},
    "exaone4": {"model_type": "exaone4", "sliding_window": WINDOW, "layer_types": TYPES, "traits": {"after", "head norms"}},
    "exaone_moe": {"model_type": "exaone_moe", "sliding_window": WINDOW, "layer_types": TYPES, "norm_topk_prob": True,
                   "routed_scaling_factor": 2.5, "traits": {"head norms", "experts", "shared", "sigmoid"}},
    "hunyuan_v1_dense": {"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "alpha": 1000.0}, "traits": {"late norms"}},
    "hunyuan_v1_moe": {"model_type": "hunyuan_v1_moe", "moe_topk": CHOSEN, "norm_topk_prob": True, "traits": {"late norms", "experts", "shared"}},
    "hy_v3": {"model_type": "hy_v3", "router_scaling_factor": 2.5, "norm_topk_prob": True,
              "traits": {"head norms", "experts", "shared", "sigmoid"}},
    "dots1": {"model_type": "dots1", "max_window_layers": 1, "sliding_window": WINDOW, "norm_topk_prob": True,
              "traits": {"head norms", "experts", "shared", "sigmoid"}},
    "qwen3_next": {"model_type": "qwen3_next", **DELTA, "layer_types": DELTA_TYPES, "norm_topk_prob": True,
                   "traits": {"gain from 1", "delta", "output gate", "head norms", "experts", "gated shared"}},
    "qwen3_5_text": {"model_type": "qwen3_5_text", **DELTA, "full_attention_interval": 2,
                     "traits": {"gain from 1", "delta", "output gate", "head norms", "parts"}},
    "qwen3_5_moe_text": {"model_type": "qwen3_5_moe_text", **DELTA, "layer_types": DELTA_TYPES, "norm_topk_prob": True,
                         "traits": {"gain from 1", "delta", "output gate", "head norms", "parts", "experts", "gated shared", "halves"}},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **DELTA, "layer_types": DELTA_TYPES, "norm_topk_prob": True,
                    "traits": {"gain from 1", "delta", "output gate", "head norms", "parts", "experts", "gated shared", "multimodal"}},
    "kimi_linear": {**KIMI, "linear_num_heads": KIMI_HEADS, "linear_head_dim": KIMI_DIM, "linear_conv_kernel_dim": TAPS,
                    "layer_types": DELTA_TYPES},
    "kimi_linear, released": {**KIMI, "moe_router_activation_func": "sigmoid", "num_experts_per_token": CHOSEN, "mla_use_nope": True,
                              "linear_attn_config": {"num_heads": KIMI_HEADS, "head_dim": KIMI_DIM, "short_conv_kernel_size": TAPS,
                                                     "kda_layers": [1, 3], "full_attn_layers": [2]}},
    "gemma4_text": {**GEMMA4, "global_head_dim": GLOBAL_DIM, "num_global_key_value_heads": GLOBAL_KV, "attention_k_eq_v": True,
                    "traits": GEMMA4_TRAITS},
    "gemma4_text, experts": {**GEMMA4, "per_layer_config": {"0": {"head_dim": GLOBAL_DIM}, "2": {"head_dim": GLOBAL_DIM}},
                             "top_k_experts": CHOSEN, "norm_topk_prob": True, "traits": GEMMA4_TRAITS | {"experts"}},
    "ministral3": {"model_type": "ministral3", "rope_parameters": {"type": "default", "llama_4_scaling_beta": 0.3,
                                                                   "original_max_position_embeddings": 3}, "traits": {"language model"}},
    "cohere": {"model_type": "cohere", "layer_norm_eps": EPS, "traits": {"parallel", "bias", "adjacent", "centered"}},
    "cohere2": {"model_type": "cohere2", "layer_norm_eps": EPS, "sliding_window": WINDOW, "sliding_window_pattern": 2, "logit_scale": 0.3,
                "traits": {"parallel", "adjacent", "centered", "tied"}},
    "granitemoehybrid": {"model_type": "granitemoehybrid", **GRANITE, **MAMBA, "layer_types": ["mamba", "attention", "mamba"],
                         "position_embedding_type": "nope", "norm_topk_prob": True, "traits": {"experts", "shared", "halves", "mamba", "no rope"}},
    "granitemoehybrid, RoPE": {"model_type": "granitemoehybrid", **GRANITE, **MAMBA, "layer_types": DELTA_TYPES,
                               "position_embedding_type": "rope", "norm_topk_prob": True, "traits": {"experts", "shared", "halves", "mamba"}},
    "nemotron_h": {"model_type": "nemotron_h", **NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention"],
                   "traits": {"one block", "ungated", "experts", "shared", "sigmoid", "mamba", "no rope"}},
    "nemotron_h, pattern": {"model_type": "nemotron_h", **NEMOTRON, "hybrid_override_pattern": "-M*",
                            "traits": {"one block", "ungated", "mamba", "no rope"}},
    "granitemoeshared": {"model_type": "granitemoeshared", **GRANITE, "norm_topk_prob": True, "traits": {"experts", "shared", "halves"}},
}
