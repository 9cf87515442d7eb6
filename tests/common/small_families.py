"""Makes small BF16 models of released families: the names and shapes of their linear layers, with few layers and experts.

A model is {prefix: modules}, where modules are "name rows cols, name rows cols" (a convolution: "name rows 1 width"). Layers
have the numbers that releases treat differently, such as the first dense ones and the last one, which predicts further tokens."""

from checkpoints import BF16, make, random_weight
import numpy as np

MLA = "q_a_proj 128 256, q_b_proj 384 128, kv_a_proj_with_mqa 192 256, kv_b_proj 512 128, o_proj 256 256"
QKVO = "q_proj 256 256, k_proj 128 256, v_proj 128 256, o_proj 256 256"
GATED = "gate_proj 128 256, up_proj 128 256, down_proj 256 128"
UNGATED = "up_proj 128 256, down_proj 256 128"
NUMBERED = "w1 128 256, w3 128 256, w2 256 128"
INDEXER = "wq_b 256 128, wk 128 256, weights_proj 2 256"
DELTA = "conv1d 768 1 4, in_proj_qkv 768 256, in_proj_z 256 256, in_proj_a 2 256, in_proj_b 2 256, out_proj 256 256"
MLA_CONFIG = {"q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
              "n_routed_experts": 2, "num_nextn_predict_layers": 1}
INDEXER_CONFIG = {"index_n_heads": 2, "index_head_dim": 128, "index_topk": 16}


def ends(top="model.", head=""):
    return {top: "embed_tokens 320 256", head: "lm_head 320 256"}


def layers(prefix, numbers, rows):
    return {f"{prefix}{n}.{name}": modules for n in numbers for name, modules in rows.items()}


def experts(name, modules=GATED):
    return {f"{name}experts.{e}.": modules for e in range(2)}


def latent(numbers, dense=(), mtp=(), indexer=False, top="model.", head=""):
    """Returns the layers of DeepSeek-V3: those with experts, dense ones, and those that predict further tokens."""
    attention = {"self_attn.": MLA, **({"self_attn.indexer.": INDEXER} if indexer else {})}
    moe = {**attention, "mlp.": "gate 2 256", **experts("mlp."), "mlp.shared_experts.": GATED}
    x = f"{top}layers."
    return {**ends(top, head), **layers(x, dense, {**attention, "mlp.": GATED}), **layers(x, numbers, moe),
            **layers(x, mtp, {**moe, "": "eh_proj 256 512"})}


def qwen35(mlp, top="model.language_model."):
    return {**ends(top), **layers(f"{top}layers.", [0], {"linear_attn.": DELTA, **mlp}), **layers(f"{top}layers.", [3], {"self_attn.": QKVO, **mlp}),
            "model.visual.blocks.0.attn.": "qkv 192 64", "mtp.": "fc 256 512", **layers("mtp.layers.", [0], {"self_attn.": QKVO, **mlp})}


QWEN_MOE = {"mlp.": "gate 2 256, shared_expert_gate 1 256", **experts("mlp."), "mlp.shared_expert.": GATED}
KIMI = {**latent([1], dense=[0], top="language_model.model.", head="language_model."), "vision_tower.encoder.blocks.0.": "wqkv 192 64",
        "mm_projector.proj.": "0 256 64"}
MODELS = {  # model_type: (members of config.json, modules)
    "deepseek_v3": (MLA_CONFIG | {"num_hidden_layers": 61}, latent([3], dense=[0], mtp=[61])),
    "deepseek_v32": (MLA_CONFIG | INDEXER_CONFIG | {"num_hidden_layers": 61}, latent([3], dense=[0], mtp=[61], indexer=True)),
    "glm_moe_dsa": (MLA_CONFIG | INDEXER_CONFIG | {"num_hidden_layers": 78}, latent([3], dense=[0, 1, 2], mtp=[78], indexer=True)),
    "kimi_k25": ({"text_config": MLA_CONFIG | {"model_type": "kimi_k2", "hidden_size": 256, "num_attention_heads": 2}}, KIMI),
    "kimi_k2": (MLA_CONFIG | {"num_nextn_predict_layers": 0}, latent([1], dense=[0])),
    "llama": ({}, {**ends(), **layers("model.layers.", [0], {"self_attn.": QKVO, "mlp.": GATED})}),
    "qwen3": ({}, {**ends(), **layers("model.layers.", [0], {"self_attn.": QKVO, "mlp.": GATED})}),
    "qwen3_moe": ({"num_experts": 2}, {**ends(), **layers("model.layers.", [0], {"self_attn.": QKVO, "mlp.": "gate 2 256", **experts("mlp.")})}),
    "qwen3_next": ({"num_experts": 2}, {**ends(), **layers("model.layers.", [0], {
        "linear_attn.": "conv1d 384 1 4, in_proj_qkvz 512 256, in_proj_ba 2 256, out_proj 256 128", **QWEN_MOE}),
        **layers("model.layers.", [3], {"self_attn.": QKVO})}),
    "qwen3_5": ({"text_config": {"model_type": "qwen3_5_text", "hidden_size": 256}}, qwen35({"mlp.": GATED})),
    "qwen3_5_moe": ({"text_config": {"model_type": "qwen3_5_moe_text", "hidden_size": 256, "num_experts": 2}}, qwen35(QWEN_MOE)),
    "gemma4": ({"text_config": {"model_type": "gemma4_text", "hidden_size": 256}}, {
        **ends("model.language_model."), **layers("model.language_model.layers.", [0], {"self_attn.": QKVO, "mlp.": GATED}),
        "model.vision_tower.encoder.layers.0.self_attn.": "q_proj.linear 64 64", "model.embed_vision.": "embedding_projection 256 64"}),
    "minimax_m2": ({}, {**ends(), **layers("model.layers.", [0], {"self_attn.": QKVO, "block_sparse_moe.": "gate 2 256",
                                                                **experts("block_sparse_moe.", NUMBERED)})}),
    "minimax_m3_vl": ({"text_config": {"hidden_size": 256, "num_local_experts": 2}}, {
        **ends("language_model.model.", "language_model."),
        **layers("language_model.model.layers.", [0], {"self_attn.": QKVO, "mlp.": GATED}),
        **layers("language_model.model.layers.", [3], {
            "self_attn.": QKVO + ", index_q_proj 256 256, index_k_proj 128 256", "block_sparse_moe.": "gate 2 256",
            **experts("block_sparse_moe.", NUMBERED), "block_sparse_moe.shared_experts.": GATED}),
        "vision_tower.blocks.0.attn.": "qkv 192 64", "multi_modal_projector.": "linear_1 256 64", "patch_merge_mlp.": "fc1 64 64"}),
    "nemotron_h": ({"num_hidden_layers": 52, "time_step_limit": [0.0, float("inf")]}, {
        "backbone.": "embeddings 320 256", "": "lm_head 320 256",
        **layers("backbone.layers.", [0, 4, 11, 14, 18, 21, 25, 32, 41], {"mixer.": "conv1d 96 1 4, in_proj 384 256, out_proj 256 128"}),
        **layers("backbone.layers.", [1], {"mixer.": "gate 2 256", **experts("mixer.", UNGATED), "mixer.shared_experts.": UNGATED}),
        **layers("backbone.layers.", [5], {"mixer.": QKVO})}),
}


def modules(model_type):
    """Returns {module: shape} of the matrices and convolutions of a model."""
    words = [(prefix, entry.split()) for prefix, row in MODELS[model_type][1].items() for entry in row.split(", ")]
    return {prefix + name: tuple(map(int, shape)) for prefix, (name, *shape) in words}


def write(directory, model_type):
    """Writes the model with random weights and norms of ones."""
    tensors = {f"{module}.weight": random_weight(shape, i).astype(BF16) for i, (module, shape) in enumerate(modules(model_type).items())}
    for layer in sorted({name.split(".layers.")[0] + ".layers." + name.split(".layers.")[1].split(".")[0] for name in tensors if ".layers." in name}):
        tensors[f"{layer}.input_layernorm.weight"] = np.ones(256, BF16)
    config = {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 4, **MODELS[model_type][0]}
    return make(directory, {"model.safetensors": tensors}, quantization=None, model_type=model_type, **config)
