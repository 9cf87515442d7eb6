#!/usr/bin/env python3
"""Hidden states and logits of transformers' models, run in FP32 on the CPU, equal tessera's.

Makes small random models of each family, records what every layer leaves behind and the logits, and holds them to
`tessera verify forward --reference`, which recomputes each layer in double. Needs torch, transformers and safetensors;
no GPU:

    python3 tests/gpu/interop_forward.py --tessera build/cli/tessera
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import torch
import transformers
from safetensors.torch import save_file

SHAPE = (2, 33)
COMMON = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4,
          "max_position_embeddings": 4096, "initializer_range": 0.1, "attn_implementation": "eager"}
GROUPED = COMMON | {"num_key_value_heads": 2, "head_dim": 32}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
LATENT = COMMON | {"num_key_value_heads": 4, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
                   "kv_lora_rank": 64, "q_lora_rank": 96, "moe_intermediate_size": 64, "n_shared_experts": 1,
                   "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
                   "tie_word_embeddings": False, "rope_parameters": YARN}
INDEXED = {k: v for k, v in LATENT.items() if k != "tie_word_embeddings"} | {
    "head_dim": 16, "n_routed_experts": 16, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "index_topk": 8, "index_n_heads": 16,
    "index_head_dim": 32}
UNSCALED = {"rope_type": "default", "rope_theta": 10000.0}
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
SIGMOID = EXPERTS | {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.0,
                     "norm_topk_prob": True, "n_group": 1, "topk_group": 1}
GRANITE = {"embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.22, "logits_scaling": 8.0}
PARTIAL = {"rope_parameters": UNSCALED | {"partial_rotary_factor": 0.5}}
DELTA = PARTIAL | {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "linear_num_key_heads": 2,
                   "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 4}
MAMBA = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 24, "mamba_d_head": 64, "mamba_expand": 2, "mamba_proj_bias": True}
# Differences from GROUPED of families whose class is found by the name.
FAMILIES = {
    "minimax_m2": PARTIAL | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "minimax_m3_vl_text": PARTIAL | {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64, "dense_intermediate_size": 192,
                           "shared_intermediate_size": 96, "rotary_dim": 16, "mlp_layer_types": ["dense", "sparse", "sparse"],
                           "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"], "index_n_heads": 2,
                           "index_head_dim": 32, "index_block_size": 4, "index_topk_blocks": 3, "bos_token_id": 0, "eos_token_id": 1},
    "mimo_v2_flash": EXPERTS | {"n_routed_experts": 8, "norm_topk_prob": True, "v_head_dim": 24, "sliding_window": 8, "layer_types": TYPES,
                                "mlp_layer_types": ["dense", "sparse", "sparse"], "rope_parameters": {
                                    t: UNSCALED | {"partial_rotary_factor": 0.51, "rope_theta": base}
                                    for t, base in (("full_attention", 50000.0), ("sliding_attention", 300.0))}},
    "seed_oss": {"attention_bias": True, "attention_out_bias": True},
    "internlm3": {"attention_bias": True, "mlp_bias": True},
    "iquestcoder": {},
    "ministral": {"sliding_window": 8, "layer_types": TYPES},
    "ministral3": {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8}},
    "arcee": {},
    "smollm3": {"no_rope_layers": [1, 0, 1], "pad_token_id": 0},
    "helium": {"rope_parameters": UNSCALED},
    "ernie4_5": {"use_bias": True, "tie_word_embeddings": False},
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1, "use_bias": True,
                     "tie_word_embeddings": False},
    "phi3": PARTIAL | {"sliding_window": 9, "pad_token_id": 0},
    "glm": PARTIAL | {"pad_token_id": 0},
    "glm4": PARTIAL | {"pad_token_id": 0},
    "cohere": {"attention_bias": True, "tie_word_embeddings": False, "pad_token_id": 0},
    "cohere2": {"sliding_window": 8, "layer_types": TYPES, "logit_scale": 0.3, "pad_token_id": 0},
    "olmo2": {},
    "olmo3": {"sliding_window": 8, "layer_types": TYPES,
              "rope_parameters": {"full_attention": YARN | {"mscale": None, "mscale_all_dim": None}, "sliding_attention": UNSCALED}},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": 8, "num_experts_per_tok": 2, "pad_token_id": 0},
    "exaone4": {"sliding_window": 8, "layer_types": TYPES},
    "exaone_moe": EXPERTS | {"sliding_window": 8, "layer_types": TYPES, "num_experts": 8, "num_shared_experts": 1},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}},
    "hunyuan_v1_moe": {"num_experts": 8, "moe_topk": 2},
    "hy_v3": EXPERTS | {"num_experts": 8, "num_shared_experts": 1, "router_scaling_factor": 1.5},
    "dots1": SIGMOID | {"sliding_window": 8, "layer_types": TYPES},
    "solar_open": SIGMOID,
    "mellum": EXPERTS | {"num_experts": 8, "sliding_window": 8, "layer_types": TYPES, "rope_parameters": {
        "full_attention": LLAMA3, "sliding_attention": UNSCALED}},
    "gemma4_text": {"global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
                    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window": 8, "enable_moe_block": True,
                    "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64, "final_logit_softcapping": 30.0},
    "granite": GRANITE,
    "granitemoe": GRANITE | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoeshared": GRANITE | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 96},
    "qwen3_next": DELTA | EXPERTS | {"num_experts": 8, "norm_topk_prob": True, "shared_expert_intermediate_size": 96, "mlp_only_layers": [0]},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA | EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 96},
    "granitemoehybrid": GRANITE | MAMBA | {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 96,
                                           "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "nemotron_h": EXPERTS | {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 24, "n_routed_experts": 8,
                             "moe_shared_expert_intermediate_size": 96, "mlp_bias": True, "use_bias": True, "n_group": 2, "topk_group": 1,
                             "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "routed_scaling_factor": 2.5},
    "kimi_linear": EXPERTS | {k: v for k, v in LATENT.items() if k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")}
    | {"num_key_value_heads": 4, "num_local_experts": 8, "linear_head_dim": 16, "linear_num_heads": 4, "pad_token_id": 0,
       "n_group": 2, "topk_group": 1, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
       "mlp_layer_types": ["sparse"] * 3},
    "deepseek_v32": INDEXED,
    "glm_moe_dsa": INDEXED | {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "shared", "full"]},
    "glm4_moe_lite": {k: v for k, v in LATENT.items() if k != "first_k_dense_replace"} | {"head_dim": 16, "n_routed_experts": 16, "norm_topk_prob": True},
    "sarvam_mla": LATENT | {"head_dim": 16, "q_lora_rank": None, "n_routed_experts": 16, "norm_topk_prob": True},
    "youtu": {k: v for k, v in LATENT.items() if k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")}
    | {"num_key_value_heads": 4, "head_dim": 16},
}


def make(model_type):
    return lambda: transformers.AutoConfig.for_model(model_type, **(GROUPED | FAMILIES[model_type]))


MODELS = {
    "Llama, llama3 RoPE": lambda: transformers.LlamaConfig(**GROUPED, rope_parameters=LLAMA3, attention_bias=True),
    "Llama, tied": lambda: transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "Mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=None),
    "Qwen2": lambda: transformers.Qwen2Config(**{k: v for k, v in GROUPED.items() if k != "head_dim"}),
    "Qwen3": lambda: transformers.Qwen3Config(**GROUPED),
    "Qwen3-MoE": lambda: transformers.Qwen3MoeConfig(**GROUPED, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
                                                     moe_intermediate_size=64, mlp_only_layers=[0]),
    "Qwen2, layers with a window": lambda: transformers.Qwen2Config(
        **{k: v for k, v in GROUPED.items() if k != "head_dim"}, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "Qwen2-MoE": lambda: transformers.Qwen2MoeConfig(
        **{k: v for k, v in GROUPED.items() if k != "head_dim"}, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
        shared_expert_intermediate_size=96, decoder_sparse_step=1),
    "Mixtral": lambda: transformers.MixtralConfig(**GROUPED, num_local_experts=8, num_experts_per_tok=2, sliding_window=9),
    "GLM-4 MoE": lambda: transformers.Glm4MoeConfig(
        **GROUPED, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=64, n_shared_experts=1, first_k_dense_replace=1,
        attention_bias=True, use_qk_norm=True, routed_scaling_factor=2.0, norm_topk_prob=True, n_group=1, topk_group=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    "Gemma 2": lambda: transformers.Gemma2Config(**GROUPED, sliding_window=8, query_pre_attn_scalar=24),
    "Gemma 3": lambda: transformers.Gemma3TextConfig(
        **GROUPED, sliding_window=8, query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **GROUPED, num_local_experts=8, num_experts_per_tok=2, sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                         "original_max_position_embeddings": 64, "rope_theta": 150000.0}),
    "DeepSeek-V3": lambda: transformers.DeepseekV3Config(**LATENT, n_routed_experts=16, routed_scaling_factor=2.5,
                                                         norm_topk_prob=True),
    "DeepSeek-V2": lambda: transformers.DeepseekV2Config(**LATENT, n_routed_experts=16, routed_scaling_factor=2.0,
                                                         topk_method="group_limited_greedy"),
    "Mistral 4, as released": lambda: transformers.Mistral3Config(
        text_config=LATENT | {"model_type": "mistral4", "n_routed_experts": 16, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
                              "pad_token_id": 0, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8}},
        vision_config={"model_type": "pixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": 28, "patch_size": 14}),
    "MiniMax-M3, as released": lambda: transformers.MiniMaxM3VLConfig(
        text_config=GROUPED | FAMILIES["minimax_m3_vl_text"],
        vision_config={"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}),
} | {model_type: make(model_type) for model_type in FAMILIES}


def record(config):
    """Returns (model, {name: tensor}) of one forward pass."""
    torch.manual_seed(1)
    text = config.get_text_config()
    multimodal = text is not config
    model = (transformers.AutoModelForImageTextToText if multimodal else transformers.AutoModelForCausalLM).from_config(config).float().eval()
    for name, p in model.named_parameters():
        if "norm" in name or name.endswith("scale"):
            torch.nn.init.uniform_(p, 0.5, 2.0)
        elif name.endswith((".bias", "_bias")) or name.endswith(".sinks"):
            torch.nn.init.normal_(p, std=0.5)
    for name, x in [*model.named_buffers(), *model.named_parameters()]:
        if "e_score_correction_bias" in name:
            torch.nn.init.uniform_(x, 0.0, 0.5)
        elif name.endswith("layer_scalar"):
            torch.nn.init.uniform_(x, 0.5, 2.0)
    states = {"input_ids": torch.randint(2, text.vocab_size, SHAPE)}

    def keep(layer):
        def hook(module, args, output):
            states[f"hidden_states.{layer + 1}"] = output[0] if isinstance(output, tuple) else output
        return hook

    def keep_input(module, args, kwargs):
        states["hidden_states.0"] = args[0] if args else kwargs["hidden_states"]

    layers = (model.model.language_model if multimodal else model.model).layers
    hooks = [layer.register_forward_hook(keep(i)) for i, layer in enumerate(layers)]
    hooks.append(layers[0].register_forward_pre_hook(keep_input, with_kwargs=True))
    with torch.no_grad():
        states["logits"] = model(states["input_ids"]).logits
    for hook in hooks:
        hook.remove()
    return model, {name: x.detach().contiguous().clone() for name, x in states.items()}


def check(tessera, name, config):
    model, states = record(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        captured = pathlib.Path(folder) / "captured"
        captured.mkdir()
        save_file(states, str(captured / "states.safetensors"))
        run = subprocess.run([tessera, "verify", "forward", folder, "--reference", str(captured / "states.safetensors"),
                              "--json", "-"], capture_output=True, text=True)
    if run.returncode not in (0, 1):
        print(f"{name}: {run.stderr}")
        return False
    result = json.loads(run.stdout)
    print(f"{name}: {'equal' if result['passed'] else 'DIFFERENT'}")
    for j in result["judgements"]:
        print(f"  {j['subject']:20} {j['what']:24} relative error {j['relative_error']:.3g}  {j['fault'] or ''}")
    return result["passed"] and len(result["judgements"]) == config.get_text_config().num_hidden_layers + 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--only", nargs="+", default=[*MODELS], metavar="MODEL")
    options = parser.parse_args()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
    results = [check(options.tessera, name, MODELS[name]()) for name in options.only]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
