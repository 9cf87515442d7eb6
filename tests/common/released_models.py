"""Makes small copies of models released in 2026: names, dtypes and config.json of each, with few layers and experts.

Weights are random with a model's distribution and encoded by the formulas of mx_oracle and stored_oracle. stored_oracle decodes
the values from the stored tensors, and this module those of block FP8, so that conversions can be compared with them.
"""

import json
import zlib

from checkpoints import BF16, E4M3, E8M0, make, random_weight
import mx_oracle as mx
import numpy as np
import stored_oracle as stored

F16, F32 = np.float16, np.float32
HIDDEN, VOCABULARY = 256, 320


class Release:
    """Is a checkpoint in memory: `tensors` {name: array}, and `values` {name: the exact values that --to bf16 must write}."""

    def __init__(self, config, dtype=BF16):
        self.config, self.dtype = config, dtype
        self.tensors, self.values, self.files = {}, {}, {}

    def weight(self, name, *shape):
        return random_weight(shape, zlib.crc32(name.encode())).astype(self.dtype)

    def plain(self, name, *shape, dtype=None):
        """Makes a tensor that only a cast changes."""
        self.tensors[name] = self.values[name] = self.weight(name, *shape).astype(dtype or self.dtype)

    def norms(self, *names, size=HIDDEN, dtype=None):
        for name in names:
            self.tensors[name] = self.values[name] = np.ones(size, dtype or self.dtype)

    def table(self, name, array):
        self.tensors[name] = self.values[name] = array

    def add(self, kind, module, parts):
        """Adds the codes of a module: {suffix: array}."""
        self.tensors |= {module + suffix: np.ascontiguousarray(array) for suffix, array in parts.items()}
        self.values[module + ("" if kind == "mxfp4-gptoss" else ".weight")] = stored.values(kind, parts)

    # ---- one weight in each of the kinds ----

    def blocks(self, module, rows, cols, block=(128, 128), scale=".scale", dtype=E8M0):
        """Makes block FP8 with power-of-two or other scales."""
        grid = -(-rows // block[0]), -(-cols // block[1])
        padded = np.zeros((grid[0] * block[0], grid[1] * block[1]), F32)
        padded[:rows, :cols] = self.weight(module, rows, cols).astype(F32)
        amax = np.abs(padded.reshape(grid[0], block[0], grid[1], block[1])).max(axis=(1, 3))
        scales = np.exp2(np.ceil(np.log2(amax / 448))).astype(F32) if dtype == E8M0 else (amax / 448).astype(dtype).astype(F32)
        wide = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:rows, :cols]
        codes = np.clip(padded[:rows, :cols] / wide, -448, 448).astype(E4M3)
        self.tensors |= {module + ".weight": codes, module + scale: scales.astype(dtype)}
        self.values[module + ".weight"] = codes.astype(np.float64) * wide

    def mxfp4_v4(self, module, rows, cols):
        codes, scale = mx.mx(self.weight(module, rows, cols), 4, "rceil")
        self.add("mxfp4-v4", module, {".weight": codes.view(np.int8), ".scale": scale.view(E8M0)})

    def mxfp4_ct(self, module, rows, cols):
        codes, scale = mx.mx(self.weight(module, rows, cols), 4, "even")
        self.add("mxfp4-ct", module, {".weight_packed": codes, ".weight_scale": scale})

    def mxfp4_gptoss(self, name, experts, rows, cols):
        codes, scale = mx.mx(self.weight(name, experts * rows, cols), 4, "floor")
        self.add("mxfp4-gptoss", name, {"_blocks": codes.reshape(experts, rows, cols // 32, 16),
                                        "_scales": scale.reshape(experts, rows, cols // 32)})

    def mxfp8_rows(self, module, rows, cols):
        """Makes a table with a scale per 32 columns of each row."""
        codes, scale = mx.mx(self.weight(module, rows, cols), 8, "rceil")
        self.add("mxfp8", module, {".weight": codes, ".scale": scale.view(E8M0)})

    def int4(self, module, rows, cols):
        w = self.weight(module, rows, cols).astype(F32).reshape(rows, -1, 32)
        scale = (np.abs(w).max(axis=2) / F32(7.5)).astype(BF16)
        codes = np.clip(np.rint(w / scale.astype(F32)[..., None]), -8, 7).reshape(rows, cols) + 8
        self.add("int4-ct", module, {".weight_packed": stored.words(codes.astype(np.uint8)), ".weight_scale": scale,
                                     ".weight_shape": np.array([rows, cols], np.int32)})

    def nvfp4_modelopt(self, shapes):
        """Makes modules {module: (rows, cols)} of a fused layer, which share their global scale."""
        weights = {module: self.weight(module, *shape) for module, shape in shapes.items()}
        ranges = {module: (-6.0, 8.0) for module in shapes}
        made = mx.expected(weights, "nvfp4", "modelopt", ranges=ranges)
        for module in shapes:
            parts = {s: made[module + s] for s in (".weight", ".weight_scale", ".weight_scale_2", ".input_scale")}
            self.add("nvfp4-modelopt", module, parts)

    def grouped(self, kind, module, rows, cols, size):
        """Makes AWQ with zero points, and symmetric GPTQ in act-order."""
        w = self.weight(module, rows, cols).astype(np.float64)
        order = np.arange(cols) // size
        if kind == "gptq":
            order = np.random.default_rng(zlib.crc32(module.encode())).permutation(order)
        members = [w[:, order == g] for g in range(cols // size)]
        low, high = (np.stack([pick(m, axis=1) for m in members], 1) for pick in (np.min, np.max))
        if kind == "gptq":
            high = np.maximum(high, -low)
            low = -high
        scales = ((high - low) / 15).astype(F16)
        zeros = np.full(scales.shape, 8) if kind == "gptq" else np.clip(np.rint(-low / scales), 0, 15)
        codes = np.clip(np.rint(w / scales.astype(np.float64)[:, order]) + zeros[:, order], 0, 15).astype(np.uint8)
        zeros = zeros.astype(np.uint8)
        self.add(kind, module, stored.awq(codes, zeros, scales) if kind == "awq" else stored.gptq(codes, zeros, scales, order))

    # ---- the directory ----

    def write(self, directory):
        """Writes two files, with scales and codes in different ones."""
        names = list(self.tensors)
        parts = {f"model-{i + 1:05}-of-00002.safetensors": {n: self.tensors[n] for n in names[i::2]} for i in range(2)}
        make(directory, parts, quantization=None, **self.config)
        for name, text in self.files.items():
            (directory / name).write_text(text)
        return directory


# ---- DeepSeek-V4-Flash and V4.1-Flash: native names ----


def v4_layer(m, x, linear, experts, hashed, ratio, v41=False):
    """Makes one layer with the prefix `x`. `ratio` is that of the compressor; layers with ratio 4 have an indexer."""
    latent = m.config.get("text_config", m.config)["q_lora_rank"]
    for name, rows, cols in (("wq_a", latent, HIDDEN), ("wq_b", 512, latent), ("wkv", 128, HIDDEN), ("wo_a", 128, 128),
                             ("wo_b", HIDDEN, 128)):
        linear(f"{x}attn.{name}", rows, cols)
    m.norms(f"{x}attn_norm.weight", f"{x}ffn_norm.weight")
    m.norms(f"{x}attn.q_norm.weight", size=latent)
    m.norms(f"{x}attn.kv_norm.weight", size=128)
    m.plain(f"{x}attn.attn_sink", 4, dtype=F32)
    if ratio:
        wide = 256 if ratio == 4 else 128
        m.plain(f"{x}attn.compressor.wkv.weight", wide, HIDDEN)
        m.plain(f"{x}attn.compressor.wgate.weight", wide, HIDDEN)
        m.norms(f"{x}attn.compressor.norm.weight", size=128)
        if not v41:
            m.plain(f"{x}attn.compressor.ape", ratio, wide, dtype=F32)
    if ratio == 4:
        linear(f"{x}attn.indexer.wq_b", 128, latent)
        m.plain(f"{x}attn.indexer.weights_proj.weight", 4, HIDDEN)
        if v41:
            m.plain(f"{x}attn.indexer.wk.weight", 32, HIDDEN)
            m.norms(f"{x}attn.indexer.k_norm.weight", size=32)
        else:
            m.plain(f"{x}attn.indexer.compressor.wkv.weight", 64, HIDDEN)
            m.plain(f"{x}attn.indexer.compressor.wgate.weight", 64, HIDDEN)
            m.norms(f"{x}attn.indexer.compressor.norm.weight", size=32)
            m.plain(f"{x}attn.indexer.compressor.ape", 4, 64, dtype=F32)
    for e in range(experts):
        m.mxfp4_v4(f"{x}ffn.experts.{e}.w1", 128, HIDDEN)
        m.mxfp4_v4(f"{x}ffn.experts.{e}.w3", 128, HIDDEN)
        m.mxfp4_v4(f"{x}ffn.experts.{e}.w2", HIDDEN, 128)
    for name, rows, cols in (("w1", 128, HIDDEN), ("w3", 128, HIDDEN), ("w2", HIDDEN, 128)):
        linear(f"{x}ffn.shared_experts.{name}", rows, cols)
    m.plain(f"{x}ffn.gate.weight", experts, HIDDEN)
    if hashed:
        m.table(f"{x}ffn.gate.tid2eid", np.arange(2 * VOCABULARY, dtype=np.int64).reshape(VOCABULARY, 2) % experts)
    else:
        m.plain(f"{x}ffn.gate.bias", experts, dtype=F32)
    if v41 and not hashed:
        m.plain(f"{x}ffn.gate.bias_vl", experts, dtype=F32)
    for part in ("attn", "ffn"):
        for name, *shape in (("base", 24), ("fn", 24, 4 * HIDDEN), ("scale", 3)):
            m.plain(f"{x}hc_{part}_{name}", *shape, dtype=F32)


def v4_top(m):
    m.plain("embed.weight", VOCABULARY, HIDDEN)
    m.plain("head.weight", VOCABULARY, HIDDEN)
    m.norms("norm.weight")
    for name, *shape in (("base", 4), ("fn", 4, 4 * HIDDEN), ("scale", 1)):
        m.plain(f"hc_head_{name}", *shape, dtype=F32)


def v4_stage(m, x, linear, experts, v41=False):
    """Makes an MTP layer."""
    linear(f"{x}e_proj", HIDDEN, HIDDEN)
    linear(f"{x}h_proj", HIDDEN, HIDDEN)
    m.norms(f"{x}enorm.weight", f"{x}hnorm.weight", f"{x}norm.weight")
    v4_layer(m, x, linear, experts, False, 0, v41)


V4_TEXT = {"hidden_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128, "q_lora_rank": 128,
           "moe_intermediate_size": 128, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
           "vocab_size": VOCABULARY, "tie_word_embeddings": False}
V4_QUANTIZATION = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0"}


def deepseek_v4():
    m = Release({"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], **V4_TEXT, "num_hidden_layers": 4,
                 "num_nextn_predict_layers": 1, "num_hash_layers": 3, "compress_ratios": [128, 4, 128, 4, 0],
                 "expert_dtype": "fp4", "quantization_config": {**V4_QUANTIZATION, "weight_block_size": [128, 128]}})
    v4_top(m)
    for layer, ratio in enumerate((128, 4, 128, 4)):
        v4_layer(m, f"layers.{layer}.", m.blocks, 4, layer < 3, ratio)
    v4_stage(m, "mtp.0.", m.blocks, 4)
    return m


def deepseek_v41():
    text = {"model_type": "deepseek_v41_text", **V4_TEXT, "q_lora_rank": 256, "num_hidden_layers": 2, "num_nextn_predict_layers": 3,
            "dspark_n_routed_experts": 2}
    m = Release({"model_type": "deepseek_v41", "architectures": ["DeepseekV41ForConditionalGeneration"], "text_config": text,
                 "vision_config": {"hidden_size": 64}, "quantization_config": {
                     **V4_QUANTIZATION, "weight_block_size": [32, 32], "expert_dtype": "fp4"}})

    def linear(module, rows, cols):
        m.blocks(module, rows, cols, (32, 32))

    v4_top(m)
    for layer, ratio in enumerate((4, 128)):
        v4_layer(m, f"layers.{layer}.", linear, 4, False, ratio, v41=True)
    m.mxfp8_rows("layers.1.engram.embed", 999, HIDDEN)
    m.plain("layers.1.engram.q_weight", 4, HIDDEN)
    m.plain("layers.1.engram.k_weight", 4, HIDDEN)
    linear("layers.1.engram.wkv", 96, HIDDEN)
    for stage in range(3):
        v4_stage(m, f"mtp.{stage}.", linear, 2, v41=True)
    m.plain("vision.blocks.0.attn.qkv.weight", 192, 64)
    m.plain("aligner.proj.weight", HIDDEN, 64)
    m.plain("image_newline", HIDDEN)
    return m


# ---- Kimi ----


def mla(m, x):
    """Makes latent attention whose latent projection has partial blocks."""
    for name, rows, cols in (("q_a_proj", 128, HIDDEN), ("q_b_proj", 384, 128), ("kv_a_proj_with_mqa", 192, HIDDEN),
                             ("kv_b_proj", 512, 128), ("o_proj", HIDDEN, 256)):
        m.plain(f"{x}{name}.weight", rows, cols)
    m.norms(f"{x}q_a_layernorm.weight", f"{x}kv_a_layernorm.weight", size=128)


def feed_forward(m, x, wide, add=None):
    add = add or (lambda module, rows, cols: m.plain(module + ".weight", rows, cols))
    for name, rows, cols in (("gate_proj", wide, HIDDEN), ("up_proj", wide, HIDDEN), ("down_proj", HIDDEN, wide)):
        add(f"{x}{name}", rows, cols)


def kimi_top(m):
    m.plain("language_model.model.embed_tokens.weight", VOCABULARY, HIDDEN)
    m.plain("language_model.lm_head.weight", VOCABULARY, HIDDEN)
    m.norms("language_model.model.norm.weight")
    m.plain("vision_tower.encoder.blocks.0.wqkv.weight", 192, 64)
    m.plain("mm_projector.proj.0.weight", HIDDEN, 64)


def group(bits, size, kind="float", strategy="group", **more):
    return {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size, "symmetric": True, "dynamic": False, **more}


def compressed(form, weights, ignore):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ignore,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None,
                                          "output_activations": None}}}


KIMI_KEPT = ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
             "re:vision_tower.*", "re:mm_projector.*"]


def kimi_k26():
    stated = compressed("pack-quantized", group(4, 32, "int", observer="minmax"), ["lm_head", *KIMI_KEPT])
    text = {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 3, "first_k_dense_replace": 1,
            "moe_intermediate_size": 128, "intermediate_size": 256, "vocab_size": VOCABULARY, "quantization_config": stated}
    m = Release({"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": text,
                 "vision_config": {"hidden_size": 64}, "quantization_config": stated})
    kimi_top(m)
    for layer in range(2):
        x = f"language_model.model.layers.{layer}."
        m.norms(f"{x}input_layernorm.weight", f"{x}post_attention_layernorm.weight")
        mla(m, f"{x}self_attn.")
        if layer == 0:
            feed_forward(m, f"{x}mlp.", 256)
            continue
        m.plain(f"{x}mlp.gate.weight", 3, HIDDEN)
        m.plain(f"{x}mlp.gate.e_score_correction_bias", 3, dtype=F32)
        feed_forward(m, f"{x}mlp.shared_experts.", 128)
        for e in range(3):
            feed_forward(m, f"{x}mlp.experts.{e}.", 128, m.int4)
    return m


def delta_attention(m, x):
    """Makes Kimi Delta Attention with 3 heads; A_log is padded to 4."""
    for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
        m.plain(f"{x}{name}.weight", 96, HIDDEN)
    m.plain(f"{x}o_proj.weight", HIDDEN, 96)
    for name, rows, cols in (("f_a_proj", 32, HIDDEN), ("f_b_proj", 96, 32), ("b_proj", 3, HIDDEN)):
        m.plain(f"{x}{name}.weight", rows, cols)
    for name in "qkv":
        m.plain(f"{x}{name}_conv1d.weight", 96, 1, 4, dtype=F32)
    m.plain(f"{x}A_log", 4, dtype=F32)
    m.plain(f"{x}dt_bias", 96, dtype=F32)
    m.norms(f"{x}o_norm.weight", size=32, dtype=F32)


def kimi_k3():
    """Makes latent experts of half the width; layer 3 has latent attention. config.json lists neither router nor latent
    projections."""
    weights = group(4, 32, scale_dtype="torch.uint8")
    text = {"model_type": "kimi_k3", "hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 2, "kv_lora_rank": 128,
            "q_lora_rank": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 3,
            "moe_intermediate_size": 256, "vocab_size": VOCABULARY, "first_k_dense_replace": 1,
            "quantization_config": compressed("mxfp4-pack-quantized", weights, KIMI_KEPT)}
    m = Release({"model_type": "kimi_k3", "architectures": ["KimiK3ForConditionalGeneration"], "text_config": text,
                 "vision_config": {"hidden_size": 64}})
    kimi_top(m)
    for layer in range(4):
        x = f"language_model.model.layers.{layer}."
        m.norms(f"{x}input_layernorm.weight", f"{x}post_attention_layernorm.weight")
        (mla if layer == 3 else delta_attention)(m, f"{x}self_attn.")
        if layer == 0:
            feed_forward(m, f"{x}mlp.", 256)
            continue
        x += "block_sparse_moe."
        m.plain(f"{x}gate.weight", 3, HIDDEN)
        m.plain(f"{x}gate.e_score_correction_bias", 3, dtype=F32)
        m.plain(f"{x}routed_expert_down_proj.weight", 128, HIDDEN)
        m.plain(f"{x}routed_expert_up_proj.weight", HIDDEN, 128)
        m.norms(f"{x}routed_expert_norm.weight", size=128)
        feed_forward(m, f"{x}shared_experts.", 128)
        for e in range(3):
            m.mxfp4_ct(f"{x}experts.{e}.w1", 256, 128)
            m.mxfp4_ct(f"{x}experts.{e}.w3", 256, 128)
            m.mxfp4_ct(f"{x}experts.{e}.w2", 128, 256)
    return m


# ---- gpt-oss, Qwen3.6-MoE ----


def gpt_oss():
    """Makes gpt-oss with H = I, not a multiple of 128."""
    h, experts = 192, 3
    m = Release({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": h, "intermediate_size": h,
                 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
                 "num_local_experts": experts, "vocab_size": VOCABULARY, "quantization_config": {
                     "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                         "model.embed_tokens", "lm_head"]}})
    m.plain("model.embed_tokens.weight", VOCABULARY, h)
    m.plain("lm_head.weight", VOCABULARY, h)
    m.norms("model.norm.weight", size=h)
    for layer in range(2):
        x = f"model.layers.{layer}."
        m.norms(f"{x}input_layernorm.weight", f"{x}post_attention_layernorm.weight", size=h)
        for name, rows, cols in (("q", 256, h), ("k", 128, h), ("v", 128, h), ("o", h, 256)):
            m.plain(f"{x}self_attn.{name}_proj.weight", rows, cols)
            m.plain(f"{x}self_attn.{name}_proj.bias", rows)
        m.plain(f"{x}self_attn.sinks", 4)
        m.plain(f"{x}mlp.router.weight", experts, h)
        m.plain(f"{x}mlp.router.bias", experts)
        m.mxfp4_gptoss(f"{x}mlp.experts.gate_up_proj", experts, 2 * h, h)
        m.mxfp4_gptoss(f"{x}mlp.experts.down_proj", experts, h, h)
        m.plain(f"{x}mlp.experts.gate_up_proj_bias", experts, 2 * h)
        m.plain(f"{x}mlp.experts.down_proj_bias", experts, h)
    return m


def qwen_layer(m, x, linear, full):
    m.norms(f"{x}input_layernorm.weight", f"{x}post_attention_layernorm.weight")
    if full:
        for name, rows, cols in (("q", 512, HIDDEN), ("k", 128, HIDDEN), ("v", 128, HIDDEN), ("o", HIDDEN, 256)):
            linear(f"{x}self_attn.{name}_proj", rows, cols)
        m.norms(f"{x}self_attn.q_norm.weight", f"{x}self_attn.k_norm.weight", size=128)
    else:
        for name, rows, cols in (("in_proj_qkv", 768, HIDDEN), ("in_proj_z", 256, HIDDEN), ("out_proj", HIDDEN, 256)):
            linear(f"{x}linear_attn.{name}", rows, cols)
        for name in ("in_proj_a", "in_proj_b"):
            m.plain(f"{x}linear_attn.{name}.weight", 2, HIDDEN)
        m.plain(f"{x}linear_attn.conv1d.weight", 768, 1, 4)
        m.plain(f"{x}linear_attn.A_log", 2)
        m.plain(f"{x}linear_attn.dt_bias", 2)
        m.norms(f"{x}linear_attn.norm.weight", size=128)
    m.plain(f"{x}mlp.gate.weight", 3, HIDDEN)
    m.plain(f"{x}mlp.shared_expert_gate.weight", 1, HIDDEN)
    feed_forward(m, f"{x}mlp.shared_expert.", 128, linear)
    for e in range(3):
        feed_forward(m, f"{x}mlp.experts.{e}.", 128, linear)


def qwen36_moe():
    """Makes Qwen3.6 MoE with weight_scale_inv in BF16."""
    text = {"model_type": "qwen3_5_moe_text", "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 128, "num_experts": 3, "moe_intermediate_size": 128, "vocab_size": VOCABULARY,
            "linear_num_key_heads": 2, "linear_key_head_dim": 128, "linear_num_value_heads": 2, "linear_value_head_dim": 128,
            "layer_types": ["linear_attention", "full_attention"], "mtp_num_hidden_layers": 1}
    m = Release({"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": text,
                 "vision_config": {"hidden_size": 64}})

    def linear(module, rows, cols):
        m.blocks(module, rows, cols, scale=".weight_scale_inv", dtype=BF16)

    top = "model.language_model."
    m.plain(f"{top}embed_tokens.weight", VOCABULARY, HIDDEN)
    m.plain("lm_head.weight", VOCABULARY, HIDDEN)
    m.norms(f"{top}norm.weight")
    for layer in range(2):
        qwen_layer(m, f"{top}layers.{layer}.", linear, layer == 1)
    m.plain("mtp.fc.weight", HIDDEN, 2 * HIDDEN)
    m.norms("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight")
    qwen_layer(m, "mtp.layers.0.", linear, True)
    m.plain("model.visual.blocks.0.attn.qkv.weight", 192, 64)
    m.plain("model.visual.merger.linear_fc1.weight", 128, 64)
    coded = {name.removesuffix("_scale_inv") for name in m.tensors if name.endswith("_scale_inv")}
    kept = [n.removesuffix(".weight") for n, t in m.tensors.items() if n.endswith(".weight") and n not in coded and t.ndim > 1]
    m.config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                       "weight_block_size": [128, 128], "modules_to_not_convert": kept}
    return m


# ---- Llama ----


def llama(linears, quantization, dtype=BF16):
    """Makes Llama. linears(release, {module: (rows, cols)}) adds the linear layers of one layer."""
    m = Release({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 384,
                 "vocab_size": VOCABULARY, "torch_dtype": "float16" if dtype == F16 else "bfloat16", "rms_norm_eps": 1e-5,
                 "tie_word_embeddings": False, "quantization_config": quantization}, dtype)
    m.plain("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    m.plain("lm_head.weight", VOCABULARY, HIDDEN)
    m.norms("model.norm.weight")
    for layer in range(2):
        x = f"model.layers.{layer}."
        m.norms(f"{x}input_layernorm.weight", f"{x}post_attention_layernorm.weight")
        linears(m, {f"{x}self_attn.q_proj": (256, HIDDEN), f"{x}self_attn.k_proj": (128, HIDDEN),
                    f"{x}self_attn.v_proj": (128, HIDDEN), f"{x}self_attn.o_proj": (HIDDEN, 256),
                    f"{x}mlp.gate_proj": (384, HIDDEN), f"{x}mlp.up_proj": (384, HIDDEN), f"{x}mlp.down_proj": (HIDDEN, 384)})
    return m


def llama_nvfp4():
    """Makes ModelOpt's NVFP4 with scales of an FP8 cache, and hf_quant_config.json with the contents of config.json."""
    inputs = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    producer = {"name": "modelopt", "version": "0.47.0"}
    m = llama(Release.nvfp4_modelopt, {
        "config_groups": {"group_0": {"weights": inputs, "input_activations": inputs, "targets": ["Linear"]}},
        "ignore": ["lm_head"], "quant_algo": "NVFP4", "producer": producer,
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}, "quant_method": "modelopt"})
    for layer in range(2):
        for name in "kv":
            m.table(f"model.layers.{layer}.self_attn.{name}_proj.{name}_scale", np.array(0.0625, F32))
    m.files["hf_quant_config.json"] = json.dumps({"producer": producer, "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}})
    return m


def grouped(kind, size):
    return lambda m, shapes: [m.grouped(kind, module, *shape, size) for module, shape in shapes.items()]


def llama_awq():
    return llama(grouped("awq", 64), {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
                                      "modules_to_not_convert": None}, F16)


def llama_gptq():
    return llama(grouped("gptq", 128), {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True,
                                        "checkpoint_format": "gptq", "damp_percent": 0.1, "true_sequential": True}, F16)


RELEASES = {"DeepSeek-V4-Flash": deepseek_v4, "DeepSeek-V4.1-Flash": deepseek_v41, "Kimi-K2.6": kimi_k26, "Kimi-K3": kimi_k3,
            "gpt-oss": gpt_oss, "Qwen3.6-MoE-FP8": qwen36_moe, "Llama-NVFP4 (ModelOpt)": llama_nvfp4, "Llama-AWQ": llama_awq,
            "Llama-GPTQ, act-order": llama_gptq}
