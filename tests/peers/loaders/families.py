"""Small random models of real families, written by transformers' own classes: python families.py FOLDER [NAME...]"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch
import transformers
from safetensors.torch import load_file, save_file

# 8 heads and 1024 columns: whole blocks of 128 for each of 8 ranks. Experts of 256 have those for 2, and groups of 32 for 8.
BASE = dict(hidden_size=256, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2,
            head_dim=128, vocab_size=512, max_position_embeddings=512, tie_word_embeddings=False, pad_token_id=0,
            bos_token_id=1, eos_token_id=2)
MOE = dict(num_experts=16, num_experts_per_tok=2, moe_intermediate_size=256)
MLA = dict(q_lora_rank=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=16,
           num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=256, first_k_dense_replace=1, n_group=1,
           topk_group=1, num_key_value_heads=8, moe_layer_freq=1, scoring_func="softmax",
           rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                            "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 256})
SPARSE = ["dense", "sparse"]
DSA = dict(MLA, topk_method="noaux_tc", scoring_func="sigmoid", head_dim=64, index_n_heads=8, index_head_dim=128, index_topk=64, mlp_layer_types=SPARSE,
           layer_types=["deepseek_sparse_attention"] * 2)
LINEAR = dict(linear_num_value_heads=8, linear_num_key_heads=8, linear_key_head_dim=128, linear_value_head_dim=128,
              layer_types=["linear_attention", "full_attention"], full_attention_interval=2)

FAMILIES = {
    "llama": ("LlamaConfig", {}),
    "llama_tied": ("LlamaConfig", dict(tie_word_embeddings=True, num_key_value_heads=8)),
    "mistral": ("MistralConfig", {}),
    "phi3": ("Phi3Config", {}),
    "qwen2": ("Qwen2Config", dict(hidden_size=1024)),
    "qwen3": ("Qwen3Config", {}),
    "mixtral": ("MixtralConfig", dict(hidden_size=1024, num_local_experts=8, num_experts_per_tok=2)),
    "mixtral_4": ("MixtralConfig", dict(hidden_size=1024, num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=8)),
    "ernie4_5_moe_4": ("Ernie4_5_MoeConfig", dict(moe_num_experts=4, moe_k=2, moe_intermediate_size=1024, moe_num_shared_experts=1,
                                                  moe_layer_start_index=1, use_bias=False, num_key_value_heads=8)),
    "qwen2_moe": ("Qwen2MoeConfig", dict(MOE, hidden_size=1024, shared_expert_intermediate_size=256)),
    "qwen3_moe": ("Qwen3MoeConfig", MOE),
    "qwen3_moe_1024": ("Qwen3MoeConfig", dict(MOE, moe_intermediate_size=1024)),
    "qwen3_moe_192": ("Qwen3MoeConfig", dict(MOE, moe_intermediate_size=192)),
    "qwen3_moe_384": ("Qwen3MoeConfig", dict(MOE, moe_intermediate_size=384)),
    "qwen3_moe_448": ("Qwen3MoeConfig", dict(MOE, hidden_size=448, moe_intermediate_size=384)),
    "deepseek_v2": ("DeepseekV2Config", MLA),
    "deepseek_v3": ("DeepseekV3Config", dict(MLA, topk_method="noaux_tc", scoring_func="sigmoid")),
    "qwen3_next": ("Qwen3NextConfig", dict(MOE, **LINEAR, shared_expert_intermediate_size=256)),
    "gpt_oss": ("GptOssConfig", dict(num_local_experts=16, num_experts_per_tok=2, intermediate_size=512, swiglu_limit=7.0)),
    "llama4": ("Llama4TextConfig", dict(num_local_experts=16, intermediate_size=256, intermediate_size_mlp=512,
                                        interleave_moe_layer_step=1)),
    "deepseek_v4": ("DeepseekV4Config", dict(
        num_key_value_heads=1, q_lora_rank=128, n_routed_experts=16, num_experts_per_tok=2, moe_intermediate_size=256, o_groups=8,
        o_lora_rank=128, index_n_heads=8, index_head_dim=128, num_nextn_predict_layers=0,
        layer_types=["compressed_sparse_attention", "heavily_compressed_attention"])),
    "deepseek_v32": ("DeepseekV32Config", dict(DSA, first_k_dense_replace=1)),
    "glm_moe_dsa": ("GlmMoeDsaConfig", dict(DSA, first_k_dense_replace=1)),
    "hy_v4": ("HYV4Config", dict(DSA, indexer_types=["full", "full"])),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", dict(MLA, head_dim=64, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, mlp_layer_types=SPARSE)),
    "longcat_flash": ("LongcatFlashConfig", dict(MLA, num_layers=2, num_hidden_layers=4, ffn_hidden_size=1024, expert_ffn_hidden_size=256, moe_topk=2,
                                                 zero_expert_num=0, zero_expert_type="identity", mla_scale_q_lora=True, mla_scale_kv_lora=True, head_dim=64,
                                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    "kimi_linear": ("KimiLinearConfig", dict(MOE, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_key_value_heads=8,
                                             num_experts_per_token=2, num_shared_experts=1, linear_num_heads=8, mlp_layer_types=["sparse"] * 2, first_k_dense_replace=0, moe_layer_freq=1, mla_use_nope=True,
                                             layer_types=["linear_attention", "full_attention"])),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", dict(moe_num_experts=16, moe_k=2, moe_intermediate_size=256, moe_num_shared_experts=1,
                                                moe_layer_start_index=1, use_bias=False)),
    "afmoe": ("AfmoeConfig", dict(MOE, num_dense_layers=1, num_shared_experts=1, score_func="sigmoid", route_norm=True, n_group=1, topk_group=1,
                                  layer_types=["sliding_attention", "full_attention"])),
    "dots1": ("Dots1Config", dict(num_key_value_heads=8, moe_intermediate_size=256, n_routed_experts=16, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1)),
    "exaone_moe": ("ExaoneMoeConfig", dict(MOE, is_moe_layer=[False, True], num_shared_experts=1, mlp_layer_types=SPARSE, layer_types=["sliding_attention", "full_attention"])),
    "hunyuan_v1_moe": ("HunYuanMoEV1Config", dict(num_experts=16, moe_topk=2, intermediate_size=256, moe_intermediate_size=256,
                                                    use_mixed_mlp_moe=True, use_qk_norm=True,
                                                    num_shared_expert=1)),
    "hy_v3": ("HYV3Config", dict(MOE, first_k_dense_replace=1, qk_norm=True, route_norm=True, expert_hidden_dim=256, num_shared_experts=1, mlp_layer_types=SPARSE)),
    "laguna": ("LagunaConfig", dict(MOE, shared_expert_intermediate_size=256, num_attention_heads_per_layer=[8, 8], mlp_layer_types=SPARSE,
                                    layer_types=["sliding_attention", "full_attention"])),
    "mellum": ("MellumConfig", dict(moe_intermediate_size=256, num_local_experts=16, num_experts_per_tok=2, mlp_layer_types=["sparse"] * 2,
                                    layer_types=["sliding_attention", "full_attention"])),
    "mimo_v2_flash": ("MiMoV2FlashConfig", dict(moe_intermediate_size=256, n_routed_experts=16, num_experts_per_tok=2, v_head_dim=128, hybrid_layer_pattern=[0, 1],
                                                moe_layer_freq=[0, 1], swa_num_attention_heads=8, swa_num_key_value_heads=2, swa_head_dim=128, swa_v_head_dim=128,
                                                swa_rope_theta=10000, add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, layernorm_epsilon=1e-5,
                                                scoring_func="sigmoid", topk_method="noaux_tc", sliding_window_size=128,
                                                mlp_layer_types=SPARSE, layer_types=["full_attention", "sliding_attention"])),
    "minimax_m2": ("MiniMaxM2Config", dict(num_local_experts=16, num_experts_per_tok=2, intermediate_size=256, rotary_dim=64, use_qk_norm=True,
                                           qk_norm_type="per_layer", use_routing_bias=True, scoring_func="sigmoid")),
    "olmoe": ("OlmoeConfig", dict(num_experts=16, num_experts_per_tok=2, intermediate_size=256, hidden_size=1024, num_key_value_heads=8)),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", dict(MOE, **LINEAR, shared_expert_intermediate_size=256)),
    "solar_open": ("SolarOpenConfig", dict(num_key_value_heads=8, moe_intermediate_size=256, n_routed_experts=16, num_experts_per_tok=2, n_shared_experts=1)),
    "cohere2_moe": ("Cohere2MoeConfig", dict(num_experts=16, num_experts_per_tok=2, intermediate_size=256, mlp_layer_types=["sparse"] * 2,
                                             layer_types=["sliding_attention", "full_attention"])),
    "flex_olmo": ("FlexOlmoConfig", dict(num_experts=16, num_experts_per_tok=2, intermediate_size=256, hidden_size=1024, num_key_value_heads=8)),
    "jamba": ("JambaConfig", dict(num_experts=16, num_experts_per_tok=2, intermediate_size=256, expert_layer_period=2, expert_layer_offset=1,
                                  attn_layer_period=2, attn_layer_offset=1, mamba_d_state=16, mamba_dt_rank=128)),
    "lfm2_moe": ("Lfm2MoeConfig", dict(MOE, hidden_size=1024, num_dense_layers=1, layer_types=["conv", "full_attention"])),
    "nemotron_h": ("NemotronHConfig", dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], n_routed_experts=16, num_experts_per_tok=2,
                                           moe_intermediate_size=256, moe_shared_expert_intermediate_size=256, mamba_num_heads=8, mamba_head_dim=64,
                                           n_groups=8, ssm_state_size=16)),
    "granitemoe": ("GraniteMoeConfig", dict(num_local_experts=16, num_experts_per_tok=2, intermediate_size=256)),
    "gemma3": ("Gemma3TextConfig", {}),
    "olmo2": ("Olmo2Config", dict(hidden_size=1024)),
    "glm4_moe": ("Glm4MoeConfig", dict(moe_intermediate_size=256, n_routed_experts=16, num_experts_per_tok=2,
                                       first_k_dense_replace=1)),
}

# Members of config.json that releases have, and that transformers replaces by others.
AS_RELEASED = {"kimi_linear": {"linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2], "head_dim": 128, "num_heads": 8,
                                                      "short_conv_kernel_size": 4}},
               "nemotron_h": {"layers_block_type": None, "num_hidden_layers": 4, "hybrid_override_pattern": "ME*-"},
               "mimo_v2_flash": {"rope_parameters": None, "rope_theta": 10000, "partial_rotary_factor": 0.334}}


def make(name, folder, **other):
    config_class, extra = FAMILIES[name]
    config = getattr(transformers, config_class)(**{**BASE, **extra, **other})
    config.dtype = torch.bfloat16
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.05)
    model.save_pretrained(folder)
    path = Path(folder) / "config.json"
    members = json.loads(path.read_text()) | AS_RELEASED.get(name, {})
    path.write_text(json.dumps({key: value for key, value in members.items() if value is not None}))


def make_gpt_oss(folder, **other):
    """Makes gpt-oss in the form of its release: experts in MXFP4."""
    make("gpt_oss", folder, **other)
    path, config = Path(folder) / "model.safetensors", Path(folder) / "config.json"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, cols, rows = tensors.pop(name).shape
        tensors[name + "_blocks"] = torch.randint(0, 256, (experts, rows, cols // 32, 16), dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(119, 124, (experts, rows, cols // 32), dtype=torch.uint8)
    save_file(tensors, path, {"format": "pt"})
    config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": {
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                            "model.embed_tokens", "lm_head"]}}))


def make_deepseek_v4(folder):
    """Makes DeepSeek-V4 with the names of its release: experts in MXFP4, all other matrices except routers and compressors
    in FP8."""
    make("deepseek_v4", folder)
    path, config = Path(folder) / "model.safetensors", Path(folder) / "config.json"
    tensors = {name.removeprefix("model.").replace("embed_tokens", "embed").replace("hc_head.hc_", "hc_head_")
               .replace(".attn.norm.", ".attn.kv_norm."): t
               for name, t in load_file(path).items()}
    for name in [name for name in tensors if name.endswith(".weight")]:
        module, (rows, cols) = name.removesuffix(".weight"), (*tensors[name].shape, 1)[:2]
        if ".experts." in name:
            tensors[name] = torch.randint(-128, 128, (rows, cols // 2), dtype=torch.int8)
            scale = torch.randint(119, 124, (rows, cols // 32), dtype=torch.uint8)
        elif module.rpartition(".")[2] in ("wq_a", "wq_b", "wo_a", "wo_b", "w1", "w2", "w3") or module.endswith("attn.wkv"):
            tensors[name] = (tensors[name].float() * 512).to(torch.float8_e4m3fn)
            scale = torch.randint(116, 120, (-(-rows // 128), -(-cols // 128)), dtype=torch.uint8)
        else:
            continue
        tensors[f"{module}.scale"] = scale.view(torch.float8_e8m0fnu)
    save_file(tensors, path, {"format": "pt"})
    whole = json.loads(config.read_text())
    for key in ("rope_parameters", "layer_types", "compress_rates"):  # which transformers makes of these two:
        del whole[key]
    config.write_text(json.dumps({
        **whole, "expert_dtype": "fp4", "compress_ratios": [4, 128], "topk_method": "noaux_tc", "num_hash_layers": 2,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 256, "beta_fast": 32, "beta_slow": 1},
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                                "weight_block_size": [128, 128]}}))


# Widths that loaders pad. Of 15 blocks the last rank of 2, 4 or 8 gets fewer, as of the 90 in the releases; of 11 blocks the
# last two of 8 get none.
PADDED = dict(hidden_size=288, num_key_value_heads=8)
CODED = {"gpt_oss_mxfp4": make_gpt_oss, "deepseek_v4": make_deepseek_v4,
         "gpt_oss_mxfp4_480": lambda folder: make_gpt_oss(folder, intermediate_size=480, **PADDED),
         "gpt_oss_mxfp4_352": lambda folder: make_gpt_oss(folder, intermediate_size=352, **PADDED)}

if __name__ == "__main__":
    for name in sys.argv[2:] or (*FAMILIES, *CODED):
        try:
            CODED.get(name, lambda folder: make(name, folder))(f"{sys.argv[1]}/{name}")
        except Exception as e:  # a family that this version lacks
            print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr)
