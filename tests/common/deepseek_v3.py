"""Makes sparse checkpoints with all names and shapes of DeepSeek-V3 or Kimi-K2, in BF16 or block FP8. The disk stores the headers."""

import json
import math
import pathlib

import harness

SHARD_BYTES = 8_500_000_000
BLOCK = 128

DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "vocab_size": 129280, "max_position_embeddings": 163840, "rms_norm_eps": 1e-06, "rope_theta": 10000, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False,
    "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 4096},
}
KIMI_K2 = DEEPSEEK_V3 | {
    "model_type": "kimi_k2", "num_nextn_predict_layers": 0, "num_attention_heads": 64, "num_key_value_heads": 64,
    "n_routed_experts": 384, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
    "vocab_size": 163840, "max_position_embeddings": 131072, "rope_theta": 50000,
    "rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"factor": 32, "beta_fast": 1},
}


def feed_forward(name, hidden, width):
    return {f"{name}.gate_proj.weight": (width, hidden), f"{name}.up_proj.weight": (width, hidden),
            f"{name}.down_proj.weight": (hidden, width)}


def layer(number, config=DEEPSEEK_V3):
    """Returns {name: shape} of one layer. The one after the last is the MTP module."""
    name = f"model.layers.{number}"
    hidden, latent, query_latent = config["hidden_size"], config["kv_lora_rank"], config["q_lora_rank"]
    heads, vocabulary = config["num_attention_heads"], config["vocab_size"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    shapes = {
        f"{name}.self_attn.q_a_proj.weight": (query_latent, hidden),
        f"{name}.self_attn.q_a_layernorm.weight": (query_latent,),
        f"{name}.self_attn.q_b_proj.weight": (heads * (nope + rope), query_latent),
        f"{name}.self_attn.kv_a_proj_with_mqa.weight": (latent + rope, hidden),
        f"{name}.self_attn.kv_a_layernorm.weight": (latent,),
        f"{name}.self_attn.kv_b_proj.weight": (heads * (nope + value), latent),
        f"{name}.self_attn.o_proj.weight": (hidden, heads * value),
        f"{name}.input_layernorm.weight": (hidden,),
        f"{name}.post_attention_layernorm.weight": (hidden,),
    }
    if number < config["first_k_dense_replace"]:
        return shapes | feed_forward(f"{name}.mlp", hidden, config["intermediate_size"])
    experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
    shapes |= {f"{name}.mlp.gate.weight": (experts, hidden), f"{name}.mlp.gate.e_score_correction_bias": (experts,)}
    for expert in range(experts):
        shapes |= feed_forward(f"{name}.mlp.experts.{expert}", hidden, width)
    shapes |= feed_forward(f"{name}.mlp.shared_experts", hidden, width)
    if number == config["num_hidden_layers"]:
        shapes |= {f"{name}.embed_tokens.weight": (vocabulary, hidden), f"{name}.enorm.weight": (hidden,),
                   f"{name}.hnorm.weight": (hidden,), f"{name}.eh_proj.weight": (hidden, 2 * hidden),
                   f"{name}.shared_head.norm.weight": (hidden,), f"{name}.shared_head.head.weight": (vocabulary, hidden)}
    return shapes


def all_shapes(config=DEEPSEEK_V3):
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(config["num_hidden_layers"] + config["num_nextn_predict_layers"]):
        shapes |= layer(number, config)
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def tensors_of(name, shape, fp8):
    """Returns {name: (dtype, shape, bytes)} of a tensor and of its scales."""
    if name.endswith("correction_bias"):
        return {name: ("F32", shape, 4 * shape[0])}
    if not fp8 or not name.endswith("proj.weight") and not name.endswith("proj_with_mqa.weight") or "eh_proj" in name:
        return harness.bf16_holes({name: shape})
    grid = tuple(-(-n // BLOCK) for n in shape)
    return {name: ("F8_E4M3", shape, math.prod(shape)), f"{name}_scale_inv": ("F32", grid, 4 * math.prod(grid))}


def cut(shapes, fp8):
    """Returns the tensors of each shard."""
    shards, room = [], 0
    for name, shape in shapes.items():
        tensors = tensors_of(name, shape, fp8)
        size = sum(size for _, _, size in tensors.values())
        if size > room or not shards:
            shards.append({})
            room = SHARD_BYTES
        shards[-1] |= tensors
        room -= size
    return shards


def make(directory, shapes=None, config=DEEPSEEK_V3, fp8=False):
    """Writes the checkpoint, or only these tensors of it. Returns the bytes of its tensors."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    shards, total, index = cut(shapes or all_shapes(config), fp8), 0, {}
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):06}.safetensors"
        total += harness.write_safetensors(directory / name, tensors)
        index |= dict.fromkeys(tensors, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    scheme = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}}
    (directory / "config.json").write_text(json.dumps(config | (scheme if fp8 else {}), indent=2))
    return total
