"""Makes a sparse DeepSeek-V3 in BF16 with all names and shapes: 163 files of 1.37 TB, of which the disk stores the headers."""

import json
import pathlib

import harness

HIDDEN, LATENT, QUERY_LATENT, HEADS = 7168, 512, 1536, 128
NOPE, ROPE, VALUE = 128, 64, 128
WIDE, EXPERT, EXPERTS, VOCABULARY = 18432, 2048, 256, 129280
LAYERS, DENSE = 61, 3
SHARD_BYTES = 8_500_000_000

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "hidden_size": HIDDEN,
    "intermediate_size": WIDE, "moe_intermediate_size": EXPERT, "num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "n_shared_experts": 1, "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 8, "first_k_dense_replace": DENSE, "moe_layer_freq": 1, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "kv_lora_rank": LATENT, "q_lora_rank": QUERY_LATENT, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE,
    "vocab_size": VOCABULARY, "max_position_embeddings": 163840, "rms_norm_eps": 1e-06, "rope_theta": 10000, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False,
    "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 4096},
}


def feed_forward(name, width):
    return {f"{name}.gate_proj.weight": (width, HIDDEN), f"{name}.up_proj.weight": (width, HIDDEN),
            f"{name}.down_proj.weight": (HIDDEN, width)}


def layer(number):
    """Yields (name, shape) of one layer. The one after the last is the MTP module."""
    name = f"model.layers.{number}"
    shapes = {
        f"{name}.self_attn.q_a_proj.weight": (QUERY_LATENT, HIDDEN),
        f"{name}.self_attn.q_a_layernorm.weight": (QUERY_LATENT,),
        f"{name}.self_attn.q_b_proj.weight": (HEADS * (NOPE + ROPE), QUERY_LATENT),
        f"{name}.self_attn.kv_a_proj_with_mqa.weight": (LATENT + ROPE, HIDDEN),
        f"{name}.self_attn.kv_a_layernorm.weight": (LATENT,),
        f"{name}.self_attn.kv_b_proj.weight": (HEADS * (NOPE + VALUE), LATENT),
        f"{name}.self_attn.o_proj.weight": (HIDDEN, HEADS * VALUE),
        f"{name}.input_layernorm.weight": (HIDDEN,),
        f"{name}.post_attention_layernorm.weight": (HIDDEN,),
    }
    if number < DENSE:
        return shapes | feed_forward(f"{name}.mlp", WIDE)
    shapes |= {f"{name}.mlp.gate.weight": (EXPERTS, HIDDEN), f"{name}.mlp.gate.e_score_correction_bias": (EXPERTS,)}
    for expert in range(EXPERTS):
        shapes |= feed_forward(f"{name}.mlp.experts.{expert}", EXPERT)
    shapes |= feed_forward(f"{name}.mlp.shared_experts", EXPERT)
    if number == LAYERS:
        shapes |= {f"{name}.embed_tokens.weight": (VOCABULARY, HIDDEN), f"{name}.enorm.weight": (HIDDEN,),
                   f"{name}.hnorm.weight": (HIDDEN,), f"{name}.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
                   f"{name}.shared_head.norm.weight": (HIDDEN,), f"{name}.shared_head.head.weight": (VOCABULARY, HIDDEN)}
    return shapes


def all_shapes():
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for number in range(LAYERS + 1):
        shapes |= layer(number)
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def write_shard(path, shapes):
    """Writes a file with a header and holes for data. Returns the bytes of its tensors."""
    tensors = harness.bf16_holes(shapes)
    tensors |= {name: ("F32", shape, 2 * size) for name, (_, shape, size) in tensors.items() if name.endswith("correction_bias")}
    return harness.write_safetensors(path, tensors)


def cut(shapes):
    """Returns the shapes of each shard."""
    shards, room = [], 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        if size > room or not shards:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = shape
        room -= size
    return shards


def make(directory, shapes=None):
    """Writes the checkpoint, or only these tensors of it. Returns the bytes of its tensors."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    shards, total, index = cut(shapes or all_shapes()), 0, {}
    for number, part in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):06}.safetensors"
        total += write_shard(directory / name, part)
        index |= dict.fromkeys(part, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2))
    return total
