"""Computes the forward pass of a small model of each family in float64, to compare with `tessera verify forward`."""

import json
import math
import re

from checkpoints import write
from experts_oracle import OtherExperts, softmax
from forward_families import (BASE, CHOSEN, DIM, EXPERTS, FAMILIES, GLOBAL_DIM, GLOBAL_KV, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, NORMS, ROUTERS,
                              VOCABULARY, WINDOW)
import harness
from indexer_oracle import BLOCKS, Indexed
import ml_dtypes
from mla_oracle import BATCH, Model, TOKENS
import numpy as np
import pytest
from recurrent_oracle import Recurrent, rms_norm

BF16 = ml_dtypes.bfloat16


class WithoutRope(Model):
    """Implements latent attention without RoPE."""

    def angles(self):
        return np.zeros((TOKENS, self.rope // 2))


class Whole(Recurrent, Indexed, OtherExperts):
    """Implements a model of three layers, the first without experts, and its forward pass."""

    def __init__(self, family):
        self.config = BASE | FAMILIES[family]
        self.traits = self.config.pop("traits")
        self.rng = np.random.default_rng(5)
        self.tokens = self.rng.integers(0, VOCABULARY, (BATCH, TOKENS))
        sizes = {"nope": 16, "rope": 8, "v": 12, "rank": 32, "hidden": HIDDEN}
        self.attention = [WithoutRope(q_rank=0, yarn=False, **sizes, seed=s) if "kimi" in self.traits else Model(q_rank=48, **sizes, seed=s)
                          for s in range(LAYERS)]
        if "latent" in self.traits:
            self.config |= self.attention[0].config
        self.tensors = {"model.embed_tokens.weight": self.draw(VOCABULARY, HIDDEN, scale=1),
                        "model.norm.weight": self.gain(HIDDEN)}
        if "tied" not in self.traits:
            self.tensors["lm_head.weight"] = self.draw(VOCABULARY, HIDDEN)
        if "head bias" in self.traits:
            self.tensors["lm_head.bias"] = self.draw(VOCABULARY, scale=0.5)
        self.norms = NORMS[next((n for n in NORMS if n in self.traits), "before")]
        self.router, self.choice_bias = ROUTERS.get(self.config["model_type"], ("mlp.gate", "mlp.gate.e_score_correction_bias"))
        for layer in range(LAYERS):
            self.tensors |= {f"model.layers.{layer}.{n}": x for n, x in self.layer_tensors(layer).items()}

    def draw(self, *shape, scale=None):
        return (self.rng.standard_normal(shape) * (scale or shape[-1] ** -0.5)).astype(BF16)

    def gain(self, n):
        """Returns the gain of a norm. Gemma and Qwen3-Next add 1 to it."""
        return (self.rng.uniform(0.5, 2, n) - bool(self.traits & {"gemma", "gain from 1"})).astype(BF16)

    def norm(self, x, gain):
        if "centered" in self.traits:
            x = x - x.mean(-1, keepdims=True)
        return rms_norm(x, gain + bool(self.traits & {"gemma", "gain from 1"}))

    def moe(self):
        """Returns the beginning of the names of a layer's experts."""
        return "mlp" if "gemma4" in self.traits else self.router.split(".")[0]

    def shared(self):
        if self.config["model_type"] in ("hunyuan_v1_moe", "hy_v3"):
            return "mlp.shared_mlp"
        return "shared_mlp" if "halves" in self.traits else f"{self.moe()}.shared_experts"

    def weight(self, prefix, n):
        """Returns the name of a gate, up or down projection."""
        w = self.config["model_type"] in ("mixtral", "minimax_m2", "minimax_m3_vl", "kimi_linear") and ".experts." in prefix
        leaf = {"gate": "w1", "up": "w3", "down": "w2"}[n] if w else f"{n}_proj"
        return f"{prefix}.{leaf}.weight"

    def mlp(self, prefix):
        return {self.weight(prefix, n): self.draw(*s)
                for n, s in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER)))
                if n != "gate" or "ungated" not in self.traits}

    def fuse(self, t):
        """Joins weights as some families store them; `split` is the inverse."""

        def join(name, *parts):
            t[name] = np.concatenate([t.pop(n) for n in parts])

        if "fused" in self.traits:
            join("self_attn.qkv_proj.weight", *(f"self_attn.{n}_proj.weight" for n in "qkv"))
        if self.traits & {"fused", "fused MLP"}:
            join("mlp.gate_up_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight")
        if "halves" in self.traits and self.moe() == "mlp" and f"{self.router}.weight" in t:
            for e in range(EXPERTS):
                at = f"mlp.experts.{e}."
                join(at + "both", at + "gate_proj.weight", at + "up_proj.weight")
            for name, leaf in (("gate_up_proj", "both"), ("down_proj", "down_proj.weight")):
                t[f"mlp.experts.{name}"] = np.stack([t.pop(f"mlp.experts.{e}.{leaf}") for e in range(EXPERTS)])
        elif "shared_mlp.gate_proj.weight" in t:
            join("shared_mlp.input_linear.weight", "shared_mlp.gate_proj.weight", "shared_mlp.up_proj.weight")
            t["shared_mlp.output_linear.weight"] = t.pop("shared_mlp.down_proj.weight")
        if "block_sparse_moe.experts.0.gate_proj.weight" in t:
            for e in range(EXPERTS):
                at = f"block_sparse_moe.experts.{e}."
                join(at + "both", at + "gate_proj.weight", at + "up_proj.weight")
            for name, leaf in (("input", "both"), ("output", "down_proj.weight")):
                t[f"block_sparse_moe.{name}_linear.weight"] = np.stack([t.pop(f"block_sparse_moe.experts.{e}.{leaf}") for e in range(EXPERTS)])
        return t

    def split(self, w):
        """Returns the weights of a layer with the names of a family that stores each separately."""
        w = dict(w)

        def part(name, *parts):
            rows = np.cumsum([n for _, n in parts])[:-1]
            w.update(zip((n for n, _ in parts), np.split(w.pop(name), rows), strict=True))

        if "self_attn.qkv_proj.weight" in w:
            part("self_attn.qkv_proj.weight", *((f"self_attn.{n}_proj.weight", DIM * h) for n, h in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))))
        if "mlp.gate_up_proj.weight" in w:
            part("mlp.gate_up_proj.weight", ("mlp.gate_proj.weight", INNER), ("mlp.up_proj.weight", INNER))
        if "mlp.experts.gate_up_proj" in w and "halves" in self.traits:
            both, down = (w.pop(f"mlp.experts.{n}_proj") for n in ("gate_up", "down"))
            for e in range(EXPERTS):
                at = f"mlp.experts.{e}."
                w |= {at + "gate_proj.weight": both[e, :INNER], at + "up_proj.weight": both[e, INNER:], at + "down_proj.weight": down[e]}
        if "block_sparse_moe.input_linear.weight" in w:
            both, down = (w.pop(f"block_sparse_moe.{n}_linear.weight") for n in ("input", "output"))
            for e in range(EXPERTS):
                at = f"block_sparse_moe.experts.{e}."
                w |= {at + "gate_proj.weight": both[e, :INNER], at + "up_proj.weight": both[e, INNER:], at + "down_proj.weight": down[e]}
        if "shared_mlp.input_linear.weight" in w:
            part("shared_mlp.input_linear.weight", ("shared_mlp.gate_proj.weight", INNER), ("shared_mlp.up_proj.weight", INNER))
            w["shared_mlp.down_proj.weight"] = w.pop("shared_mlp.output_linear.weight")
        return w

    def layer_tensors(self, layer):
        t = {f"{n}.weight": self.gain(HIDDEN) for n in self.norms if n}
        if "gemma4" in self.traits:
            t["layer_scalar"] = self.gain(1)
        if self.is_kimi(layer):
            t |= self.kimi_tensors()
        elif "latent" in self.traits:
            t |= {n.removeprefix("model.layers.0."): x for n, x in self.attention[layer].tensors.items()}
            t |= self.indexer_tensors(layer) if "indexer" in self.traits else {}
        elif self.is_delta(layer):
            t |= self.delta_tensors()
        elif self.kind(layer) == "mamba":
            t |= self.mamba_tensors()
        elif self.kind(layer) == "mlp":
            pass
        else:
            dim, kv_heads = self.sizes(layer)
            for n, heads in (("q", HEADS), ("k", kv_heads), ("v", 0 if self.keys_are_values(layer) else kv_heads)):
                if heads == 0:
                    continue
                size = self.value_size(dim) if n == "v" else dim
                t[f"self_attn.{n}_proj.weight"] = self.draw(heads * size * (1 + ("output gate" in self.traits and n == "q")), HIDDEN)
                if "bias" in self.traits:
                    t[f"self_attn.{n}_proj.bias"] = self.draw(heads * DIM, scale=0.5)
                if "head norms" in self.traits and n != "v":
                    t[f"self_attn.{n}_norm.weight"] = self.gain(dim)
                if "wide norms" in self.traits and n != "v":
                    t[f"self_attn.{n}_norm.weight"] = self.gain(heads * DIM)
                if "late norms" in self.traits and n != "v":
                    t[f"self_attn.{ {'q': 'query', 'k': 'key'}[n]}_layernorm.weight"] = self.gain(DIM)
            t["self_attn.o_proj.weight"] = self.draw(HIDDEN, HEADS * self.value_size(dim))
            if "hybrid_layer_pattern" in self.config and self.slides(layer):
                t["self_attn.attention_sink_bias"] = self.draw(HEADS, scale=1)
            t |= self.block_tensors() if self.has_blocks(layer) else {}
            if "stacks" in self.traits:
                t |= {"self_attn.o_proj.bias": self.draw(HIDDEN, scale=0.5), "self_attn.sinks": self.draw(HEADS, scale=1)}
        if "stacks" in self.traits:
            return t | self.stacks()
        if "one block" in self.traits and self.kind(layer) != "mlp":
            return t
        if "experts" not in self.traits or (layer == 0 and "one block" not in self.traits):
            return self.fuse(t | self.mlp(self.dense()))
        t[f"{self.router}.weight"] = self.draw(EXPERTS, HIDDEN)
        if "gemma4" in self.traits:
            return t | self.mlp("mlp") | self.parallel_tensors()
        if self.traits & {"sigmoid", "choice bias"}:
            bias = self.rng.uniform(0, 0.5, EXPERTS).astype(np.float32)
            t[self.choice_bias] = bias[None] if "choice bias" in self.traits else bias
        for e in range(EXPERTS):
            t |= self.mlp(f"{self.moe()}.experts.{e}")
        if "gated shared" in self.traits:
            t |= {"mlp.shared_expert_gate.weight": self.draw(1, HIDDEN), **self.mlp("mlp.shared_expert")}
        return self.fuse(t | (self.mlp(self.shared()) if "shared" in self.traits else {}))

    def write(self, path, **config):
        named = {self.stored(n): x for n, x in self.tensors.items()}
        if self.traits & {"multimodal", "language model"}:
            outer = "mistral3" if "language model" in self.traits else "qwen3_5_moe"
            return write(path, named, {"model_type": outer, "text_config": self.config | config})
        return write(path, named, self.config | config)

    def stored(self, name):
        """Returns the name of a tensor in the file."""
        if "multimodal" in self.traits:
            return re.sub(r"^model\.", "model.language_model.", name)
        if "language model" in self.traits:
            return f"language_model.{name}"
        if "one block" not in self.traits:
            return name
        for pattern, own in ((r"\.(self_attn|mamba|mlp)\.", ".mixer."), (r"^model\.embed_tokens", "backbone.embeddings"),
                             (r"^model\.norm", "backbone.norm_f"), (r"^model\.", "backbone.")):
            name = re.sub(pattern, own, name)
        return name

    # ---- the pass ----

    def slides(self, layer):
        """Returns True if the layer sees at most WINDOW tokens."""
        if "hybrid_layer_pattern" in self.config:
            return bool(self.config["hybrid_layer_pattern"][layer])
        if "layer_types" in self.config:
            return self.config["layer_types"][layer] == "sliding_attention"
        if "sliding_window_pattern" in self.config:
            return (layer + 1) % self.config["sliding_window_pattern"] != 0
        if self.config["model_type"] == "phi3":
            return True
        if "max_window_layers" in self.config:
            return layer >= self.config["max_window_layers"]
        return "sliding_window" in self.config and (self.config["model_type"] != "gemma2" or layer % 2 == 0)

    def sizes(self, layer):
        """Returns (elements of a head, heads of keys and values)."""
        if "gemma4" not in self.traits or self.slides(layer):
            return DIM, self.config.get("swa_num_key_value_heads", KV_HEADS) if self.slides(layer) else KV_HEADS
        return GLOBAL_DIM, GLOBAL_KV if self.keys_are_values(layer) else KV_HEADS

    def value_size(self, dim):
        """Returns the elements of a head of values. MiMo has fewer than keys have."""
        return self.config["v_head_dim"] if "hybrid_layer_pattern" in self.config else dim

    def keys_are_values(self, layer):
        return self.config.get("attention_k_eq_v", False) and not self.slides(layer)

    def frequency(self, layer):
        if "gemma4" in self.traits:
            dim = self.sizes(layer)[0]
            f = (50.0 if self.slides(layer) else 900.0) ** -(np.arange(0, dim, 2) / dim)
            return f if self.slides(layer) else np.where(np.arange(dim // 2) < dim // 8, f, 0)
        local = self.config.get("rope_local_base_freq", self.config.get("swa_rope_theta"))
        base = local if local and self.slides(layer) else 500.0
        turned = int(DIM * self.config.get("partial_rotary_factor", self.config.get("rotary_dim", DIM) / DIM))
        scaling = self.config.get("rope_scaling") or {}
        base *= scaling["alpha"] ** (DIM / (DIM - 2)) if "alpha" in scaling else 1
        f = base ** -(np.arange(0, turned, 2) / turned)
        if self.config["model_type"] == "olmo3" and self.slides(layer):
            return f
        if scaling.get("type") == "linear":
            return f / scaling["factor"]
        if scaling.get("rope_type") != "llama3":
            return f
        wave, trained = 2 * math.pi / f, scaling["original_max_position_embeddings"]
        smooth = (trained / wave - 1) / (4 - 1)
        return np.where(wave > trained / 1, f / 8, np.where(wave < trained / 4, f, (1 - smooth) * f / 8 + smooth * f))

    def has_rope(self, layer):
        if self.config["model_type"] == "smollm3":
            listed = self.config.get("no_rope_layers")
            return bool(listed[layer]) if listed else (layer + 1) % self.config["no_rope_layer_interval"] != 0
        of_windows = self.config["model_type"] in ("exaone4", "exaone_moe", "cohere2")
        return "no rope" not in self.traits and (not of_windows or self.slides(layer))

    def turn(self, x, cos, sin):
        """Applies RoPE to the first elements of each head; cos and sin have one number per pair."""
        pairs = cos.shape[-1]
        turned, kept = x[..., : 2 * pairs], x[..., 2 * pairs :]
        if "adjacent" in self.traits:
            u, v = turned[..., ::2], turned[..., 1::2]
            turned = np.stack([u * cos - v * sin, v * cos + u * sin], -1).reshape(turned.shape)
        else:
            u, v = turned[..., :pairs], turned[..., pairs:]
            turned = np.concatenate([u * cos - v * sin, v * cos + u * sin], -1)
        return np.concatenate([turned, kept], -1)

    def growth(self, fault):
        """Returns the factor of queries by their position."""
        c = self.config.get("rope_parameters") or {}
        if fault == "growth" or "llama_4_scaling_beta" not in c:
            return 1
        return 1 + c["llama_4_scaling_beta"] * np.log(1 + np.arange(TOKENS) // c["original_max_position_embeddings"])

    def grouped(self, layer, w, x, fault):
        angle = np.arange(TOKENS)[:, None] * self.frequency(layer)
        cos, sin = np.cos(angle)[None, :, None], np.sin(angle)[None, :, None]
        gates = {"out": np.full(1, np.inf)}

        dim, kv_heads = self.sizes(layer)

        def heads(name):
            y = x @ w[f"self_attn.{name}_proj.weight"].T + w.get(f"self_attn.{name}_proj.bias", 0)
            if "output gate" in self.traits and name == "q":
                y, gates["out"] = (u.reshape(BATCH, TOKENS, -1) for u in np.split(y.reshape(BATCH, TOKENS, HEADS, 2 * DIM), 2, -1))
            gain = w.get(f"self_attn.{name}_norm.weight", np.ones(dim))
            if f"self_attn.{name}_norm.weight" in w and fault != "head norm":
                y = self.norm(y.reshape(BATCH, TOKENS, -1, len(gain)), gain)
            if name == "v":
                return y.reshape(BATCH, TOKENS, -1, self.value_size(dim)) * self.config.get("attention_value_scale", 1)
            y = y.reshape(BATCH, TOKENS, -1, dim)
            if fault != "rope" and self.has_rope(layer):
                y = self.turn(y, cos, sin)
            late = w.get(f"self_attn.{ {'q': 'query', 'k': 'key'}[name]}_layernorm.weight")
            return y if late is None else self.norm(y, late)

        if self.keys_are_values(layer):
            w = w | {"self_attn.v_proj.weight": w["self_attn.k_proj.weight"]}
        q, k, v = heads("q"), heads("k"), heads("v")
        v = rms_norm(v, 1) if "gemma4" in self.traits else v
        k, v = (np.repeat(u, HEADS // kv_heads, axis=2) for u in (k, v))
        q = q * np.reshape(self.growth(fault), (-1, 1, 1))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) * self.config.get(
            "attention_multiplier", 1 if "gemma4" in self.traits else self.config.get("query_pre_attn_scalar", DIM) ** -0.5)
        cap = self.config.get("attn_logit_softcapping")
        scores = cap * np.tanh(scores / cap) if cap else scores
        seen = np.tril(np.ones((TOKENS, TOKENS), bool)) & (self.slides(layer) <= np.triu(np.ones((TOKENS, TOKENS), bool), 1 - WINDOW))
        if self.has_blocks(layer):
            seen = seen & np.repeat(self.choose_blocks(w, x, cos, sin), HEADS // BLOCKS["sparse_num_index_heads"], axis=1)
        scores = np.where(seen, scores, -np.inf)
        sinks = w.get("self_attn.sinks", w.get("self_attn.attention_sink_bias"))
        if sinks is not None:
            sinks = np.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
            scores = np.concatenate([scores, sinks], -1)
        out = np.einsum("bhqk,bkhd->bqhd", softmax(scores)[..., :TOKENS], v)
        out = out.reshape(BATCH, TOKENS, -1) / (1 + np.exp(-gates["out"]))
        return out @ w["self_attn.o_proj.weight"].T + w.get("self_attn.o_proj.bias", 0)

    def dense(self):
        """Computes the MLP of layers without experts."""
        return "shared_mlp" if "granitemoe" in self.config["model_type"] else "mlp"

    def run_mlp(self, w, prefix, x):
        if "ungated" in self.traits:
            return np.maximum(x @ w[self.weight(prefix, "up")].T, 0) ** 2 @ w[self.weight(prefix, "down")].T
        gate, up, down = (w[self.weight(prefix, n)].T for n in ("gate", "up", "down"))
        gate = x @ gate
        if "clamped" in self.traits:
            limit = self.config["swiglu_limit"]
            gate, up = np.minimum(gate, limit), np.clip(x @ up, -limit, limit)
            return ((up + 1) * gate / (1 + np.exp(-1.702 * gate))) @ down
        gelu = 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        return (gate * (gelu if self.traits & {"gemma", "gemma4"} else 1 / (1 + np.exp(-gate))) * (x @ up)) @ down

    def route(self, w, x, fault):
        """Returns (chosen experts, their weights) of each token."""
        logits = x @ w[f"{self.router}.weight"].T
        scores = 1 / (1 + np.exp(-logits)) if "sigmoid" in self.traits else softmax(logits)
        keys = scores + (w[self.choice_bias].reshape(-1) if self.choice_bias in w and fault != "bias" else 0)
        groups = self.config.get("n_group", 1)
        if groups > 1 and fault != "groups":
            grouped = np.sort(keys.reshape(*keys.shape[:-1], groups, -1), -1)
            rank = grouped[..., -2:].sum(-1) if self.traits & {"sigmoid", "paired"} else grouped[..., -1]
            kept = np.argsort(-rank, -1)[..., : self.config["topk_group"]]
            mask = np.zeros(rank.shape, bool)
            np.put_along_axis(mask, kept, True, -1)
            keys = np.where(np.repeat(mask, EXPERTS // groups, -1), keys, -np.inf)
        chosen = np.argsort(-keys, -1)[..., :CHOSEN]
        weights = np.take_along_axis(scores, chosen, -1)
        if self.config.get("norm_topk_prob"):
            weights = weights / weights.sum(-1, keepdims=True)
        scale = self.config.get("routed_scaling_factor", self.config.get("router_scaling_factor")) or 1
        return chosen, weights * (scale if fault != "scaling" else 1)

    def run_layer(self, layer, x, tensors, fault=None):
        """Returns (output hidden states, chosen experts or None)."""
        prefix = f"model.layers.{layer}."
        w = self.split({n.removeprefix(prefix): t.astype(np.float64) for n, t in tensors.items() if n.startswith(prefix)})
        before, behind, before_mlp, behind_mlp = (w.get(f"{n}.weight") for n in self.norms)
        if self.kind(layer) == "mlp":
            added, chosen = self.run_half(w, self.norm(x, before), x, fault)
            return x + added, chosen
        residual = self.config.get("residual_multiplier", 1)
        normed = x if before is None else self.norm(x, before)
        if self.is_kimi(layer):
            added = self.kimi(w, normed)
        elif "latent" in self.traits:
            m = self.attention[layer]
            m.tensors = {f"model.layers.0.{n}": t for n, t in w.items() if n.startswith("self_attn.")}
            choose = (lambda query: self.choose_tokens(layer, w, normed, query, fault)) if "indexer" in self.traits else None
            added = m.stages(hidden=normed, choose=choose, growth=self.growth(fault))["output"]
        elif self.is_delta(layer):
            added = self.delta(w, normed, fault)
        elif self.kind(layer) == "mamba":
            added = self.mamba(w, normed)
        else:
            added = self.grouped(layer, w, normed, fault)
        if "parallel" in self.traits:
            return x + added + self.run_mlp(w, "mlp", normed), None
        x = x + residual * (added if behind is None else self.norm(added, behind))
        if "one block" in self.traits:
            return x, None
        added, chosen = self.run_half(w, x if before_mlp is None else self.norm(x, before_mlp), x, fault)
        x = x + residual * (added if behind_mlp is None else self.norm(added, behind_mlp))
        return x * w.get("layer_scalar", 1), chosen

    def run_half(self, w, normed, stream, fault):
        """Returns (output of the MLP or the experts, chosen experts or None)."""
        if "stacks" in self.traits:
            return self.run_stacks(w, normed)
        if "router.scale" in w:
            return self.run_parallel(w, normed, stream, fault)
        if f"{self.router}.weight" not in w:
            return self.run_mlp(w, self.dense(), normed), None
        chosen, weights = self.route(w, normed, fault)
        added = np.zeros_like(normed)
        for e in range(EXPERTS):
            share = np.where(chosen == e, weights, 0).sum(-1, keepdims=True)
            added += share * self.run_mlp(w, f"{self.moe()}.experts.{e}", normed)
        if "gated shared" in self.traits:
            share = 1 / (1 + np.exp(-normed @ w["mlp.shared_expert_gate.weight"].T))
            added += share * self.run_mlp(w, "mlp.shared_expert", normed)
        if "shared" in self.traits and fault != "shared":
            added += self.run_mlp(w, self.shared(), normed)
        return added, chosen

    def logits(self, x, tensors):
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).astype(np.float64)
        logits = self.norm(x, tensors["model.norm.weight"].astype(np.float64)) @ head.T + tensors.get("lm_head.bias", np.zeros(1)).astype(np.float64)
        logits *= self.config.get("logit_scale", 0.0625 if "parallel" in self.traits else 1) / self.config.get("logits_scaling", 1)
        cap = self.config.get("final_logit_softcapping")
        return cap * np.tanh(logits / cap) if cap else logits

    def run(self, faults=None, tensors=None):
        """Returns the arrays of a reference file; `faults`: {layer: mistake}."""
        tensors = tensors or self.tensors
        x = tensors["model.embed_tokens.weight"].astype(np.float64)[self.tokens] * (math.sqrt(HIDDEN) if self.traits & {"gemma", "gemma4"} else self.config.get("embedding_multiplier", 1))
        out = {"hidden_states.0": x}
        for layer in range(LAYERS):
            x, _ = self.run_layer(layer, x, tensors, (faults or {}).get(layer))
            out[f"hidden_states.{layer + 1}"] = x
        return out | {"logits": self.logits(x, tensors)}

    def reference(self, path, faults=None, drop=()):
        arrays = {n: x for n, x in self.run(faults).items() if n not in drop}
        harness.write_safetensors(path, {n: ("F32", x.shape, x.astype(np.float32).tobytes()) for n, x in arrays.items()}
                                  | {"input_ids": ("I64", self.tokens.shape, self.tokens.astype(np.int64).tobytes())})
        return path


def command(*arguments):
    """Returns a verify forward command. SRC and DST at the beginning become DST --against SRC, with --exact unless --served
    is given."""
    if len(arguments) > 1 and not str(arguments[1]).startswith("--"):
        arguments = [arguments[1], "--against", arguments[0], *arguments[2:]]
        if "--served" in arguments:
            arguments.remove("--served")
        else:
            arguments.append("--exact")
    return ["verify", "forward", *arguments]


@pytest.fixture
def verify(tessera):
    """Returns verify(*arguments) -> {(subject, what): judgement}."""

    def run(*arguments):
        code, out, err = harness.run(tessera, [*command(*arguments), "--json", "-"])
        assert code in (0, 1), err
        result = json.loads(out)
        assert result["passed"] == (code == 0) == all(j["passed"] for j in result["judgements"])
        return {(j["subject"], j["what"]): j for j in result["judgements"]}

    return run


def failed(judgements):
    """Returns the subjects whose judgements did not pass, in order."""
    return [subject for (subject, _), j in judgements.items() if not j["passed"]]


def noisy(m, amount):
    rng = np.random.default_rng(9)
    return {n: x if "norm" in n or x.dtype != BF16 else (x.astype(np.float64) * (1 + amount * rng.standard_normal(x.shape))).astype(BF16)
            for n, x in m.tensors.items()}


def sqnr(x, y):
    return 10 * math.log10((x**2).sum() / ((x - y) ** 2).sum())
